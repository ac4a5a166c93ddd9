"""What an environment said in between is read by every pass, and trained and counted by none."""

from __future__ import annotations

from dataclasses import replace

import episodes
import numpy as np
import pytest
import tiny
import torch

from counterpoise.config import UpdateConfig
from counterpoise.microscope.batch_tokens import take_snapshot
from counterpoise.microscope.monitor import Monitor
from counterpoise.model.attention import PackedAttention
from counterpoise.model.packing import pack
from counterpoise.model.scoring import forward_packed, micro_batches, score_logprobs, score_tokens
from counterpoise.types import Row, Turn
from counterpoise.update.graphs.padding import pad_rows
from counterpoise.update.optimizer import Optimizer
from counterpoise.update.step import StepSettings, accumulate_gradient, take_step
from counterpoise.variants import AGGREGATIONS

MAX_NEW = 24


def test_the_example_of_the_docstring() -> None:
    told = [(2, np.array([50, 51], dtype=np.int32))]
    response = np.array([10, 11, 12], dtype=np.int32)
    prompt = np.array([1, 2, 3], dtype=np.int32)
    found = pack([prompt, prompt], [response, response], torch.device("cpu"), [told, []])
    assert found.tokens_N.tolist() == [1, 2, 3, 10, 11, 50, 51, 10, 11]
    assert found.positions_N.tolist() == [0, 1, 2, 3, 4, 5, 6, 3, 4]
    assert found.predictors_M.tolist() == [2, 3, 6, 2, 7, 8]
    assert found.targets_M.tolist() == [10, 11, 12, 10, 11, 12]
    assert found.lengths == (3, 3)
    assert found.longest == 8


def test_log_probabilities_and_entropies_are_those_of_the_whole_text() -> None:
    policy, rows = tiny.policy(), episodes.rows()
    found = score_tokens(policy, rows, 0.7, 40)
    assert any(row.content.num_observation_tokens for row in rows)
    for row, logprobs_T, entropies_T in zip(rows, found.logprobs, found.entropies, strict=True):
        with torch.no_grad():
            expected = episodes.logprobs(policy, row, 0.7)
            p = (episodes.logits(policy, row)[0] / 0.7).softmax(-1)
        np.testing.assert_allclose(logprobs_T, expected, atol=2e-5)
        np.testing.assert_allclose(entropies_T, -(p * p.log()).sum(-1), atol=2e-5)
        assert len(logprobs_T) == row.num_tokens


def literal(policy, rows: list[Row], aggregate: str) -> torch.Tensor:
    """-sum c_i A_i log pi over trained tokens, token by token as the formula stands."""
    policy.model.zero_grad(set_to_none=True)
    counts = [sum(episodes.as_read(row)[1]) for row in rows]
    total = sum(counts)
    of_group = {r.group: sum(n for n, x in zip(counts, rows, strict=True) if x.group == r.group)
                for r in rows}  # fmt: skip
    loss = torch.zeros(())
    for row, n in zip(rows, counts, strict=True):
        c = {
            "token_mean": 1 / total,
            "group_token_mean": 1 / (len(of_group) * of_group[row.group]),
            "sequence_mean": 1 / (len(rows) * n),
            "constant": 1 / (len(rows) * MAX_NEW),
        }[aggregate]
        loss = loss - c * row.advantage * episodes.logprobs(policy, row).sum()
    loss.backward()
    return torch.cat([p.grad.flatten() for p in policy.model.parameters()])


@pytest.mark.parametrize("aggregate", AGGREGATIONS)
@pytest.mark.parametrize("micro_tokens", [30, 10_000])
def test_the_gradient_is_that_of_trained_tokens_alone(aggregate: str, micro_tokens: int) -> None:
    policy, rows = tiny.policy(), episodes.rows()
    config = UpdateConfig(surrogate="reinforce", aggregate=aggregate, micro_tokens=micro_tokens)
    expected = literal(policy, rows, aggregate)
    policy.model.zero_grad(set_to_none=True)
    result = accumulate_gradient(
        policy, rows, StepSettings(config, temperature=1.0, max_new_tokens=MAX_NEW)
    )
    ours = torch.cat([p.grad.flatten() for p in policy.model.parameters()])
    assert float((ours - expected).norm() / expected.norm()) < 1e-5
    assert result.tokens == sum(len(row.content.response_tokens) for row in rows)
    for i, row in enumerate(rows):
        assert len(result.entropies[i]) == len(result.pulls[i]) == row.num_tokens
        np.testing.assert_allclose(
            result.pulls[i], row.advantage * result.coefficients[i], rtol=1e-4, atol=1e-8
        )


def test_what_was_told_matters_and_what_comes_after_the_end_does_not() -> None:
    policy, row = tiny.policy(), episodes.told_row(tiny.rows(shortest=9)[0], 0)
    turns = row.content.turns
    (heard,) = score_logprobs(policy, [row], 1.0, 1000)
    other = turns[-1].observation + 1
    changed = [*turns[:-1], Turn(turns[-1].start, other, (0, 0), "")]
    unheard = _with_turns(row, tuple(changed))
    (moved,) = score_logprobs(policy, [unheard], 1.0, 1000)
    start = turns[-1].start
    np.testing.assert_array_equal(moved[:start], heard[:start])
    assert (np.abs(moved[start:] - heard[start:]) > 1e-4).any()
    late = _with_turns(row, (*turns, Turn(row.num_tokens, other, (0, 0), "")))
    assert late.num_tokens_read == row.num_tokens_read
    np.testing.assert_array_equal(score_logprobs(policy, [late], 1.0, 1000)[0], heard)


def _with_turns(row: Row, turns: tuple[Turn, ...]) -> Row:
    return replace(row, rollout=replace(row.content, turns=turns))


def test_passes_are_cut_by_what_they_read() -> None:
    rows = episodes.rows(groups=4, shortest=6)
    assert all(
        row.num_tokens_read == row.num_tokens + row.content.num_observation_tokens for row in rows
    )
    for batch in micro_batches(rows, 60):
        prompts = {rows[i].group: len(rows[i].content.prompt_tokens) for i in batch}
        tokens = sum(rows[i].num_tokens_read for i in batch) + sum(prompts.values())
        assert len(batch) == 1 or tokens <= 60


def test_rows_up_to_a_size_of_captured_passes() -> None:
    policy, rows = tiny.policy(), sorted(episodes.rows(), key=lambda row: row.group)
    filled = pad_rows(rows)
    policy.decoder.reserve(2 * filled.size.longest)
    with torch.no_grad():
        found = forward_packed(policy, filled.packing, PackedAttention(filled.packing), 1.0)
    alone = np.concatenate(score_logprobs(policy, rows, 1.0, 10_000))
    np.testing.assert_allclose(found.logprobs_M[: filled.num_real_tokens], alone, atol=2e-5)
    read = sum(length for _, length in filled.packing.responses)
    assert read == filled.size.response_tokens


def test_the_microscope_sees_trained_tokens_only() -> None:
    policy, rows = tiny.policy(), episodes.rows()
    seen = take_snapshot(policy, rows)
    own = np.concatenate([row.content.response_tokens for row in rows])
    np.testing.assert_array_equal(seen.tokens, own)
    with torch.no_grad():
        expected = torch.cat([episodes.logprobs(policy, row) for row in rows])
    np.testing.assert_allclose(seen.logprobs, expected, atol=2e-5)

    monitor = Monitor(1.0, 10_000, {rows[0].group})
    optimizer = Optimizer(policy.model, config := UpdateConfig(lr=1e-3, optimizer="sgd"))
    before = score_logprobs(policy, rows, 1.0, 10_000)
    take_step(
        policy,
        optimizer,
        rows,
        StepSettings(config, temperature=1.0, max_new_tokens=MAX_NEW),
        observer=monitor,
    )
    (view,) = monitor.measurements
    after = score_logprobs(policy, rows, 1.0, 10_000)
    assert view.lengths == tuple(row.num_tokens for row in rows)
    np.testing.assert_allclose(
        view.displacement, np.concatenate(after) - np.concatenate(before), atol=2e-5
    )
    assert len(view.coupling.total) == len(own)
