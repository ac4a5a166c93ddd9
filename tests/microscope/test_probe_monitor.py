"""The probe monitor sees what a step does to held-out answers, and changes nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from by_autograd import TEMPERATURE, logprobs_TV, of_tokens

from counterpoise.config import UpdateConfig
from counterpoise.errors import PoiseError
from counterpoise.microscope import gradient_products as gradient_module
from counterpoise.microscope.gradient_products import (
    GradientSettings,
    choose_parameters,
    gradient_products,
)
from counterpoise.microscope.probe_monitor import ANSWER_SETS, ProbeAnswer, ProbeMonitor
from counterpoise.microscope.probe_records import answer_set_columns, probe_metrics, probe_tables
from counterpoise.model.load import Policy
from counterpoise.types import Row, StepResult
from counterpoise.update.optimizer import Optimizer
from counterpoise.update.step import StepSettings, take_step


def make_answers() -> list[ProbeAnswer]:
    """Two problems with a right and a wrong answer each."""
    answers = []
    for number, row in enumerate(tiny.rows(groups=2, size=2, seed=5)):
        rollout = replace(row.content, reward=float(number % 2 == 0))
        row = replace(row, advantage=0.0, rollout=rollout)
        answers.append(ProbeAnswer(row, "steer" if number < 2 else "judge"))
    return answers


def take(
    policy: Policy, monitor: ProbeMonitor | None, rows: list[Row], step: int = 0, **changes: object
) -> StepResult:
    config = UpdateConfig(**{"lr": 1e-2, "optimizer": "sgd", "max_grad_norm": 0.0, **changes})
    return take_step(
        policy,
        Optimizer(policy.model, config),
        rows,
        StepSettings(config, temperature=TEMPERATURE, max_new_tokens=17),
        observer=monitor and monitor.at(step),
    )


def plain_logprobs(policy: Policy, answers: list[ProbeAnswer]) -> np.ndarray:
    """By transformers' own forward, answer by answer."""
    with torch.no_grad():
        rows = [answer.row for answer in answers]
        return torch.cat([of_tokens(logprobs_TV(policy, row), row) for row in rows]).numpy()


def answer_ends(answers: list[ProbeAnswer]) -> np.ndarray:
    return np.cumsum([answer.row.num_tokens for answer in answers])[:-1]


def test_the_displacement_is_that_of_a_plain_forward() -> None:
    policy, answers, rows = tiny.policy(), make_answers(), tiny.rows()
    before = plain_logprobs(policy, answers)
    monitor = ProbeMonitor(answers, TEMPERATURE, 60)
    take(policy, monitor, rows)
    after = plain_logprobs(policy, answers)
    measurement = monitor.finish(policy)
    np.testing.assert_allclose(measurement.logprobs, before, atol=2e-5)
    np.testing.assert_allclose(measurement.displacement, after - before, atol=2e-5)
    assert np.abs(measurement.displacement).max() > 1e-2


def test_watching_changes_no_weight() -> None:
    watched, blind, rows = tiny.policy(), tiny.policy(), tiny.rows()
    monitor = ProbeMonitor(make_answers(), TEMPERATURE, 60)
    take(watched, monitor, rows)
    assert monitor.finish(watched) is not None
    take(blind, None, rows)
    for first, second in zip(watched.model.parameters(), blind.model.parameters(), strict=True):
        assert torch.equal(first, second)


def test_a_small_step_of_the_output_layer_moves_answers_as_predicted() -> None:
    """Untied, so that the output layer can move alone; the sums predict it to first order."""
    policy = tiny.policy(tie_word_embeddings=False)
    for name, parameter in policy.model.named_parameters():
        parameter.requires_grad_("lm_head" in name)
    answers, learning_rate = make_answers(), 1e-4
    monitor = ProbeMonitor(answers, TEMPERATURE, 60)
    take(policy, monitor, tiny.rows(), lr=learning_rate)
    measurement = monitor.finish(policy)
    predicted = learning_rate * measurement.signed_J2.sum(axis=1)
    assert np.corrcoef(predicted, measurement.displacement)[0, 1] > 0.999
    slope = (predicted @ measurement.displacement) / (predicted @ predicted)
    assert slope == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("through", ["all_parameters", "middle_layer"])
def test_a_small_step_moves_answers_as_gradients_predict(through: str) -> None:
    """Only the weights that influence is computed through are trained."""
    policy, answers, rows = tiny.policy(), make_answers(), tiny.rows()
    settings = GradientSettings(through, TEMPERATURE)
    chosen = {id(weight) for weight in choose_parameters(policy, settings, rows[0])}
    assert 0 < len(chosen) < len(list(policy.model.parameters())) or through == "all_parameters"
    lr = 1e-3
    monitor = ProbeMonitor(answers, TEMPERATURE, 60, gradients=settings)
    before = {weight: weight.detach().clone() for weight in policy.model.parameters()}
    first = plain_logprobs(policy, answers)
    take(policy, monitor, rows, lr=lr)
    with torch.no_grad():
        for weight, old in before.items():
            if id(weight) not in chosen:
                weight.copy_(old)
    moved = np.split(plain_logprobs(policy, answers) - first, answer_ends(answers))
    measurement = monitor.finish(policy)
    predicted_Q = lr * measurement.influence_RQ.sum(axis=0)
    assert measurement.influence_RQ.shape == (len(rows), len(answers))
    tolerance = 0.005 * np.abs(predicted_Q).max()
    np.testing.assert_allclose([m.sum() for m in moved], predicted_Q, rtol=0, atol=tolerance)
    assert not np.allclose(measurement.by_row_RQ, measurement.influence_RQ)


def test_gradients_in_blocks_are_those_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, rows = tiny.policy(), tiny.rows()
    answers = [answer.row for answer in make_answers()]
    pulls = [np.linspace(-1, 1, row.num_tokens, dtype=np.float32) for row in rows]
    settings = GradientSettings("all_parameters", TEMPERATURE)
    whole = gradient_products(policy, rows, pulls, answers, settings)
    checkpointed = replace(settings, checkpointing=True)
    again = gradient_products(policy, rows, pulls, answers, checkpointed)
    np.testing.assert_allclose(again, whole, rtol=1e-5, atol=1e-4)
    blocks: list[int] = []
    in_blocks = gradient_module._products_in_blocks

    def fit_two_answers(*arguments: Any) -> np.ndarray:
        *_, block_size = arguments
        blocks.append(block_size)
        if block_size > 2:
            raise torch.OutOfMemoryError
        return in_blocks(*arguments)

    monkeypatch.setattr(gradient_module, "_products_in_blocks", fit_two_answers)
    fitted = gradient_products(policy, rows, pulls, answers, settings)
    np.testing.assert_allclose(fitted, whole, rtol=1e-5, atol=1e-4)
    assert blocks[1:] == [2]
    monkeypatch.setattr(gradient_module, "_products_in_blocks", out_of_memory)
    with pytest.raises(PoiseError, match=r"out of memory.*set monitor\.probe_through=output_layer"):
        gradient_products(policy, rows, pulls, answers, settings)


def out_of_memory(*_: Any) -> np.ndarray:
    raise torch.OutOfMemoryError


def test_the_middle_layer_is_one_that_text_goes_through() -> None:
    policy, rows = tiny.policy(), tiny.rows()
    settings = GradientSettings("middle_layer", TEMPERATURE)
    of_text = {id(weight) for weight in policy.model.model.layers[1].parameters()}
    # As in a model that reads images: more layers, which a text never meets.
    policy.model.vision = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(6))
    assert {id(w) for w in choose_parameters(policy, settings, rows[0])} == of_text
    for weight in policy.model.model.layers.parameters():
        weight.requires_grad_(False)
    with pytest.raises(PoiseError, match="no middle layer that is trained"):
        choose_parameters(policy, settings, rows[0])


def test_the_steps_of_an_iteration_share_two_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reading after an iteration is the one before the next."""
    policy, answers, rows = tiny.policy(), make_answers(), tiny.rows()
    passes, read = [], ProbeMonitor._read

    def counted_read(self: ProbeMonitor, policy: Policy) -> object:
        passes.append(1)
        return read(self, policy)

    monkeypatch.setattr(ProbeMonitor, "_read", counted_read)
    measurements, reading = [], None
    for _ in range(2):
        monitor = ProbeMonitor(answers, TEMPERATURE, 60, reading=reading)
        for step in range(3):
            take(policy, monitor, rows, step=step)
        measurements.append(monitor.finish(policy))
        reading = monitor.reading
    assert len(passes) == 3
    first, second = measurements
    np.testing.assert_allclose(first.logprobs + first.displacement, second.logprobs, atol=1e-6)
    assert first.steps == tuple(step for step in range(3) for _ in rows)
    assert first.rows == tuple(range(len(rows))) * 3


def test_pushes_of_several_steps_are_those_of_the_steps_alone() -> None:
    """With tiny steps, so that the weights of all steps are the same to first order."""
    policy, answers, rows = tiny.policy(), make_answers(), tiny.rows()
    alone = []
    for _ in range(2):
        monitor = ProbeMonitor(answers, TEMPERATURE, 60)
        take(policy, monitor, rows, lr=1e-7)
        alone.append(monitor.finish(policy))
    together = ProbeMonitor(answers, TEMPERATURE, 60)
    for step in range(2):
        take(policy, together, rows, step=step, lr=1e-7)
    measurement = together.finish(policy)
    for name in ("by_row_RQ", "on_sets_NC"):
        expected = np.concatenate([getattr(single, name) for single in alone])
        np.testing.assert_allclose(getattr(measurement, name), expected, rtol=2e-3, atol=2e-5)
    expected = sum(single.signed_J2 for single in alone)
    np.testing.assert_allclose(measurement.signed_J2, expected, rtol=2e-3, atol=2e-5)


def test_without_a_step_nothing_is_measured() -> None:
    assert ProbeMonitor(make_answers(), TEMPERATURE, 60).finish(tiny.policy()) is None


def test_tables_and_metrics_add_up() -> None:
    policy, answers, rows = tiny.policy(), make_answers(), tiny.rows()
    monitor = ProbeMonitor(answers, TEMPERATURE, 60)
    result = take(policy, monitor, rows)
    measurement = monitor.finish(policy)
    tables = {
        folder: trace.columns
        for folder, trace in probe_tables(answers, measurement, result.rows).items()
    }
    by_row, by_token = np.zeros(len(answers)), np.zeros(len(answers))
    np.add.at(by_row, tables["probe_rows"]["answer"], tables["probe_rows"]["push"])
    tokens = tables["probes"]
    np.add.at(by_token, tokens["answer"], tokens["positive"] + tokens["negative"])
    np.testing.assert_allclose(by_row, by_token, rtol=1e-4, atol=1e-4)
    # The token sums of a row's pushes on a set are the mean of the row's pushes on its answers.
    N = sum(row.num_tokens for row in rows)
    columns = answer_set_columns(measurement, np.arange(N), N)
    for (kind, half), values in zip(ANSWER_SETS, columns.values(), strict=True):
        members = [i for i, a in enumerate(answers) if (a.kind, a.half) == (kind, half)]
        assert values.sum() == pytest.approx(by_row[members].mean(), rel=1e-3)
    record = probe_metrics(answers, measurement, [result])
    moved = np.zeros(len(answers))
    np.add.at(moved, tokens["answer"], tokens["displacement"])
    assert record["probe_right"] == pytest.approx(moved[[0, 2]].mean(), rel=1e-5)
    assert record["probe_wrong"] == pytest.approx(moved[[1, 3]].mean(), rel=1e-5)
    assert -1 <= record["probe_correlation"] <= 1
