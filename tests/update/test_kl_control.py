"""Control of the KL's coefficient: the gradient, the rules one number at a time, whole runs."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import by_autograd as by
import numpy as np
import pytest
import tiny
import torch
from safetensors.numpy import load_file, save_file
from small_run import small_model

from counterpoise.config.load import config_from_tables, load_config
from counterpoise.errors import PoiseError
from counterpoise.loop import train
from counterpoise.run.observer import RunObserver
from counterpoise.store import checkpoint
from counterpoise.types import Prompt, Row, StepResult
from counterpoise.update.kl_control import (
    ComplexityControl,
    make_kl_control,
    with_kl_coefficients,
)

COEFFICIENTS = {"p0": 0.3, "p1": 0.02, "p2": 0.0}


def test_the_gradient_has_the_coefficient_of_each_row() -> None:
    """Against a model in float64, row by row, with whole logits and autograd."""
    policy = tiny.policy()
    reference_model = copy.deepcopy(tiny.policy(seed=7).model).double()
    model = copy.deepcopy(policy.model).double()
    rows = [
        replace(
            row,
            reference_logprobs_T=by.of_tokens(
                by.logprobs_TV(policy, row, model=reference_model), row
            )
            .detach()
            .numpy(),
            kl_coefficient=COEFFICIENTS[row.group],
        )
        for row in tiny.rows(seed=3)
    ]
    config = replace(by.PLAIN, surrogate="reinforce", kl=0.5, kl_control="complexity")
    _, gradient = by.stepped(policy, rows, None, replace(config, micro_tokens=40))
    loss = torch.zeros((), dtype=torch.float64)
    for row in rows:
        logprobs_T = by.of_tokens(by.logprobs_TV(policy, row, model=model), row)
        log_ratio_T = logprobs_T - torch.from_numpy(row.reference_logprobs_T)
        kl_T = torch.exp(-log_ratio_T) - 1 + log_ratio_T
        loss = loss + (COEFFICIENTS[row.group] * kl_T - row.advantage * logprobs_T).sum()
    loss = loss / sum(row.num_tokens for row in rows)
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(loss, model.parameters())])
    assert by.relative(gradient.double(), expected) == pytest.approx(0, abs=5e-6)
    fixed = [replace(row, kl_coefficient=None) for row in rows]
    _, of_one_number = by.stepped(policy, fixed, None, config)
    _, of_equal_numbers = by.stepped(policy, fixed, None, replace(config, kl_control="fixed"))
    assert by.relative(of_one_number, of_equal_numbers) < 1e-6
    assert by.relative(gradient, of_equal_numbers) > 0.01


# -- the rules ---------------------------------------------------------------------------------


def make_step(seed: int) -> tuple[list[Row], list[StepResult]]:
    """Rows of three prompts with made-up log-probabilities, in two steps."""
    rng = np.random.default_rng(seed)
    rows = [
        replace(
            row,
            rollout=replace(row.content, prompt_id=row.group),
            reference_logprobs_T=-rng.gamma(1 + int(row.group[1]), size=row.num_tokens).astype(
                "f4"
            ),
        )
        for row in tiny.rows(groups=3, size=4, seed=seed)
    ]
    old_logprobs = [
        row.reference_logprobs_T + rng.normal(scale=0.6, size=row.num_tokens).astype("f4")
        for row in rows
    ]
    steps = (range(0, 5), range(5, 12))
    return rows, [
        StepResult(
            tuple(step), [], [old_logprobs[i] for i in step], [], [], [], np.zeros(0, "f4"),
            0.0, 0.0, 0.0, 0,
        )
        for step in steps
    ]  # fmt: skip


def as_released(iterations: list, target: float, horizon: int) -> dict[str, float]:
    """The controller of CRPO's code, in its own order of operations."""
    coefficients, entropies, overall = {}, {}, None
    for rows, results in iterations:
        of_role: dict[str, list[tuple[float, float]]] = {}
        for result in results:
            for i, old_T in zip(result.rows, result.old_logprobs, strict=True):
                d = old_T.astype("f8") - rows[i].reference_logprobs_T.astype("f8")
                kl, entropy = np.mean(np.exp(-d) - 1 + d), -np.mean(rows[i].reference_logprobs_T)
                of_role.setdefault(rows[i].group, []).append((float(kl), float(entropy)))
        for role in np.unique(list(of_role)):
            kl, entropy = np.mean(of_role[role], axis=0)
            old = entropies.get(role, 0.0)
            entropies[role] = entropy if old == 0.0 else 0.95 * old + 0.05 * entropy
            overall = entropy if overall is None else 0.99 * overall + 0.01 * entropy
            scale = np.clip(np.power(overall / (entropies[role] + 1e-6), 1.5), 0.5, 2.0)
            error = np.clip(kl / (target * scale) - 1, -0.2, 0.2)
            mult = 1 - error * len(of_role[role]) / horizon
            coefficients[role] = coefficients.get(role, 0.01) * mult
    return coefficients


def test_the_released_controller_number_by_number() -> None:
    iterations = [make_step(seed) for seed in range(6)]
    settings = ["target=0.2", "horizon=50"]
    sets = ["update.kl=0.01", "update.kl_control=complexity_released"]
    control = make_kl_control(
        config_from_tables({}, [*sets, f"update.kl_settings={settings}"]).update
    )
    assert control is not None
    for rows, results in iterations:
        control.update(rows, results, "k3")
    expected = as_released(iterations, 0.2, 50)
    assert control.coefficients.keys() == expected.keys() == {"p0", "p1", "p2"}
    for channel, coefficient in expected.items():
        assert control.coefficients[channel] == pytest.approx(coefficient, rel=1e-6)
    rows = with_kl_coefficients(iterations[0][0], control)
    assert {row.group: row.kl_coefficient for row in rows} == control.coefficients


def test_as_described_a_hard_prompt_may_move_further() -> None:
    control = ComplexityControl(0.1, target=0.1, horizon=8)
    control.overall_entropy = 1.0
    control.entropies = {"hard": 2.0, "easy": 0.25}
    assert control._target_scale("hard") == 2.0  # 2^1.5 = 2.8, limited
    assert control._target_scale("easy") == 0.5  # 0.125, limited
    rows, results = make_step(1)
    for row in rows:
        row.reference_logprobs_T[:] = -1.0
    for result in results:
        for i, old_T in zip(result.rows, result.old_logprobs, strict=True):
            old_T[:] = -1.0 + {"p0": 0.0, "p1": 0.45, "p2": 3.0}[rows[i].group]
    control = ComplexityControl(0.1, target=0.1, horizon=8)
    control.update(rows, results, "k2")
    # KLs of 0, 0.10125 and 4.5 beside a target of 0.1; errors beyond 0.2 count as 0.2.
    expected = {"p0": 0.1 * 0.9, "p1": 0.1 * (1 + 0.0125 / 2), "p2": 0.1 * 1.1}
    assert control.coefficients == pytest.approx(expected, rel=1e-6)


def test_more_responses_than_the_horizon_count_as_one_horizon() -> None:
    """12 responses at a KL of 0: 1 - 0.2 * 12 / 2 would make the coefficient negative."""
    rows, results = make_step(2)
    for result in results:
        for i, old_T in zip(result.rows, result.old_logprobs, strict=True):
            old_T[:] = rows[i].reference_logprobs_T
    sets = ["update.kl=0.01", "update.kl_control=adaptive", "update.kl_settings=['horizon=2']"]
    control = make_kl_control(config_from_tables({}, sets).update)
    assert control is not None
    control.update(rows, results, "k3")
    assert control.coefficient("p0") == pytest.approx(0.01 * 0.8)


def test_one_coefficient_for_all_is_moved_towards_its_target() -> None:
    rows, results = make_step(2)
    update = config_from_tables({}, ["update.kl=0.01", "update.kl_control=adaptive"]).update
    control = make_kl_control(update)
    assert control is not None
    control.update(rows, results, "k3")
    assert control.coefficients == {"": pytest.approx(0.01 * (1 + 0.2 * 12 / 5000))}
    assert control.coefficient("any prompt") == control.coefficients[""]
    assert with_kl_coefficients(rows, None) == rows


def test_a_step_that_is_not_finite_moves_no_coefficient() -> None:
    rows, results = make_step(2)
    not_finite = replace(
        results[0],
        old_logprobs=[np.full_like(old_T, np.nan) for old_T in results[0].old_logprobs],
        skipped="not finite",
    )
    control, expected = ComplexityControl(0.1), ComplexityControl(0.1)
    control.update(rows, [not_finite, *results[1:]], "k3")
    expected.update(rows, results[1:], "k3")
    assert control.to_state() == expected.to_state()


def test_a_column_names_the_channels() -> None:
    prompts = [Prompt(str(i), "", "", columns={"role": f"r{i % 2}"}) for i in range(4)]
    control = ComplexityControl(0.1, column="role")
    control.set_prompts(prompts)
    assert [control.channel_of(prompt.id) for prompt in prompts] == ["r0", "r1", "r0", "r1"]
    with pytest.raises(PoiseError, match="problem '9' has no column 'role'"):
        control.set_prompts([Prompt("9", "", "", columns={"role": None})])


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["update.kl_control=adaptive"], r"coefficient of a KL in the loss: set update\.kl=0\.01"),
        (["update.kl=0.1", 'update.kl_settings=["target=1"]'], r"'fixed' has no settings"),
        (
            ["update.kl=0.1", "update.kl_control=adaptive", 'update.kl_settings=["column=a"]'],
            r"update\.kl_settings: unknown setting of adaptive 'column'",
        ),
        (
            ["update.kl=0.1", "update.kl_control=complexity", 'update.kl_settings=["target=0"]'],
            r"target must be above 0",
        ),
        (
            ["update.kl=0.1", "update.kl_control=complexity", 'update.kl_settings=["target=nan"]'],
            r"update\.kl_settings: target is a number, not 'nan'",
        ),
        (["credit.weights=crpo"], r"crpo compares responses.*sample\.anchors=1"),
    ],
)
def test_contradictions_are_one_line(sets: list[str], message: str) -> None:
    with pytest.raises(PoiseError, match=message):
        config_from_tables({}, sets)


# -- a run of CRPO -------------------------------------------------------------------------------

CRPO = [
    "loop.iterations=2", "loop.checkpoint_every=1", "sample.prompts=7", "sample.group_size=4",
    "sample.anchors=1", "sample.max_new_tokens=8", "task.name=role_play", "task.levels=[1]",
    "task.size=7", "batch.steps=2", "balance.tau=0", "balance.target=0",
    "evaluate.prompts=0", "verify.name=last_number",
    'verify.also=["style"]', "credit.mixture=decoupled", "credit.weights=crpo",
    "update.surrogate=gspo", "update.lr=1e-3", "update.kl=0.01", "update.kl_control=complexity",
    'update.kl_settings=["column=role", "horizon=20"]', "store.report=false",
]  # fmt: skip


class StopAfterOne(RunObserver):
    def on_iteration(self, record: dict) -> None:
        if record["iteration"] == 1:
            raise KeyboardInterrupt


def test_a_run_of_crpo_and_the_same_run_interrupted(tmp_path: Path) -> None:
    config = load_config("demo", [*CRPO, *small_model(tmp_path)])
    whole = train(config, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "cut", observer=StopAfterOne())
    cut = train(config, tmp_path / "cut", resume=True)
    name = f"checkpoints/{checkpoint.folder_name(2)}/model.safetensors"
    weights, resumed = load_file(whole.path / name), load_file(cut.path / name)
    assert all(np.array_equal(weights[tensor], resumed[tensor]) for tensor in weights)
    lines = whole.read("metrics")
    assert lines == [
        {**line, **{k: v for k, v in lines[i].items() if k.endswith(("seconds", "second"))}}
        for i, line in enumerate(cut.read("metrics"))
    ]
    assert lines[0]["kl_coefficient"] == pytest.approx(0.01)
    # No KL yet, so that every error is -0.2: 4 responses of a role, horizon 20.
    assert lines[1]["kl_coefficient"] < lines[0]["kl_coefficient"]
    assert lines[0]["reward_style"] >= 0

    # A KL is measured from the model's own files, so these must not change under a run.
    file = tmp_path / "model" / "model.safetensors"
    save_file({name: weights + 0.01 for name, weights in load_file(file).items()}, file)
    longer = load_config("demo", [*CRPO, *small_model(tmp_path), "loop.iterations=3"])
    with pytest.raises(PoiseError, match=f"model '{file.parent}' has changed since the run began"):
        train(longer, tmp_path / "cut", resume=True)
