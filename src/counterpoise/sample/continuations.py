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
from counterpoise.sample.fork_queue import PASS_TOKENS_CPU
from counterpoise.sample.kv_cache import Fork
from counterpoise.sample.native import decode_forks
from counterpoise.types import Ints, Response

# Sequences are batched up to this many tokens, and the starts of a batch are sorted by length.
PREFILL_TOKENS = PASS_TOKENS_CPU


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
    # Forks that start together attend to as many columns as the longest prefix among them has:
    # similar lengths waste least. Sequences of one prefill pass stay together.
    indexed_forks = [
        (
            start_index,
            Fork(start.sequence, start.length, seed, start.max_new_tokens, start.excluded_token),
        )
        for batch_starts in _start_batches(sequences, starts)
        for start_index, start in batch_starts
        for seed in start.seeds
    ]
    forks = [fork for _, fork in indexed_forks]
    responses: list[list[Response]] = [[] for _ in starts]
    for (start_index, _), response in zip(
        indexed_forks, decode_forks(policy, sequences, forks, config), strict=True
    ):
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


def _start_batches(
    sequences: Sequence[Ints], starts: Sequence[ContinuationStart]
) -> Iterator[list[tuple[int, ContinuationStart]]]:
    """(index, start), shortest prefix first in each batch of sequences that share a prefill."""
    for batch_sequences in _sequence_batches(sequences, starts):
        in_batch = set(batch_sequences)
        batch_starts = [
            (index, start) for index, start in enumerate(starts) if start.sequence in in_batch
        ]
        yield sorted(batch_starts, key=lambda indexed_start: indexed_start[1].length)


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
