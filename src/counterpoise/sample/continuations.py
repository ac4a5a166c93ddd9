"""Continuations from many places of a few sequences: each sequence once, then its forks.

    sequence   p p p p a b c d e          start (length 6): the state after `a b`
                           | . . .        one row for each of the start's seeds
                             | . .        start (length 7), and so on

A continuation is what `sample` would draw, from the same seed, with the prefix as its prompt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from counterpoise.config import SampleConfig
from counterpoise.model.load import Policy
from counterpoise.sample.kv_cache import prefill
from counterpoise.sample.native import Fork, decode_forks, max_rows_at_once
from counterpoise.types import Ints, Response

PREFILL_TOKENS = 16384  # of the sequences whose keys and values are kept at a time


@dataclass(frozen=True, slots=True)
class ContinuationStart:
    """Where continuations begin.

    Example:
        ContinuationStart(sequence=3, length=61, seeds=(7, 8), limit=51)
    """

    sequence: int  # which of the sequences
    length: int  # tokens of it that are kept, at least 1
    seeds: tuple[int, ...]  # one continuation each
    max_new_tokens: int  # new tokens at most, at least 1
    excluded_token: int | None = None  # a token the first draw leaves out: the others, renormalised


@torch.no_grad()
def sample_continuations(
    policy: Policy,
    sequences: Sequence[Ints],
    starts: Sequence[ContinuationStart],
    config: SampleConfig,
) -> list[list[Response]]:
    """The responses of every start, one for each of its seeds; prefixes are not repeated in them.

    `config.max_new_tokens` is not looked at: every start has its own limit.
    """
    if not starts:
        return []
    check_starts(sequences, starts)
    longest = max(s.length for s in starts) + max(
        s.max_new_tokens for s in starts
    )  # rows run on together
    policy.decoder.reserve(max(longest, *map(len, sequences)))
    at_once = max_rows_at_once(policy, longest)
    responses: list[list[Response]] = [[] for _ in starts]
    for part in _parts(sequences, starts):
        done = prefill(policy.decoder, [sequences[s] for s in part])
        place = {s: i for i, s in enumerate(part)}
        mine = [i for i, start in enumerate(starts) if start.sequence in place]
        mine.sort(key=lambda i: starts[i].length)  # rows of one batch are padded to the longest
        rows: list[tuple[int, Fork]] = []
        for i in mine:
            at = starts[i]
            where = place[at.sequence]
            rows += [
                (i, Fork(where, at.length, seed, at.max_new_tokens, at.excluded_token))
                for seed in at.seeds
            ]
        for first in range(0, len(rows), at_once):
            batch = rows[first : first + at_once]
            drawn = decode_forks(policy, done, [row for _, row in batch], config)
            for (i, _), response in zip(batch, drawn, strict=True):
                responses[i].append(response)
    return responses


def check_starts(sequences: Sequence[Ints], starts: Sequence[ContinuationStart]) -> None:
    for start in starts:
        if not 1 <= start.length <= len(sequences[start.sequence]):
            raise ValueError(
                f"a start after {start.length} tokens is outside its sequence of "
                f"{len(sequences[start.sequence])}"
            )
        if start.max_new_tokens < 1:
            raise ValueError("a start needs room for at least one new token")


def _parts(sequences: Sequence[Ints], starts: Sequence[ContinuationStart]) -> Iterator[list[int]]:
    """The sequences that are started from, PREFILL_TOKENS at a time, one at least."""
    part: list[int] = []
    tokens = 0
    for s in sorted({start.sequence for start in starts}):
        if part and tokens + len(sequences[s]) > PREFILL_TOKENS:
            yield part
            part, tokens = [], 0
        part.append(s)
        tokens += len(sequences[s])
    if part:
        yield part
