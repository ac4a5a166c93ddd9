"""Rows of a pass and rows that count for nothing, which fill it up to one of a few sizes.

Tokens are rounded up to sixteen steps between powers of two; what costs next to nothing, such as
the number of sequences, to powers of two, so that few sizes are met. The filling is prompts
that no row has, none longer than the rows', the last of which is read by responses of zeros; their
coefficients are 0.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
import torch

from counterpoise.model.flash import PackedSegments, find_segments
from counterpoise.model.packing import Packing, pack, prompt_key
from counterpoise.types import Ints, Row
from counterpoise.update.passes import Used, flat

LEAST = 512  # tokens: below, a pass costs its launches whatever its size
SHORT = 64  # tokens: sequences of the filling may be as long, so that they are few


@dataclass(frozen=True, slots=True)
class Size:
    """What a captured pass has room for."""

    prompt_tokens: int
    response_tokens: int  # as they are read: last tokens left out
    prompts: int
    rows: int
    longest: int  # of prompts and responses
    longest_reader: int  # responses of one prompt together


@dataclass(frozen=True, slots=True, eq=False)
class Filled:
    """Rows of a pass and the filling, packed; `kept` response tokens are the rows' own."""

    size: Size
    packing: Packing  # on the CPU
    segments: PackedSegments | None  # None: the rows do not suit flash attention
    kept: int


def step_of(n: int) -> int:
    """What n tokens are rounded up by: a sixteenth of the power of two below, and at least LEAST.

    Example:
        >>> [step_of(n) for n in (100, 8192, 16_384, 16_385)]
        [512, 512, 512, 1024]
    """
    return max(LEAST, 1 << max(0, (n - 1).bit_length() - 5))


def rounded(n: int) -> int:
    """
    Example:
        >>> [rounded(n) for n in (100, 513, 16_385)]
        [512, 1024, 17408]
    """
    step = step_of(n)
    return -(-n // step) * step


def doubled(n: int, least: int) -> int:
    """Up to the next power of two: for sizes that cost next to nothing, so that few are met.

    Example:
        >>> [doubled(n, 128) for n in (5, 129, 1024)]
        [128, 256, 1024]
    """
    return max(least, 1 << (n - 1).bit_length())


def fill(rows: Sequence[Row]) -> Filled:
    """Rows and as much filling as their size asks for."""
    prompts = [row.content.prompt_tokens for row in rows]
    responses = [row.content.response_tokens for row in rows]
    distinct = {prompt_key(prompt): len(prompt) for prompt in prompts}
    prompt_tokens, kept = sum(distinct.values()), sum(row.num_read - 1 for row in rows)
    longest = max(SHORT, *map(len, prompts), *(row.num_read - 1 for row in rows))
    more = _others(_cut(rounded(prompt_tokens + 1) - prompt_tokens, longest), distinct)
    read = [np.zeros(n + 1, dtype=np.int32) for n in _cut(rounded(kept + 1) - kept, longest)]
    unread = [np.zeros(1, dtype=np.int32)] * (len(more) - 1)  # of one token nothing is read
    packing = pack(
        [*prompts, *more, *[more[-1]] * (len(read) - 1)],
        [*responses, *unread, *read],
        torch.device("cpu"),
        [*(row.content.told for row in rows), *[()] * (len(unread) + len(read))],
    )
    readers = np.bincount(packing.parents, weights=[n for _, n in packing.responses])
    size = Size(
        prompt_tokens=prompt_tokens + sum(map(len, more)),
        response_tokens=kept + sum(len(tokens) - 1 for tokens in read),
        prompts=doubled(len(packing.prompts), 32),
        rows=doubled(len(packing.lengths), 128),
        longest=doubled(longest, 128),
        longest_reader=doubled(max(int(readers.max()), step_of(kept + 1)), 128),
    )
    return Filled(size, packing, find_segments(packing), sum(map(len, responses)))


def _others(lengths: Sequence[int], taken: Container[bytes]) -> list[Ints]:
    """Prompts of these lengths, no two the same and none of the rows': equal ones would be one."""
    tokens, made = count(), []
    for n in lengths:
        same = (np.full(n, token, dtype=np.int32) for token in tokens)
        made.append(next(prompt for prompt in same if prompt_key(prompt) not in taken))
    return made


def _cut(n: int, longest: int) -> list[int]:
    return [min(longest, n - start) for start in range(0, n, longest)]


def tokens_of(filled: Filled) -> dict[str, np.ndarray]:
    """The packing of this size, by name, and where its sequences end."""
    size, packing = filled.size, filled.packing
    M = size.response_tokens + size.rows
    return {
        "tokens_N": packing.tokens_N.numpy(),
        "positions_N": packing.positions_N.numpy(),
        "predictors_M": _up_to(M, packing.predictors_M.numpy(), len(packing.tokens_N) - 1),
        "targets_M": _up_to(M, packing.targets_M.numpy(), 0),
        **bounds(filled),
    }


def values_of(filled: Filled, used: Used) -> dict[str, np.ndarray]:
    """What a pass with gradients reads besides, by name."""
    size = filled.size
    M = size.response_tokens + size.rows
    rows = {"row_M": size.rows - 1}
    found = {name: _up_to(M, x, rows.get(name, 0)) for name, x in flat(used).items()}
    return {n: x if n in rows else x.astype(np.float32) for n, x in found.items()}


def bounds(filled: Filled) -> dict[str, np.ndarray]:
    """Where sequences end, with empty ones after the last."""
    at, size = filled.segments, filled.size
    assert at is not None
    assert at.reader_bounds is not None  # the filling reads its prompt
    return {
        "every": _up_to(
            size.prompts + size.rows + 1, at.all_bounds.numpy(), int(at.all_bounds[-1])
        ),
        "prompts": _up_to(size.prompts + 1, at.prompt_bounds.numpy(), int(at.prompt_bounds[-1])),
        "readers": _up_to(size.prompts + 1, at.reader_bounds.numpy(), int(at.reader_bounds[-1])),
    }


def _up_to(n: int, x: np.ndarray, filling: int) -> np.ndarray:
    return np.concatenate((x, np.full(n - len(x), filling, dtype=x.dtype)))
