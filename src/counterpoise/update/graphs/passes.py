"""Passes in a few sizes, captured as CUDA graphs and fed anew.

The kernels of a pass over a small model are shorter than the time the host takes to launch them:
for SmolLM2-135M 50 to 80 ms a pass, and 45 on an H200. So a pass is filled up to one of a few sizes
(`update/graphs/padding.py`). Passes of one size are then the same work at the same addresses: one
is captured, and all later ones are replayed (`update/graphs/replay.py`). The very first pass of a
run is not: it runs as it comes and compiles what all need.

Where a layer takes longer than its launches (`LAUNCH_BOUND`) nothing is gained, and a pass runs as
it comes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from counterpoise.config import UpdateConfig
from counterpoise.model.attention import PackedAttention
from counterpoise.model.flash import PackedSegments, supports_head_dim
from counterpoise.model.kernels import is_half_on_gpu
from counterpoise.model.load import Policy
from counterpoise.model.packing import Packing
from counterpoise.model.reading_passes import given_for_responses
from counterpoise.model.scoring import ForwardOutputs, forward_packed
from counterpoise.model.transfer import to_device
from counterpoise.types import Row
from counterpoise.update.graphs.padding import (
    PaddedRows,
    PassSize,
    loss_arrays,
    packing_arrays,
    pad_rows,
)
from counterpoise.update.graphs.replay import GraphCache, NamedTensors
from counterpoise.update.passes import (
    EAGER,
    Passes,
    PassInputs,
    PassOutputs,
    PassTensors,
    compute_loss,
)

Result = TypeVar("Result")

LAUNCH_BOUND = 1.5e12  # FLOP of a layer in a pass, forward and backward


class CapturedPasses:
    """`Passes` whose gradients must be collected after every one."""

    def __init__(self) -> None:
        self.launch_bound = LAUNCH_BOUND  # 0 once a capture has failed
        self._compiled: set[Hashable] = set()
        self._weights: tuple[int, ...] = ()  # where they lay when passes were captured
        self._trained: list[Tensor] = []
        self._gradients: list[Tensor] = []  # of each of them
        self._replays: GraphCache | None = None

    def gradients(
        self, policy: Policy, used: PassInputs, config: UpdateConfig, temperature: float
    ) -> PassOutputs:
        eager = config.checkpointing or used.term  # a term reads more than a feed holds
        filled = None if eager else self._pad_if_worthwhile(policy, used.rows)
        if filled:
            work = partial(self._with_gradients, policy, filled.size, config, temperature)
            values = packing_arrays(filled) | loss_arrays(filled, used)

            def use(replays: GraphCache, key: Hashable) -> PassOutputs:
                if not self._trained:
                    self._trained = [p for p in policy.model.parameters() if p.requires_grad]
                    self._gradients = [torch.empty_like(weight) for weight in self._trained]
                found: PassOutputs = replays(key, values, work)
                return found

            found = self._replay(policy, filled, _capture_key(config, temperature), use)
            if found:
                for weight, gradient in zip(self._trained, self._gradients, strict=True):
                    assert weight.grad is None, "gradients are collected after every pass"
                    weight.grad = gradient
                M = filled.num_real_tokens
                hidden = found.hidden_MD[:M].clone()
                return PassOutputs(found.tokens_3M[:, :M].clone(), found.totals_4.clone(), hidden)
        return EAGER.gradients(policy, used, config, temperature)

    def read(self, policy: Policy, rows: Sequence[Row], temperature: float) -> ForwardOutputs:
        filled = self._pad_if_worthwhile(policy, rows)
        if filled:
            work = partial(_without_gradients, policy, filled.size, temperature)

            def use(replays: GraphCache, key: Hashable) -> tuple[Tensor, Tensor, Tensor]:
                found: tuple[Tensor, Tensor, Tensor] = replays(key, packing_arrays(filled), work)
                return found

            found = self._replay(policy, filled, ("read", temperature), use)
            if found:
                logprobs, entropies, hidden = (x[: filled.num_real_tokens].clone() for x in found)
                lengths = filled.packing.lengths[: len(rows)]
                return ForwardOutputs(logprobs, entropies, hidden, lengths)
        return EAGER.read(policy, rows, temperature)

    def states(self, policy: Policy, rows: Sequence[Row], embedded_nD: Tensor) -> Tensor:
        filled = self._pad_if_worthwhile(policy, rows)
        if filled:
            work = partial(_to_states, policy, filled.size)
            tokens_N = to_device(filled.packing.tokens_N.numpy(), policy.device)
            x_ND, kept = given_for_responses(policy, filled.packing, tokens_N, embedded_nD)

            def use(replays: GraphCache, key: Hashable) -> Tensor:
                return replays.differentiable(key, packing_arrays(filled), x_ND, work)

            found = self._replay(policy, filled, "states", use)
            if found is not None:
                return found[kept]
        return EAGER.states(policy, rows, embedded_nD)

    def _pad_if_worthwhile(self, policy: Policy, rows: Sequence[Row]) -> PaddedRows | None:
        """None where nothing is gained, or the rows do not suit flash attention."""
        if not is_half_on_gpu(policy.decoder.unembedding) or not supports_head_dim(
            policy.decoder.head_dim
        ):
            return None
        tokens = sum(row.num_read for row in rows)
        flop = 6 * policy.num_parameters * tokens / len(policy.decoder.layers)
        if flop >= self.launch_bound:
            return None
        filled = pad_rows(rows)
        return filled if filled.segments else None

    def _replay(
        self,
        policy: Policy,
        filled: PaddedRows,
        rule: Hashable,
        use: Callable[[GraphCache, Hashable], Result],
    ) -> Result | None:
        """What the pass finds; None where it is to run as it comes."""
        if rule not in self._compiled:
            self._compiled.add(rule)
            return None
        policy.decoder.reserve(2 * filled.size.longest)
        at = policy.decoder.tensor_addresses
        if self._replays is None or at != self._weights:
            self._replays, self._weights, self._trained = GraphCache(policy.device), at, []
        try:
            return use(self._replays, (filled.size, rule))
        except torch.OutOfMemoryError:
            self._replays.clear()
            raise
        except RuntimeError as fault:
            self._replays.clear()
            self.launch_bound = 0.0
            warnings.warn(f"passes run as they come, none is captured: {fault}", stacklevel=4)
            return None

    def _with_gradients(
        self,
        policy: Policy,
        size: PassSize,
        config: UpdateConfig,
        temperature: float,
        given: NamedTensors,
    ) -> PassOutputs:
        packing, attend = _packed(size, given)
        vectors = {name: given[name] for name in TOKEN_VECTORS}
        feed = PassTensors(packing, attend, num_rows=size.rows, **vectors)
        found, loss, logprobs = compute_loss(policy, feed, config, temperature)
        *gradients, pulled = torch.autograd.grad(loss, [*self._trained, logprobs])
        found.tokens_3M[2] = -pulled
        torch._foreach_copy_(self._gradients, gradients)
        return found


TOKEN_VECTORS = (
    "row_M",
    "old_M",
    "own_M",
    "sampled_M",
    "advantages_M",
    "coefficients_M",
)  # of a feed


def _without_gradients(
    policy: Policy, size: PassSize, temperature: float, given: NamedTensors
) -> tuple[Tensor, Tensor, Tensor]:
    with torch.no_grad():
        found = forward_packed(policy, *_packed(size, given), temperature)
    return found.logprobs_M, found.entropies_M, found.hidden_M


def _to_states(policy: Policy, size: PassSize, given: NamedTensors, x_ND: Tensor) -> Tensor:
    packing, attend = _packed(size, given)
    return policy.decoder(packing.tokens_N, packing.positions_N, attend, embedded_N=x_ND)


def _packed(size: PassSize, given: NamedTensors) -> tuple[Packing, PackedAttention]:
    """The packing that lies where a captured pass reads it."""
    packing = Packing(
        prompts=(), responses=(), parents=(), lengths=(), longest=2 * size.longest,
        tokens_N=given["tokens_N"], positions_N=given["positions_N"],
        predictors_M=given["predictors_M"], targets_M=given["targets_M"],
    )  # fmt: skip
    at = PackedSegments(
        prompt_tokens=size.prompt_tokens, all_bounds=given["every"], longest_segment=size.longest,
        prompt_bounds=given["prompts"], longest_prompt=size.longest,
        reader_bounds=given["readers"], longest_reader=size.longest_reader,
    )  # fmt: skip
    return packing, PackedAttention(packing, at)


def _capture_key(config: UpdateConfig, temperature: float) -> Hashable:
    """What a captured pass has taken in besides its rows."""
    surrogate = config.surrogate, config.clip_low, config.clip_high
    weighing = config.importance, config.importance_cap
    return surrogate, weighing, temperature, torch.are_deterministic_algorithms_enabled()


def choose_passes(config: UpdateConfig) -> Passes:
    """The way a run's passes are computed."""
    return CapturedPasses() if config.capture else EAGER
