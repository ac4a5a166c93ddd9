"""Rows that wait for a place in the KV cache, and the prefill of those that come next.

    forks waiting      a a a a b b b b c c c c d d ...     in the order in which they are decoded
    one prefill        [a, b]   [c]   [d, ...]             at most `pass_tokens` tokens in a pass

A prefill covers the sequences of the next forks, as many as fit into one pass, so its memory is
bounded however many prompts there are. Its forks are handed out as places become free.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from counterpoise.model.decoder import Decoder
from counterpoise.sample.kv_cache import Fork, Prefill, prefill
from counterpoise.types import Floats, Ints

# Tokens of one prefill pass: they bound its activations, some 100 kB a token for 7 B parameters.
PASS_TOKENS_CPU, PASS_TOKENS_CUDA = 16384, 65536

# (tokens, log-probabilities) of every decoded fork, by its index
DecodedRows = dict[int, tuple[Ints, Floats]]


@dataclass(frozen=True, slots=True, eq=False)
class ReadyForks:
    """Forks whose prefixes are prefilled."""

    indices: list[int]  # of these forks among all forks of the call
    forks: list[Fork]
    starts: list[int]  # first token of each fork's prefix among those of `prefilled`
    prefilled: Prefill

    @property
    def hidden_RD(self) -> Tensor:
        """The states that predict each fork's first new token."""
        last_tokens = [
            start + fork.length - 1 for start, fork in zip(self.starts, self.forks, strict=True)
        ]
        return self.prefilled.hidden_N[torch.tensor(last_tokens, device=self.device)]

    @property
    def device(self) -> torch.device:
        return self.prefilled.hidden_N.device


class ForkQueue:
    """The forks of one call that still wait, first come, first served."""

    def __init__(self, decoder: Decoder, sequences: Sequence[Ints], forks: Sequence[Fork]) -> None:
        self.decoder, self.sequences, self.forks = decoder, sequences, forks
        on_gpu = decoder.device.type == "cuda"
        self.pass_tokens = PASS_TOKENS_CUDA if on_gpu else PASS_TOKENS_CPU
        self._next_fork = 0  # the first fork that was not handed out
        self._ready_until = 0  # forks before this one are prefilled
        self._prefilled: Prefill | None = None
        self._start_of_sequence: dict[int, int] = {}  # in `_prefilled`

    def __len__(self) -> int:
        """The number of forks that wait."""
        return len(self.forks) - self._next_fork

    @property
    def needs_prefill(self) -> bool:
        """Whether the next fork has to be prefilled before it can be taken."""
        return len(self) > 0 and self._next_fork == self._ready_until

    def prefill_next(
        self, has_room: Callable[[int, int], bool] = lambda sequence, tokens: True
    ) -> Sequence[Fork]:
        """Prefill the sequences of the next forks and return these forks.

        `has_room(sequence, tokens)` is asked for every sequence and may refuse it; then the prefill
        ends before it, and is empty if it was the first.
        """
        sequences: dict[int, None] = {}  # used as a set with an order
        num_tokens, end = 0, self._next_fork
        for fork in self.forks[self._next_fork :]:
            if fork.sequence not in sequences:
                tokens = len(self.sequences[fork.sequence])
                if sequences and num_tokens + tokens > self.pass_tokens:
                    break
                if not has_room(fork.sequence, tokens):
                    break
                sequences[fork.sequence] = None
                num_tokens += tokens
            end += 1
        self._prefilled = None  # frees the last prefill before the next one
        if sequences:
            self._prefilled = prefill(self.decoder, [self.sequences[index] for index in sequences])
            self._start_of_sequence = dict(zip(sequences, self._prefilled.starts, strict=True))
        self._ready_until = end
        return self.forks[self._next_fork : end]

    def hand_over_keys(self) -> Prefill:
        """The last prefill; the queue itself keeps only its hidden states."""
        prefilled = self._prefilled
        assert prefilled is not None
        self._prefilled = Prefill(prefilled.starts, prefilled.hidden_N, [], [])
        return prefilled

    def take(self, count: int) -> ReadyForks:
        """The next forks, `count` of them or as many as are prefilled."""
        begin, end = self._next_fork, min(self._next_fork + count, self._ready_until)
        assert self._prefilled is not None
        self._next_fork = end
        forks = list(self.forks[begin:end])
        starts = [self._start_of_sequence[fork.sequence] for fork in forks]
        return ReadyForks(list(range(begin, end)), forks, starts, self._prefilled)


def draw_uniforms(forks: Sequence[Fork], count: int, device: torch.device) -> Tensor:
    """Uniform random numbers [R, count]; row r depends only on the seed of fork r."""
    draws = [np.random.default_rng(fork.seed).random(count, dtype=np.float32) for fork in forks]
    return torch.from_numpy(np.stack(draws)).to(device)


def exclude_tokens(logits_RV: Tensor, forks: Sequence[Fork]) -> None:
    """Give each fork's excluded token probability 0, in place."""
    excluded = [
        (row, fork.excluded_token)
        for row, fork in enumerate(forks)
        if fork.excluded_token is not None
    ]
    if excluded:
        rows, tokens = torch.tensor(excluded, device=logits_RV.device).T
        logits_RV[rows, tokens] = -torch.inf
