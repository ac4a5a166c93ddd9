"""Pad the rows of a pass with filler rows of zero weight, up to one of a few sizes.

Few sizes occur, since token counts are rounded up to one of sixteen values between two powers of
two, and sizes that cost next to nothing, such as the number of sequences, to powers of two. The
filler consists of prompts that no row has and of responses made of token 0, which belong to the
last of these prompts and have a coefficient of 0. No filler sequence is longer than the longest of
the rows (or `MIN_FILLER_LENGTH`).
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

MIN_ROUNDING_STEP = 512  # tokens: a smaller pass costs its launches, whatever its size
MIN_FILLER_LENGTH = 64  # tokens: filler sequences may be this long, so that few are needed


@dataclass(frozen=True, slots=True)
class PassSize:
    """The capacity of a captured pass."""

    prompt_tokens: int
    response_tokens: int  # as inputs, without each row's last token
    prompts: int
    rows: int
    longest: int  # prompt or response
    longest_reader: int  # most response tokens that attend to one prompt (its "reader" in flash.py)

    @property
    def predicted_tokens(self) -> int:
        """All response tokens: each row's last one is not an input, but is predicted."""
        return self.response_tokens + self.rows


@dataclass(frozen=True, slots=True, eq=False)
class PaddedRows:
    """Rows of a pass packed with filler; the first `num_real_tokens` response tokens are real."""

    size: PassSize
    packing: Packing  # on the CPU
    segments: PackedSegments | None  # None: the rows do not suit flash attention
    num_real_tokens: int


def rounding_step(num_tokens: int) -> int:
    """The step to round up by: a sixteenth of the power of two below, at least the minimum.

    Example:
        >>> [rounding_step(n) for n in (100, 8192, 16_384, 16_385)]
        [512, 512, 512, 1024]
    """
    return max(MIN_ROUNDING_STEP, 1 << max(0, (num_tokens - 1).bit_length() - 5))


def round_up_tokens(num_tokens: int) -> int:
    """Round a number of tokens up to a multiple of its rounding step.

    Example:
        >>> [round_up_tokens(n) for n in (100, 513, 16_385)]
        [512, 1024, 17408]
    """
    step = rounding_step(num_tokens)
    return -(-num_tokens // step) * step


def round_up_to_power_of_two(size: int, least: int) -> int:
    """The next power of two: for sizes that cost next to nothing, so that few occur.

    Example:
        >>> [round_up_to_power_of_two(n, 128) for n in (5, 129, 1024)]
        [128, 256, 1024]
    """
    return max(least, 1 << (size - 1).bit_length())


def pad_rows(rows: Sequence[Row]) -> PaddedRows:
    """Pack the rows with as much filler as their rounded size needs."""
    prompts = [row.content.prompt_tokens for row in rows]
    responses = [row.content.response_tokens for row in rows]
    prompt_lengths = {prompt_key(prompt): len(prompt) for prompt in prompts}
    prompt_tokens = sum(prompt_lengths.values())
    response_tokens = sum(row.num_tokens_read - 1 for row in rows)
    longest = max(MIN_FILLER_LENGTH, *map(len, prompts), *(row.num_tokens_read - 1 for row in rows))
    filler_prompts = _filler_prompts(
        _filler_lengths(round_up_tokens(prompt_tokens + 1) - prompt_tokens, longest), prompt_lengths
    )
    filler_responses = [
        np.zeros(length + 1, dtype=np.int32)
        for length in _filler_lengths(
            round_up_tokens(response_tokens + 1) - response_tokens, longest
        )
    ]
    # A response of a single token adds no input: the last token of a response is never read.
    empty_responses = [np.zeros(1, dtype=np.int32)] * (len(filler_prompts) - 1)
    # Fill prompts and responses separately: all but the last filler prompt have no responses to
    # read them, and the last one has all the filler responses.
    packing = pack(
        [*prompts, *filler_prompts, *[filler_prompts[-1]] * (len(filler_responses) - 1)],
        [*responses, *empty_responses, *filler_responses],
        torch.device("cpu"),
        [
            *(row.content.observations for row in rows),
            *[()] * (len(empty_responses) + len(filler_responses)),
        ],
    )
    # Flash attention also needs the total length of the responses to each prompt.
    readers = np.bincount(packing.parents, weights=[length for _, length in packing.responses])
    size = PassSize(
        prompt_tokens=prompt_tokens + sum(map(len, filler_prompts)),
        response_tokens=response_tokens + sum(len(tokens) - 1 for tokens in filler_responses),
        prompts=round_up_to_power_of_two(len(packing.prompts), 32),
        rows=round_up_to_power_of_two(len(packing.lengths), 128),
        longest=round_up_to_power_of_two(longest, 128),
        longest_reader=round_up_to_power_of_two(
            max(int(readers.max()), rounding_step(response_tokens + 1)), 128
        ),
    )
    return PaddedRows(size, packing, find_segments(packing), sum(map(len, responses)))


def _filler_prompts(lengths: Sequence[int], existing_keys: Container[bytes]) -> list[Ints]:
    """Prompts of these lengths, unlike each other and the rows': packing merges equal ones."""
    token_ids, fillers = count(), []
    for length in lengths:
        candidates = (np.full(length, token, dtype=np.int32) for token in token_ids)
        fillers.append(
            next(prompt for prompt in candidates if prompt_key(prompt) not in existing_keys)
        )
    return fillers


def _filler_lengths(num_tokens: int, longest: int) -> list[int]:
    """Split n filler tokens into sequences of at most `longest`."""
    return [min(longest, num_tokens - start) for start in range(0, num_tokens, longest)]


def packing_arrays(padded: PaddedRows) -> dict[str, np.ndarray]:
    """The padded packing as arrays by name, and the bounds of its sequences."""
    size, packing = padded.size, padded.packing
    M = size.predicted_tokens
    return {
        "tokens_N": packing.tokens_N.numpy(),
        "positions_N": packing.positions_N.numpy(),
        "predictors_M": _pad_array(M, packing.predictors_M.numpy(), len(packing.tokens_N) - 1),
        "targets_M": _pad_array(M, packing.targets_M.numpy(), 0),
        **segment_bounds(padded),
    }


def loss_arrays(padded: PaddedRows, inputs: PassInputs) -> dict[str, np.ndarray]:
    """The further arrays that a pass with gradients reads, by name."""
    size = padded.size
    M = size.predicted_tokens
    vectors = flatten_inputs(inputs)
    # Filler tokens belong to the last row, which is never real; their other values are 0.
    row_M = _pad_array(M, vectors.pop("row_M"), size.rows - 1)
    return {
        "row_M": row_M,
        **{name: _pad_array(M, vector, 0).astype(np.float32) for name, vector in vectors.items()},
    }


def segment_bounds(padded: PaddedRows) -> dict[str, np.ndarray]:
    """End positions of the sequences, with empty sequences after the last."""
    flash_segments, size = padded.segments, padded.size
    assert flash_segments is not None
    assert flash_segments.reader_bounds is not None  # the filler has responses
    return {
        "every": _pad_array(
            size.prompts + size.rows + 1,
            flash_segments.all_bounds.numpy(),
            int(flash_segments.all_bounds[-1]),
        ),
        "prompts": _pad_array(
            size.prompts + 1,
            flash_segments.prompt_bounds.numpy(),
            int(flash_segments.prompt_bounds[-1]),
        ),
        "readers": _pad_array(
            size.prompts + 1,
            flash_segments.reader_bounds.numpy(),
            int(flash_segments.reader_bounds[-1]),
        ),
    }


def _pad_array(length: int, array: np.ndarray, filler: int) -> np.ndarray:
    """Extend the array to `length` with a constant."""
    return np.concatenate((array, np.full(length - len(array), filler, dtype=array.dtype)))
