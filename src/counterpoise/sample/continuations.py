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
    # Rows of a batch decode together, so the longest prefix may meet the highest limit.
    longest = max(s.length for s in starts) + max(s.max_new_tokens for s in starts)
    policy.decoder.reserve(max(longest, *map(len, sequences)))
    max_rows = max_rows_at_once(policy, longest)
    responses: list[list[Response]] = [[] for _ in starts]
    for batch_sequences in _sequence_batches(sequences, starts):
        prefilled = prefill(policy.decoder, [sequences[s] for s in batch_sequences])
        prefill_index = {s: i for i, s in enumerate(batch_sequences)}
        start_indices = [i for i, start in enumerate(starts) if start.sequence in prefill_index]
        # Rows of a batch are padded to its longest prefix: similar lengths waste least.
        start_indices.sort(key=lambda i: starts[i].length)
        forks = [
            (
                i,
                Fork(
                    sequence=prefill_index[starts[i].sequence],
                    length=starts[i].length,
                    seed=seed,
                    max_new_tokens=starts[i].max_new_tokens,
                    excluded_token=starts[i].excluded_token,
                ),
            )
            for i in start_indices
            for seed in starts[i].seeds
        ]
        for offset in range(0, len(forks), max_rows):
            batch = forks[offset : offset + max_rows]
            batch_responses = decode_forks(policy, prefilled, [fork for _, fork in batch], config)
            for (i, _), response in zip(batch, batch_responses, strict=True):
                responses[i].append(response)
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
