"""Truncated importance weights: literal values, their part in the gradient, where they are 1."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from small_run import checksum_reward

from counterpoise.config import UpdateConfig
from counterpoise.config.load import config_from_tables, load_config
from counterpoise.errors import PoiseError
from counterpoise.loop import train
from counterpoise.model.load import Policy
from counterpoise.model.scoring import score_logprobs
from counterpoise.types import Floats, Row, StepResult
from counterpoise.update.step import StepSettings, accumulate_gradient
from counterpoise.variants import IMPORTANCE_WEIGHTS

KINDS = ("off", "token", "sequence")


def weights(kind: str, rhos: Sequence[float], rows: Sequence[int], cap: float) -> list[float]:
    ratio = IMPORTANCE_WEIGHTS.load(kind)(
        torch.tensor(rhos, dtype=torch.float64).log(), torch.tensor(rows), max(rows) + 1
    )
    found: list[float] = ratio.clamp(max=cap).tolist()
    return found


@pytest.mark.parametrize(
    ("kind", "cap", "expected"),
    [
        ("off", 2.0, [1, 1, 1, 1, 1]),
        ("token", 2.0, [0.5, 2.0, 1.5, 2.0, 1.0]),
        ("token", math.inf, [0.5, 3.0, 1.5, 4.0, 1.0]),
        ("sequence", 2.0, [1.5, 1.5, 2.0, 2.0, 2.0]),
        ("sequence", math.inf, [1.5, 1.5, 6.0, 6.0, 6.0]),
    ],
)
def test_by_hand(kind: str, cap: float, expected: list[float]) -> None:
    found = weights(kind, [0.5, 3.0, 1.5, 4.0, 1.0], [0, 0, 1, 1, 1], cap)
    assert found == pytest.approx(expected)


def gradient(policy: Policy) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in policy.model.parameters() if p.grad is not None])


def step(
    rows: Sequence[Row], config: UpdateConfig, on_policy: bool = False
) -> tuple[StepResult, torch.Tensor]:
    policy = tiny.policy()
    result = accumulate_gradient(
        policy, rows, StepSettings(config, temperature=0.9, max_new_tokens=17), on_policy=on_policy
    )
    return result, gradient(policy)


def mismatched(spread: float = 0.8) -> list[Row]:
    """Rows scored by the trainer; the sampler's log-probabilities are off by normal noise."""
    rows, rng = tiny.rows(seed=4), np.random.default_rng(4)
    scored = score_logprobs(tiny.policy(), rows, 0.9, 10_000)
    made = []
    for row, old_T in zip(rows, scored, strict=True):
        noise_T = spread * rng.normal(size=len(old_T)).astype(np.float32)
        rollout = replace(row.content, sampled_logprobs=old_T - noise_T)
        made.append(replace(row, rollout=rollout, trainer_logprobs_T=old_T))
    return made


def literal(kind: str, cap: float) -> Callable[[Row], Floats]:
    """A row's weights, token by token."""

    def of(row: Row) -> Floats:
        assert row.trainer_logprobs_T is not None
        rho = [
            math.exp(float(a) - float(b))
            for a, b in zip(row.trainer_logprobs_T, row.content.sampled_logprobs, strict=True)
        ]
        whole = math.prod(rho)
        each = [min(whole if kind == "sequence" else r, cap) for r in rho]
        return np.array([1.0] * len(rho) if kind == "off" else each, dtype=np.float32)

    return of


@pytest.mark.parametrize("surrogate", ["grpo", "cispo", "reinforce"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cap", [1.2, 2.0])
def test_it_is_the_gradient_of_weighted_advantages(kind: str, cap: float, surrogate: str) -> None:
    """Surrogates are linear in the advantage: w L(A) = L(w A)."""
    rows, of = mismatched(), literal(kind, cap)
    by_hand = [replace(row, weights_T=of(row)) for row in rows]
    config = UpdateConfig(surrogate=surrogate)
    _, expected = step(by_hand, config)
    result, found = step(rows, replace(config, importance=kind, importance_cap=cap))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    of_all = np.concatenate([of(row) for row in rows])
    assert result.capped_share == pytest.approx(float((of_all >= np.float32(cap)).mean()))
    assert [x.tolist() for x in result.advantages] == [row.advantages_T.tolist() for row in rows]


@pytest.mark.parametrize("kind", ["token", "sequence"])
@pytest.mark.parametrize("micro_tokens", [20, 60])
def test_micro_batches_do_not_matter(kind: str, micro_tokens: int) -> None:
    rows, config = mismatched(), UpdateConfig(importance=kind)
    whole, expected = step(rows, config)
    cut, found = step(rows, replace(config, micro_tokens=micro_tokens))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    assert cut.capped_share == whole.capped_share


@pytest.mark.parametrize("kind", ["token", "sequence"])
def test_without_mismatch_nothing_changes(kind: str) -> None:
    rows = mismatched(spread=0.0)
    _, expected = step(rows, UpdateConfig())
    result, found = step(rows, UpdateConfig(importance=kind))
    assert torch.equal(found, expected)
    assert result.capped_share == 0


@pytest.mark.parametrize("kind", ["token", "sequence"])
def test_old_logprobs_of_the_pass_itself(kind: str) -> None:
    """Rows of a first step are not scored: the weight comes from the step's own pass."""
    scored = mismatched()
    rows = [replace(row, trainer_logprobs_T=None) for row in scored]
    config = UpdateConfig(importance=kind)
    _, expected = step(scored, config)
    result, found = step(rows, config, on_policy=True)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    assert 0 < result.capped_share < 1


def test_the_pull_holds_the_weight() -> None:
    """What the microscope sees is what the gradient saw."""
    rows = mismatched()
    plain, _ = step(rows, UpdateConfig(surrogate="reinforce"))
    weighed, _ = step(rows, UpdateConfig(surrogate="reinforce", importance="token"))
    of = literal("token", 2.0)
    for pull, base, row in zip(weighed.pulls, plain.pulls, rows, strict=True):
        np.testing.assert_allclose(pull, base * of(row), rtol=1e-4, atol=1e-8)


RUN = [
    "loop.iterations=2", "sample.prompts=4", "sample.group_size=4", "batch.steps=2",
    "balance.tau=0", "task.size=16", "evaluate.prompts=0", "monitor.every=0", "update.lr=1e-3",
    "store.report=false", "store.tokens=false", "task.heldout=4", "sample.max_new_tokens=24",
]  # fmt: skip


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The metrics of a run without importance weights."""
    folder = tmp_path_factory.mktemp("plain")
    config = load_config("demo", [*RUN, *checksum_reward(folder)])
    return train(config, folder / "run").read("metrics")


@pytest.mark.parametrize("kind", ["token", "sequence"])
def test_with_the_native_sampler_it_is_rounding(
    kind: str, plain: list[dict[str, Any]], tmp_path: Path
) -> None:
    """In float32 our sampler is the trainer within 1e-4, and so are the losses."""
    config = load_config("demo", [*RUN, *checksum_reward(tmp_path), f"update.importance={kind}"])
    weighed = train(config, tmp_path / kind).read("metrics")
    for one, other in zip(plain, weighed, strict=True):
        assert other["sampler_mismatch_max"] < 1e-4
        assert other["capped_share"] == 0
        assert other["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-3)
        assert other["success"] == one["success"]


def test_the_ratio_is_not_corrected_twice() -> None:
    with pytest.raises(PoiseError, match=r"corrects for the sampler already; set update\.import"):
        config_from_tables({"update": {"importance": "token", "old_logprobs": "sampler"}})
