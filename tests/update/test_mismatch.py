"""Sampler against trainer: counted by hand, over the rows where both are of the same weights."""

from __future__ import annotations

import math

import numpy as np
import pytest

from counterpoise.types import Floats, Rollout, Row, StepResult
from counterpoise.update.importance import sampler_mismatch

NOTHING = {"sampler_mismatch": None, "sampler_mismatch_max": None, "sampler_ratio_std": None}


def numbers(*values: float) -> Floats:
    return np.array(values, dtype=np.float32)


def row(sampled: Floats, scored: Floats | None = None, born: int = 3) -> Row:
    tokens = np.zeros(len(sampled), dtype=np.int32)
    rollout = Rollout("p", "", "", "", 1.0, tokens[:1], tokens, sampled)
    return Row("p", 1.0, len(sampled), rollout=rollout, trainer_logprobs_T=scored, born=born)


def step(rows: tuple[int, ...], *logprobs: Floats) -> StepResult:
    return StepResult(
        rows=rows, logprobs=logprobs, old_logprobs=logprobs, advantages=logprobs,
        entropies=logprobs, pulls=logprobs, coefficients=numbers(), loss=0.0, grad_norm=1.0,
        clipped_share=0.0, tokens=1,
    )  # fmt: skip


def test_first_step_by_its_own_pass_later_ones_by_their_scores() -> None:
    batch = [
        row(numbers(-1.0, -2.0)),
        row(numbers(-1.0), scored=numbers(-0.5)),
    ]
    results = [step((0,), numbers(-1.25, -2.0)), step((1,), numbers(-9.0))]
    found = sampler_mismatch(batch, results, iteration=3)
    assert found["sampler_mismatch"] == pytest.approx((0.25 + 0.0 + 0.5) / 3)
    assert found["sampler_mismatch_max"] == pytest.approx(0.5)
    ratios = [math.exp(-0.25), 1.0, math.exp(0.5)]
    assert found["sampler_ratio_std"] == pytest.approx(np.std(ratios))


def test_rows_of_other_weights_are_left_out() -> None:
    """Without scores: a row that waited in the buffer, and one of a later step."""
    batch = [row(numbers(-1.0), born=2), row(numbers(-1.0)), row(numbers(-1.0))]
    results = [step(()), step((0, 1), numbers(-5.0), numbers(-1.5)), step((2,), numbers(-5.0))]
    assert sampler_mismatch(batch, results, iteration=3)["sampler_mismatch"] == pytest.approx(0.5)


def test_where_nothing_is_known() -> None:
    assert sampler_mismatch([], [], iteration=3) == NOTHING
    assert sampler_mismatch([row(numbers(-1.0))], [step(())], iteration=3) == NOTHING
    lost = step((0,), numbers(math.nan))  # a step that was not finite
    assert sampler_mismatch([row(numbers(-1.0))], [lost], iteration=3) == NOTHING
