"""The gradient of a step: against autograd on a plain padded forward, and under every way of
cutting the step into micro-batches."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tiny
import torch
from torch import Tensor

from counterpoise.config import UpdateConfig
from counterpoise.model.load import Policy
from counterpoise.types import Row
from counterpoise.update.step import StepSettings, accumulate_gradient
from counterpoise.variants import AGGREGATIONS

MAX_NEW = 24


def gradient(policy: Policy, rows: list[Row], config: UpdateConfig, temperature: float = 1.0):
    policy.model.zero_grad(set_to_none=True)
    result = accumulate_gradient(
        policy, rows, StepSettings(config, temperature=temperature, max_new_tokens=MAX_NEW)
    )
    return torch.cat([p.grad.flatten() for p in policy.model.parameters()]), result


def clipped(ratio: Tensor, A: Tensor, low: float, high: float) -> Tensor:
    return -torch.minimum(ratio * A, ratio.clamp(low, high) * A)


# The surrogates written once more, of one row: (logprobs, old, A, low, high) -> losses. They show
# that packing, masks and averages are right; test_surrogates.py has the values of every surrogate.
FORMULAS: dict[str, Callable[..., Tensor]] = {
    "grpo": lambda new, old, A, low, high: clipped((new - old).exp(), A, low, high),
    "gspo": lambda new, old, A, low, high: clipped(
        (new - old).detach().mean().exp() * (new - new.detach()).exp(), A, low, high
    ),
    "cispo": lambda new, old, A, low, high: -(new - old).exp().detach().clamp(low, high) * A * new,
    "reinforce": lambda new, old, A, low, high: -A * new,
    "unclipped": lambda new, old, A, low, high: -(new - old).exp() * A,
}


def plain_gradient(policy: Policy, rows: list[Row], config: UpdateConfig, temperature: float = 1.0):
    """Right-padded, transformers' own forward, whole logits, one backward: nothing of ours."""
    policy.model.zero_grad(set_to_none=True)
    sequences = [np.concatenate((r.content.prompt_tokens, r.content.response_tokens)) for r in rows]
    longest = max(map(len, sequences))
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    mask = torch.zeros(len(rows), longest, dtype=torch.long)
    for i, sequence in enumerate(sequences):
        ids[i, : len(sequence)] = torch.from_numpy(sequence.astype(np.int64))
        mask[i, : len(sequence)] = 1
    logits = policy.model(input_ids=ids, attention_mask=mask).logits / temperature
    total_tokens = sum(r.num_tokens for r in rows)
    group_tokens = {r.group: sum(x.num_tokens for x in rows if x.group == r.group) for r in rows}
    loss = torch.zeros(())
    for i, row in enumerate(rows):
        start, length = len(row.content.prompt_tokens), row.num_tokens
        logprobs = logits[i, start - 1 : start + length - 1].log_softmax(-1)
        logprobs = logprobs.gather(1, ids[i, start : start + length, None])[:, 0]
        old, A = torch.from_numpy(row.old_logprobs), torch.from_numpy(row.advantages_T)
        low, high = 1 - config.clip_low, 1 + config.clip_high
        token_loss = FORMULAS[config.surrogate](logprobs, old, A, low, high)
        scale = {
            "token_mean": 1 / total_tokens,
            "group_token_mean": 1 / (len(group_tokens) * group_tokens[row.group]),
            "sequence_mean": 1 / (len(rows) * length),
            "constant": 1 / (len(rows) * MAX_NEW),
        }[config.aggregate]
        loss = loss + scale * token_loss.sum()
    loss.backward()
    return torch.cat([p.grad.flatten() for p in policy.model.parameters()]), float(loss.detach())


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("aggregate", AGGREGATIONS)
@pytest.mark.parametrize("surrogate", FORMULAS)
def test_equals_autograd_on_a_padded_forward(surrogate: str, aggregate: str) -> None:
    policy, rows = tiny.policy(), tiny.rows()
    config = UpdateConfig(surrogate=surrogate, aggregate=aggregate)
    ours, result = gradient(policy, rows, config)
    theirs, loss = plain_gradient(policy, rows, config)
    assert relative(ours, theirs) < 1e-5
    assert result.loss == pytest.approx(loss, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
def test_every_architecture(architecture: str, tied: bool) -> None:
    policy, rows = tiny.policy(architecture, tie_word_embeddings=tied), tiny.rows(seed=1)
    ours, _ = gradient(policy, rows, UpdateConfig(), temperature=0.7)
    theirs, _ = plain_gradient(policy, rows, UpdateConfig(), temperature=0.7)
    assert relative(ours, theirs) < 1e-5


@pytest.mark.parametrize("micro_tokens", [1, 20, 37, 64, 10_000])
@pytest.mark.parametrize("surrogate", ["grpo", "gspo"])
def test_micro_batches_change_nothing(micro_tokens: int, surrogate: str) -> None:
    policy, rows = tiny.policy(), tiny.rows(groups=4, size=5, seed=2)
    whole, result = gradient(policy, rows, UpdateConfig(surrogate=surrogate))
    cut, cut_result = gradient(
        policy, rows, UpdateConfig(surrogate=surrogate, micro_tokens=micro_tokens)
    )
    assert relative(cut, whole) < 1e-5
    assert cut_result.loss == pytest.approx(result.loss, rel=1e-4, abs=1e-7)
    assert cut_result.clipped_share == result.clipped_share
    for a, b in zip(cut_result.logprobs, result.logprobs, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_order_of_rows_changes_nothing() -> None:
    policy, rows = tiny.policy(), tiny.rows(seed=3)
    forwards, _ = gradient(policy, rows, UpdateConfig())
    backwards, _ = gradient(policy, rows[::-1], UpdateConfig())
    assert relative(backwards, forwards) < 1e-5


def test_rows_without_signal_count_in_the_denominator_and_nowhere_else() -> None:
    from dataclasses import replace

    policy, rows = tiny.policy(), tiny.rows(seed=4)
    silent = [replace(r, group="z", advantage=0.0) for r in tiny.rows(groups=1, seed=9)]
    alone, _ = gradient(policy, rows, UpdateConfig())
    together, result = gradient(policy, rows + silent, UpdateConfig())
    share = sum(r.num_tokens for r in rows) / sum(r.num_tokens for r in rows + silent)
    assert relative(together, alone * share) < 1e-5
    assert result.rows == tuple(range(len(rows)))
    assert result.tokens == sum(r.num_tokens for r in rows + silent)


def test_the_step_returns_what_the_loss_used() -> None:
    policy, rows = tiny.policy(), tiny.rows(seed=5)
    _, result = gradient(policy, rows, UpdateConfig(surrogate="reinforce"))
    loss = sum(
        -c * float((a * lp).sum())
        for c, a, lp in zip(result.coefficients, result.advantages, result.logprobs, strict=True)
    )
    assert loss == pytest.approx(result.loss, rel=1e-4)
