"""Sample continuations from many prefixes of a few sequences, computing each sequence only once.

    sequence   p p p p a b c d e          start (length 6): the state after `a b`
                           | . . .        one row for each of the start's seeds
                             | . .        start (length 7), and so on

A continuation equals what `sample` would draw from the same seed with the prefix as its prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from counterpoise.config import SampleConfig
from counterpoise.model.load import Policy
from counterpoise.sample.kv_cache import Fork, prefill
from counterpoise.sample.native import decode_forks, max_rows_at_once
from counterpoise.types import Ints, Response

PREFILL_TOKENS = 16384  # sequences are prefilled in batches of this size, to bound memory


@dataclass(frozen=True, slots=True)
class ContinuationStart:
    """Where continuations begin.

    Example:
        ContinuationStart(sequence=3, length=61, seeds=(7, 8), max_new_tokens=51)
    """

    sequence: int  # index of the sequence
    length: int  # tokens of it that form the prefix, at least 1
    seeds: tuple[int, ...]  # one continuation each
    max_new_tokens: int  # at least 1
    excluded_token: int | None = None  # the first draw excludes this token and renormalises


@torch.no_grad()
def sample_continuations(
    policy: Policy,
    sequences: Sequence[Ints],
    starts: Sequence[ContinuationStart],
    config: SampleConfig,
) -> list[list[Response]]:
    """The responses of every start, one for each of its seeds, without their prefixes.

    Every start has its own length limit; `config.max_new_tokens` is ignored.
    """
    if not starts:
        return []
    check_starts(sequences, starts)
    # Rows of a batch decode together: reserve the longest prefix plus the highest limit.
    longest_prefix = max(start.length for start in starts)
    longest_row = longest_prefix + max(start.max_new_tokens for start in starts)
    policy.decoder.reserve(max(longest_row, *map(len, sequences)))
    max_rows = max_rows_at_once(policy, longest_row)
    responses: list[list[Response]] = [[] for _ in starts]
    for batch_sequences in _sequence_batches(sequences, starts):
        prefilled = prefill(policy.decoder, [sequences[sequence] for sequence in batch_sequences])
        prefill_index = {sequence: index for index, sequence in enumerate(batch_sequences)}
        batch_starts = [
            (start_index, start)
            for start_index, start in enumerate(starts)
            if start.sequence in prefill_index
        ]
        # Rows of a batch are padded to its longest prefix: similar lengths waste least.
        batch_starts.sort(key=lambda indexed_start: indexed_start[1].length)
        forks = [
            (
                start_index,
                Fork(
                    sequence=prefill_index[start.sequence],
                    length=start.length,
                    seed=seed,
                    max_new_tokens=start.max_new_tokens,
                    excluded_token=start.excluded_token,
                ),
            )
            for start_index, start in batch_starts
            for seed in start.seeds
        ]
        for offset in range(0, len(forks), max_rows):
            batch = forks[offset : offset + max_rows]
            batch_responses = decode_forks(policy, prefilled, [fork for _, fork in batch], config)
            for (start_index, _), response in zip(batch, batch_responses, strict=True):
                responses[start_index].append(response)
    return responses


def check_starts(sequences: Sequence[Ints], starts: Sequence[ContinuationStart]) -> None:
    """Raise ValueError for a prefix outside its sequence or a limit below one token."""
    for start in starts:
        if not 1 <= start.length <= len(sequences[start.sequence]):
            raise ValueError(
                f"a start after {start.length} tokens is outside its sequence of "
                f"{len(sequences[start.sequence])}"
            )
        if start.max_new_tokens < 1:
            raise ValueError("a start needs room for at least one new token")


def _sequence_batches(
    sequences: Sequence[Ints], starts: Sequence[ContinuationStart]
) -> Iterator[list[int]]:
    """Indices of the sequences in use, in batches of PREFILL_TOKENS tokens (at least one each)."""
    batch: list[int] = []
    num_tokens = 0
    for sequence in sorted({start.sequence for start in starts}):
        if batch and num_tokens + len(sequences[sequence]) > PREFILL_TOKENS:
            yield batch
            batch, num_tokens = [], 0
        batch.append(sequence)
        num_tokens += len(sequences[sequence])
    if batch:
        yield batch
