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
from counterpoise.update.passes import PassInputs, flatten_inputs

MIN_ROUNDING_STEP = 512  # tokens: below, a pass costs its launches whatever its size
MIN_FILLER_LENGTH = 64  # tokens: sequences of the filling may be as long, so that they are few


@dataclass(frozen=True, slots=True)
class PassSize:
    """What a captured pass has room for."""

    prompt_tokens: int
    response_tokens: int  # as they are read: last tokens left out
    prompts: int
    rows: int
    longest: int  # of prompts and responses
    longest_reader: int  # responses of one prompt together


@dataclass(frozen=True, slots=True, eq=False)
class PaddedRows:
    """Rows of a pass and the filling, packed; `num_real_tokens` response tokens are the rows' own."""

    size: PassSize
    packing: Packing  # on the CPU
    segments: PackedSegments | None  # None: the rows do not suit flash attention
    num_real_tokens: int


def rounding_step(n: int) -> int:
    """What n tokens are rounded up by: a sixteenth of the power of two below, and at least LEAST.

    Example:
        >>> [step_of(n) for n in (100, 8192, 16_384, 16_385)]
        [512, 512, 512, 1024]
    """
    return max(MIN_ROUNDING_STEP, 1 << max(0, (n - 1).bit_length() - 5))


def round_up_tokens(n: int) -> int:
    """
    Example:
        >>> [rounded(n) for n in (100, 513, 16_385)]
        [512, 1024, 17408]
    """
    step = rounding_step(n)
    return -(-n // step) * step


def round_up_to_power_of_two(n: int, least: int) -> int:
    """Up to the next power of two: for sizes that cost next to nothing, so that few are met.

    Example:
        >>> [doubled(n, 128) for n in (5, 129, 1024)]
        [128, 256, 1024]
    """
    return max(least, 1 << (n - 1).bit_length())


def pad_rows(rows: Sequence[Row]) -> PaddedRows:
    """Rows and as much filling as their size asks for."""
    prompts = [row.content.prompt_tokens for row in rows]
    responses = [row.content.response_tokens for row in rows]
    distinct = {prompt_key(prompt): len(prompt) for prompt in prompts}
    prompt_tokens, kept = sum(distinct.values()), sum(row.num_read - 1 for row in rows)
    longest = max(MIN_FILLER_LENGTH, *map(len, prompts), *(row.num_read - 1 for row in rows))
    more = _filler_prompts(
        _filler_lengths(round_up_tokens(prompt_tokens + 1) - prompt_tokens, longest), distinct
    )
    read = [
        np.zeros(n + 1, dtype=np.int32)
        for n in _filler_lengths(round_up_tokens(kept + 1) - kept, longest)
    ]
    unread = [np.zeros(1, dtype=np.int32)] * (len(more) - 1)  # of one token nothing is read
    packing = pack(
        [*prompts, *more, *[more[-1]] * (len(read) - 1)],
        [*responses, *unread, *read],
        torch.device("cpu"),
        [*(row.content.told for row in rows), *[()] * (len(unread) + len(read))],
    )
    readers = np.bincount(packing.parents, weights=[n for _, n in packing.responses])
    size = PassSize(
        prompt_tokens=prompt_tokens + sum(map(len, more)),
        response_tokens=kept + sum(len(tokens) - 1 for tokens in read),
        prompts=round_up_to_power_of_two(len(packing.prompts), 32),
        rows=round_up_to_power_of_two(len(packing.lengths), 128),
        longest=round_up_to_power_of_two(longest, 128),
        longest_reader=round_up_to_power_of_two(
            max(int(readers.max()), rounding_step(kept + 1)), 128
        ),
    )
    return PaddedRows(size, packing, find_segments(packing), sum(map(len, responses)))


def _filler_prompts(lengths: Sequence[int], taken: Container[bytes]) -> list[Ints]:
    """Prompts of these lengths, no two the same and none of the rows': equal ones would be one."""
    tokens, made = count(), []
    for n in lengths:
        same = (np.full(n, token, dtype=np.int32) for token in tokens)
        made.append(next(prompt for prompt in same if prompt_key(prompt) not in taken))
    return made


def _filler_lengths(n: int, longest: int) -> list[int]:
    return [min(longest, n - start) for start in range(0, n, longest)]


def packing_arrays(filled: PaddedRows) -> dict[str, np.ndarray]:
    """The packing of this size, by name, and where its sequences end."""
    size, packing = filled.size, filled.packing
    M = size.response_tokens + size.rows
    return {
        "tokens_N": packing.tokens_N.numpy(),
        "positions_N": packing.positions_N.numpy(),
        "predictors_M": _pad_array(M, packing.predictors_M.numpy(), len(packing.tokens_N) - 1),
        "targets_M": _pad_array(M, packing.targets_M.numpy(), 0),
        **segment_bounds(filled),
    }


def loss_arrays(filled: PaddedRows, used: PassInputs) -> dict[str, np.ndarray]:
    """What a pass with gradients reads besides, by name."""
    size = filled.size
    M = size.response_tokens + size.rows
    rows = {"row_M": size.rows - 1}
    found = {name: _pad_array(M, x, rows.get(name, 0)) for name, x in flatten_inputs(used).items()}
    return {n: x if n in rows else x.astype(np.float32) for n, x in found.items()}


def segment_bounds(filled: PaddedRows) -> dict[str, np.ndarray]:
    """Where sequences end, with empty ones after the last."""
    at, size = filled.segments, filled.size
    assert at is not None
    assert at.reader_bounds is not None  # the filling reads its prompt
    return {
        "every": _pad_array(
            size.prompts + size.rows + 1, at.all_bounds.numpy(), int(at.all_bounds[-1])
        ),
        "prompts": _pad_array(
            size.prompts + 1, at.prompt_bounds.numpy(), int(at.prompt_bounds[-1])
        ),
        "readers": _pad_array(
            size.prompts + 1, at.reader_bounds.numpy(), int(at.reader_bounds[-1])
        ),
    }


def _pad_array(n: int, x: np.ndarray, filling: int) -> np.ndarray:
    return np.concatenate((x, np.full(n - len(x), filling, dtype=x.dtype)))
