"""The update alone: ours, a plain padded one over transformers' own forward, and the floor.

    share of the matrix rate = model FLOP / (seconds * measured matrix rate)

Model FLOP are those of `floors.update_cost`: of the tokens in our pass (every prompt once), without
recomputation. The peer computes a prompt for each of its rows; its own share counts that, and not
its padding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from counterpoise.config import UpdateConfig
from counterpoise.lab.speed import workload as work
from counterpoise.lab.speed.clock import PeakMemory, release, time_in_turns
from counterpoise.lab.speed.floors import sizes_of, update_cost, update_floor
from counterpoise.lab.speed.machine_sizes import SpeedSetup, UpdateCase
from counterpoise.lab.speed.tables import Bar, MeasurementTable, format_gigabytes, format_seconds
from counterpoise.model.load import Policy
from counterpoise.types import Row
from counterpoise.update.graphs.passes import passes_of
from counterpoise.update.optimizer import Optimizer
from counterpoise.update.step import take_step

UPDATE_BAR = 0.25  # seconds, 512 rows of 128 tokens of SmolLM2-135M on an H200
SHARE_BAR = 40.0  # percent of the matrix rate, Qwen3-1.7B, 256 rows of about 1,000 tokens
PEER_TOKENS = 32768  # of one forward of the peer, padding included; halved where it does not fit


def native_step(policy: Policy, rows: Sequence[Row], config: UpdateConfig) -> Callable[[], None]:
    """A step, ready to be taken again and again."""
    optimizer, passes = Optimizer(policy.model, config), passes_of(config)
    longest = max(row.num_tokens for row in rows)

    def step() -> None:
        result = take_step(
            policy, optimizer, rows, config, temperature=1.0, max_new_tokens=longest,
            passes=passes,
        )  # fmt: skip
        if result.skipped:
            raise AssertionError(f"no update was made: {result.skipped}")

    return step


def padded_step(
    policy: Policy,
    optimizer: Optimizer | None,
    rows: Sequence[Row],
    config: UpdateConfig,
    tokens: int = PEER_TOKENS,
) -> None:
    """The same step by transformers' forward: rows padded to the longest, prompts repeated.

    Without an optimizer the gradient stays in the weights.
    """
    longest = max(len(r.content.prompt_tokens) + r.num_tokens for r in rows)
    at_once = max(1, tokens // longest)
    total = sum(row.num_tokens for row in rows)
    if optimizer:
        optimizer.zero_grad()
    for start in range(0, len(rows), at_once):
        part = rows[start : start + at_once]
        logprobs, old, advantages = _padded(policy, part)
        ratio = torch.exp(logprobs - old)
        clipped = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
        (-torch.minimum(ratio * advantages, clipped * advantages).sum() / total).backward()
    if optimizer:
        optimizer.step(optimizer.grad_norm())
        optimizer.zero_grad()


def _padded(policy: Policy, rows: Sequence[Row]) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities, old ones and advantages [R, T]; a padded place has advantage 0."""
    S = max(len(row.content.prompt_tokens) for row in rows)
    T = max(row.num_tokens for row in rows)
    ids = np.zeros((len(rows), S + T), dtype=np.int64)
    mask = np.zeros_like(ids)
    old, advantages = (np.zeros((len(rows), T), dtype=np.float32) for _ in range(2))
    for i, row in enumerate(rows):
        prompt, response = row.content.prompt_tokens, row.content.response_tokens
        first, last = S - len(prompt), S + len(response)
        ids[i, first:last] = np.concatenate((prompt, response))
        mask[i, first:last] = 1
        old[i, : len(response)] = row.old_logprobs
        advantages[i, : len(response)] = row.advantages_T
    tokens, attention, old_RT, advantages_RT = (
        torch.from_numpy(x).to(policy.device) for x in (ids, mask, old, advantages)
    )
    model: Any = policy.model
    positions = (attention.cumsum(dim=1) - 1).clamp(min=0)
    logits = model(
        input_ids=tokens, attention_mask=attention, position_ids=positions, use_cache=False,
        logits_to_keep=T + 1,
    ).logits[:, :-1]  # fmt: skip
    targets = tokens[:, S:]
    losses = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none")
    return -losses.view_as(targets), old_RT, advantages_RT


def profile_workload(setup: SpeedSetup, folder: Path) -> Callable[[], object]:
    """One step of the last case: what `--profile` looks at."""
    case = setup.plan.update[-1]
    policy = work.load_endless_policy(case.model)
    rows = _rows(policy, case)[: case.peer_groups * case.group_size]
    return native_step(policy, rows, UpdateConfig(lr=work.LEARNING_RATE, **setup.update_options))


def measure(setup: SpeedSetup) -> MeasurementTable:
    made = []
    for case in setup.plan.update:
        made.append(_case(setup, case))
        release(setup.device)
    return MeasurementTable(
        title=f"update: one optimizer step; matrix rate {setup.rates.matrix / 1e12:.3g} TFLOP/s",
        columns=(
            "model", "rows", "tokens", "ours", "spread", "floor", "tokens/s", "of matrix rate",
            "peak", "padded: tokens/s", "of matrix rate", "ours is",
        ),
        rows=[row for row, _, _ in made],
        bars=[bar for _, bars, _ in made for bar in bars],
        notes=[
            "tokens: of all rows, each with its prompt; the peer may be given a part of the rows"
        ],
        data={"update": [data for _, _, data in made]},
    )  # fmt: skip


def _rows(policy: Policy, case: UpdateCase) -> list[Row]:
    vocabulary = len(policy.decoder.unembedding)
    return work.make_rows(
        vocabulary, case.groups, case.group_size, case.prompt_tokens, case.response_tokens
    )


def _tokens(rows: Sequence[Row]) -> int:
    return sum(len(row.content.prompt_tokens) + row.num_tokens for row in rows)


def _case(setup: SpeedSetup, case: UpdateCase) -> tuple[list[str], list[Bar], dict[str, Any]]:
    config = UpdateConfig(lr=work.LEARNING_RATE, **setup.update_options)
    with PeakMemory(setup.device) as peak:
        policy = work.load_endless_policy(case.model)
        rows = _rows(policy, case)
        step = native_step(policy, rows, config)
        for _ in range(3):  # loads and compiles; captures; replays
            step()
    some = rows[: case.peer_groups * case.group_size]
    padded = _fitting(setup, policy, some, config)
    works = {"ours": step} | ({"plain": padded} if padded else {})
    timings = time_in_turns(works, setup.device, case.repeats, warm_up=0)
    timing, peer = timings["ours"], timings.get("plain")
    cost, passed = update_cost(sizes_of(policy), work.group_lengths(rows))
    share = 100 * cost.flop / timing.median / setup.rates.matrix
    setup.log(f"update, {case.model}: {timing.median:.3f} s, {share:.0f} % of the matrix rate")
    alone = [(S, [T]) for S, responses in work.group_lengths(some) for T in responses]
    peer_flop = update_cost(sizes_of(policy), alone)[0].flop
    peer_rate = _tokens(some) / peer.median if peer else 0.0
    peer_share = 100 * peer_flop / peer.median / setup.rates.matrix if peer else 0.0
    rate = _tokens(rows) / timing.median
    floor = update_floor(cost, setup.rates)
    row = [
        case.model,
        f"{len(rows):,}",
        f"{_tokens(rows):,}",
        format_seconds(timing.median),
        f"{100 * timing.spread:.0f} %",
        format_seconds(floor),
        f"{rate:,.0f}",
        f"{share:.1f} %",
        format_gigabytes(peak.reserved),
        f"{peer_rate:,.0f}" if peer else "-",
        f"{peer_share:.1f} %" if peer else "-",
        f"{rate / peer_rate:.1f}x" if peer else "-",
    ]
    bars = []
    if setup.cuda and case.bar == "seconds":
        bars.append(Bar(f"update of {len(rows)} rows", timing.median, UPDATE_BAR, "s"))
    if setup.cuda and case.bar == "utilization":
        bars.append(Bar(f"update of {case.model}", share, SHARE_BAR, "%", at_least=True))
    data = {"model": case.model, "rows": len(rows), "tokens": _tokens(rows), "pass_tokens": passed}
    data |= {"ours": timing.data(), "flop": cost.flop, "floor": floor, "share_percent": share}
    data |= {"plain": peer.data() if peer else None, "plain_tokens_per_second": peer_rate}
    return row, bars, data | {"tokens_per_second": rate, **peak.data()}


def _fitting(
    setup: SpeedSetup,
    policy: Policy,
    rows: Sequence[Row],
    config: UpdateConfig,
) -> Callable[[], None] | None:
    """The padded step with the largest micro-batch that fits, warm; None when a row does not."""
    optimizer, tokens = Optimizer(policy.model, config), PEER_TOKENS
    while tokens:
        step = partial(padded_step, policy, optimizer, rows, config, tokens)
        try:
            step()
        except torch.OutOfMemoryError:
            tokens //= 2
        else:
            return step
        optimizer.zero_grad()
        release(setup.device)
    return None
