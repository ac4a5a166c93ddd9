"""Passes in a few sizes, captured as CUDA graphs and fed anew.

The kernels of a pass over a small model are shorter than the time the host takes to launch them:
for SmolLM2-135M 50 to 80 ms a pass, and 45 on an H200. So a pass is filled up to one of a few sizes
with rows that count for nothing. Passes of one size are then the same work at the same addresses:
the first runs as it comes, the second in its size, which compiles what it needs, and is captured,
and all later ones are replayed. A filling row has coefficients of 0: it adds nothing to a gradient.

Where a layer takes longer than its launches (`LAUNCH_BOUND`) nothing is gained, and a pass runs as
it comes. Captured passes keep their memory from one step to the next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from counterpoise.config import UpdateConfig
from counterpoise.policy.attention import PackedAttention
from counterpoise.policy.flash import Segments
from counterpoise.policy.kernels import on_gpu
from counterpoise.policy.load import Policy
from counterpoise.policy.packing import Packing, pack
from counterpoise.types import Ints
from counterpoise.update.passes import Feed, Found, Used, compute, eager, flat

LAUNCH_BOUND = 1.5e12  # FLOP of a layer in a pass, forward and backward
PACKED = ("tokens_N", "positions_N", "predictors_M", "targets_M")  # of a feed's packing
ENDS = ("every", "prompts", "readers")  # of its segments


@dataclass(frozen=True, slots=True)
class Size:
    """What a captured pass has room for."""

    prompt_tokens: int
    response_tokens: int  # last tokens left out
    prompts: int
    rows: int
    longest: int  # of prompts and responses
    longest_reader: int  # responses of one prompt together


@dataclass(frozen=True, slots=True, eq=False)
class Filled:
    """Rows of a pass and the filling, packed; `kept` response tokens are the rows' own."""

    size: Size
    packing: Packing  # on the CPU
    kept: int


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """A captured pass: where it reads, and where it writes."""

    feed: Feed
    segments: Segments
    found: Found
    graph: Any  # torch.cuda.CUDAGraph


def rounded(n: int) -> int:
    """Up to the next of eight steps between powers of two.

    Example:
        >>> [rounded(n) for n in (5, 17, 33, 1000, 1025)]
        [8, 18, 36, 1024, 1152]
    """
    step = max(1, 1 << max(0, (n - 1).bit_length() - 4))
    return max(8, -(-n // step) * step)


def fill(prompts: Sequence[Ints], responses: Sequence[Ints]) -> Filled:
    """Rows and as much filling as their size asks for: one prompt, read by responses of zeros."""
    distinct = {np.asarray(prompt, dtype=np.int64).tobytes(): len(prompt) for prompt in prompts}
    prompt_tokens, kept = sum(distinct.values()), sum(len(r) - 1 for r in responses)
    filling = np.zeros(rounded(prompt_tokens + 1) - prompt_tokens, dtype=np.int32)
    most = max(1, *map(len, prompts), *(len(r) - 1 for r in responses))
    missing = rounded(kept + 1) - kept
    pieces = [min(most, missing - start) for start in range(0, missing, most)]
    packing = pack(
        [*prompts, *[filling] * len(pieces)],
        [*responses, *(np.zeros(n + 1, dtype=np.int32) for n in pieces)],
        torch.device("cpu"),
    )
    read = np.bincount(packing.parents, weights=[n for _, n in packing.responses])
    size = Size(
        prompt_tokens=prompt_tokens + len(filling),
        response_tokens=kept + missing,
        prompts=rounded(len(packing.prompts)),
        rows=rounded(len(packing.lengths)),
        longest=-(-max(most, len(filling)) // 128) * 128,
        longest_reader=rounded(max(128, int(read.max()))),
    )
    return Filled(size, packing, sum(map(len, responses)))


def vectors(filled: Filled, used: Used) -> dict[str, np.ndarray]:
    """Everything a pass of this size reads, by name, filled up."""
    size, packing = filled.size, filled.packing
    M = size.response_tokens + size.rows
    found = {
        "tokens_N": packing.tokens_N.numpy(),
        "positions_N": packing.positions_N.numpy(),
        "predictors_M": _up_to(M, packing.predictors_M.numpy(), len(packing.tokens_N) - 1),
        "targets_M": _up_to(M, packing.targets_M.numpy(), 0),
    }
    ends = {"row_M": size.rows - 1}
    return found | {name: _up_to(M, x, ends.get(name, 0)) for name, x in flat(used).items()}


def bounds(filled: Filled) -> dict[str, np.ndarray]:
    """Where sequences end, with empty ones after the last."""
    at = segments_of(filled.packing)
    size = filled.size
    assert at.readers is not None  # the filling reads its prompt
    return {
        "every": _up_to(size.prompts + size.rows + 1, at.every.numpy(), int(at.every[-1])),
        "prompts": _up_to(size.prompts + 1, at.prompts.numpy(), int(at.prompts[-1])),
        "readers": _up_to(size.prompts + 1, at.readers.numpy(), int(at.readers[-1])),
    }


def segments_of(packing: Packing) -> Segments:
    at = PackedAttention(packing).segments
    assert at is not None, "rows of a group come side by side"
    return at


def _up_to(n: int, x: np.ndarray, filling: int) -> np.ndarray:
    return np.concatenate((x, np.full(n - len(x), filling, dtype=x.dtype)))


class Captured:
    """A `one_pass` for `update/step.py`, which must collect the gradients after every pass."""

    def __init__(self, *, launch_bound: float = LAUNCH_BOUND) -> None:
        self.launch_bound = launch_bound
        self._met: Counter[Any] = Counter()
        self._entries: dict[Any, Entry] = {}
        self._weights: tuple[int, ...] = ()  # where they lay when passes were captured
        self._gradients: list[Tensor] = []
        self._pool: Any = None

    def __call__(
        self, policy: Policy, used: Used, config: UpdateConfig, temperature: float
    ) -> Found:
        contents = [row.content for row in used.rows]
        prompts = [c.prompt_tokens for c in contents]
        responses = [c.response_tokens for c in contents]
        if config.checkpointing or not self._pays(policy, sum(map(len, responses))):
            return eager(policy, used, config, temperature)
        filled = fill(prompts, responses)
        self._forget_if_moved(policy)
        rule = (config.surrogate, config.clip_low, config.clip_high, temperature)
        key = (filled.size, rule, torch.are_deterministic_algorithms_enabled())
        self._met[key] += 1
        if self._met[key] == 1:
            return eager(policy, used, config, temperature)
        entry = self._entries.get(key)
        if entry is None:
            policy.decoder.reserve(2 * filled.size.longest)
            entry = self._entries[key] = self._capture(policy, filled, used, config, temperature)
        else:
            self._write(entry, filled, used)
            entry.graph.replay()
        for weight, gradient in zip(_weights(policy), self._gradients, strict=True):
            assert weight.grad is None, "gradients are collected after every pass"
            weight.grad = gradient
        found, M = entry.found, filled.kept
        return Found(
            found.tokens_3M[:, :M].clone(), found.totals_2.clone(), found.hidden_MD[:M].clone()
        )

    def _pays(self, policy: Policy, tokens: int) -> bool:
        weight = policy.decoder.unembedding
        if not on_gpu(weight):
            return False
        return 6 * policy.num_parameters * tokens / len(policy.decoder.layers) < self.launch_bound

    def _forget_if_moved(self, policy: Policy) -> None:
        at = policy.decoder.addresses
        if at != self._weights:
            self._entries.clear()
            self._weights = at
            self._gradients = [torch.empty_like(weight) for weight in _weights(policy)]

    def _capture(
        self, policy: Policy, filled: Filled, used: Used, config: UpdateConfig, temperature: float
    ) -> Entry:
        """Computes the pass, and records it for the next of its size."""
        size, device = filled.size, policy.device
        tensors = {n: torch.from_numpy(x).to(device) for n, x in vectors(filled, used).items()}
        for name in ("old_M", "own_M", "advantages_M", "coefficients_M"):
            tensors[name] = tensors[name].float()
        ends = {n: torch.from_numpy(x).to(device) for n, x in bounds(filled).items()}
        at = Segments(
            prompt_tokens=size.prompt_tokens, longest=size.longest, longest_prompt=size.longest,
            longest_reader=size.longest_reader, **ends,
        )  # fmt: skip
        packed = {
            n: tensors.pop(n) for n in ("tokens_N", "positions_N", "predictors_M", "targets_M")
        }
        packing = Packing(
            prompts=(), responses=(), parents=(), lengths=(), longest=2 * size.longest, **packed
        )
        given = Feed(packing, PackedAttention(packing, at), num_rows=size.rows, **tensors)
        self._compute(policy, given, config, temperature)
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            found = self._compute(policy, given, config, temperature)
        graph.replay()
        return Entry(given, at, found, graph)

    def _compute(
        self, policy: Policy, given: Feed, config: UpdateConfig, temperature: float
    ) -> Found:
        found, loss, logprobs = compute(policy, given, config, temperature)
        *gradients, pulled = torch.autograd.grad(loss, [*_weights(policy), logprobs])
        found.tokens_3M[2] = -pulled
        torch._foreach_copy_(self._gradients, gradients)
        return found

    def _write(self, entry: Entry, filled: Filled, used: Used) -> None:
        """The rows of another pass into the places that the captured one reads."""
        packing = entry.feed.packing
        for name, array in (vectors(filled, used) | bounds(filled)).items():
            owner = packing if name in PACKED else entry.segments if name in ENDS else entry.feed
            to: Tensor = getattr(owner, name)
            to.copy_(torch.from_numpy(array).to(to.dtype).pin_memory(), non_blocking=True)


def _weights(policy: Policy) -> list[Tensor]:
    return [p for p in policy.model.parameters() if p.requires_grad]
