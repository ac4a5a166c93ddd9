"""What a weighting of tokens may look at: rows, and what the policy that drew them makes of them.

Everything that costs a pass is computed when it is first asked for, once, and for rows with signal
only: a row without an advantage gives nothing to weigh. A host framework that keeps the policy to
itself gives none; a weighting that asks for it is then refused by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from torch import Tensor

from counterpoise.errors import PoiseError
from counterpoise.model.fit_memory import MicroBatch
from counterpoise.model.load import Policy
from counterpoise.model.reading_passes import EAGER_READING, ReadingPasses
from counterpoise.model.scoring import TokenScores, score_logprobs, score_tokens
from counterpoise.types import Floats, Ints, Row


class NoPolicyError(PoiseError):
    """A weighting asked for a policy where there is none."""


@dataclass(frozen=True, eq=False)
class PolicyReader:
    """Who reads the rows: the policy as it sampled them, and when."""

    policy: Policy
    temperature: float = 1.0
    micro_batch: MicroBatch = field(default_factory=lambda: MicroBatch(16384))  # tokens of one pass
    iteration: int = 1
    seed: int = 0
    passes: ReadingPasses = EAGER_READING  # how they are run
    scores: dict[tuple[str, int], Floats] = field(default_factory=dict)
    """By the rows' names, what a weighting had read of them: the update asks for the same."""


@dataclass(frozen=True, eq=False)
class CreditView:
    """Rows with signal, the rows of a group side by side. A weighting returns weights for each.

    Example:
        def weights(view: View, *, share: float = 0.2) -> list[Floats]:
            edge = np.quantile(np.concatenate(view.entropies), 1 - share)
            return [(entropies_T >= edge).astype(np.float32) for entropies_T in view.entropies]
    """

    rows: Sequence[Row]
    reader: PolicyReader | None = None

    @cached_property
    def groups(self) -> list[list[int]]:
        """Positions of the rows of each group."""
        found: dict[str, list[int]] = {}
        for i, row in enumerate(self.rows):
            found.setdefault(row.group, []).append(i)
        return list(found.values())

    @property
    def policy(self) -> Policy:
        return self._reader.policy

    @property
    def entropies(self) -> list[Floats]:
        """Per row [T], of the whole distribution, in nats."""
        return self._read.entropies

    @property
    def logprobs(self) -> list[Floats]:
        """Per row [T], by the trainer."""
        return self._read.logprobs

    @property
    def hidden(self) -> list[Tensor]:
        """Per row [T, D], the input of the unembedding, on the policy's device."""
        return self._read.hidden

    def start_reading(self) -> None:
        """Have the rows read. A GPU does it while the host goes on, until its numbers are asked."""
        _ = self._read

    @property
    def logprobs_if_read(self) -> list[Floats] | None:
        """`logprobs`, if a pass was made for whatever was asked; None: there was none."""
        return self._read.logprobs if "_read" in vars(self) else None

    def logprobs_with_prompts(self, prompts: Sequence[Ints]) -> list[Floats]:
        """Per row [T], had the prompt of row i been `prompts[i]`: what a hint would change."""
        reader = self._reader
        moved = [
            replace(row, rollout=replace(row.content, prompt_tokens=prompt))
            for row, prompt in zip(self.rows, prompts, strict=True)
        ]
        # passes take the rows of a group to share a prompt: those of one that differ part ways
        number: dict[bytes, int] = {}
        told = [
            replace(row, group=f"{row.group}/{number.setdefault(prompt.tobytes(), len(number))}")
            for row, prompt in zip(moved, prompts, strict=True)
        ]
        return score_logprobs(
            reader.policy, told, reader.temperature, reader.micro_batch, reader.passes.read
        )

    @property
    def _reader(self) -> PolicyReader:
        if self.reader is None:
            raise NoPolicyError("these token weights need the policy, which this engine keeps")
        return self.reader

    @cached_property
    def _read(self) -> TokenScores:
        reader = self._reader
        return score_tokens(
            reader.policy, self.rows, reader.temperature, reader.micro_batch, reader.passes.read
        )


def unit_weights(rows: Sequence[Row]) -> list[Floats]:
    """What a weighting falls back to."""
    return [np.ones(row.num_tokens, dtype=np.float32) for row in rows]
