"""One batch that several updates are compared on, and the tokens they are compared by.

Candidates are tokens of the first rollout of every group with signal: that rollout is in every
batch that is compared, down to one rollout a prompt.

    open      p(o) <= 0.95      `open` of a rollout, at random, or all where it has no more
    closed    p(o) >  0.95      `closed` of a rollout; most tokens are, and hardly move

A candidate's weight is the number of its rollout's tokens it stands for, so weighted means are over
all tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from counterpoise.credit import advantages
from counterpoise.lab.studies.harness import Lab
from counterpoise.microscope.batch_tokens import Snapshot, take_snapshot
from counterpoise.seeds import rng_for
from counterpoise.types import Row

OPEN_LIMIT = 0.95


@dataclass(frozen=True, slots=True)
class Candidate:
    """One token of the batch.

    Example:
        Candidate(row=3, position=17, logprob=-0.51, entropy=0.64, weight=1.0)
    """

    row: int  # index into the batch's rows
    position: int
    logprob: float
    entropy: float  # of the distribution it was drawn from
    weight: float = 1.0  # how many tokens it stands for

    @property
    def is_open(self) -> bool:
        return self.logprob <= math.log(OPEN_LIMIT)


class FixedBatch:
    """Eight rollouts of each of `lab.sizes["prompts"]` prompts, by the model as it was loaded."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.groups = lab.groups(lab.sizes["prompts"])
        self.rows = lab.credit_rows(self.groups)  # those with signal
        self._tokens: dict[tuple[int, ...], list[Candidate]] = {}

    def rows_of(self, groups: Collection[str]) -> list[Row]:
        wanted = set(groups)
        return [row for row in self.rows if row.group in wanted]

    # -- tokens --------------------------------------------------------------------------------

    def candidates(self, *, closed: bool = False) -> list[Candidate]:
        """The open ones of first rollouts; with the closed ones they stand for all tokens."""
        first = [i for i, row in enumerate(self.rows) if row.index == 0]
        chosen: list[Candidate] = []
        for i, members in groupby(self.tokens_of_rows(first), key=lambda c: c.row):
            tokens = list(members)
            rng = rng_for(self.lab.seed, f"candidates/{self.rows[i].group}")
            for name in ("open", "closed"):
                pool = [c for c in tokens if c.is_open == (name == "open")]
                count = min(len(pool), self.lab.sizes[name])
                picked = sorted(rng.permutation(len(pool))[:count])
                if name == "open" or closed:
                    chosen += [replace(pool[k], weight=len(pool) / count) for k in picked]
        return chosen

    def open_tokens(self) -> list[Candidate]:
        """Every open token of every rollout, first rollouts first, otherwise in random order.

        Which rollout is first says nothing about it, so any beginning of this is a random draw,
        and one that shares tokens with `candidates`.
        """
        pool = [c for c in self.tokens_of_rows(range(len(self.rows))) if c.is_open]
        order = rng_for(self.lab.seed, "all open").permutation(len(pool))
        return sorted((pool[k] for k in order), key=lambda c: self.rows[c.row].index)

    def tokens_of_rows(self, rows: Sequence[int]) -> list[Candidate]:
        """All tokens of some rows under the model as it was loaded."""
        key = tuple(rows)
        if key not in self._tokens:
            seen = self._snapshot_rows(key)
            columns = (seen.rows, seen.positions, seen.logprobs.double(), seen.entropies.double())
            self._tokens[key] = [
                Candidate(key[row], position, logprob, entropy)
                for row, position, logprob, entropy in zip(
                    *(column.tolist() for column in columns), strict=True
                )
            ]
        return self._tokens[key]

    # -- updates -------------------------------------------------------------------------------

    def measure_displacements(
        self, candidates: Sequence[Candidate], *updates: Callable[[], object]
    ) -> list[list[float]]:
        """Delta log p of the candidates since the start, after each of `updates` in turn.

        The weights are put back in the end. Before and after are passes over the same rows, so an
        update of nothing displaces nothing.
        """
        rows = tuple(sorted({c.row for c in candidates}))
        before = self.tokens_of_rows(rows)
        place = {(c.row, c.position): n for n, c in enumerate(before)}
        places = [place[c.row, c.position] for c in candidates]
        after: list[list[float]] = []
        with self.lab.unchanged():
            for update in updates:
                update()
                now = self._snapshot_rows(rows).logprobs.double().tolist()
                after.append([now[n] - before[n].logprob for n in places])
        return after

    def _snapshot_rows(self, rows: Sequence[int]) -> Snapshot:
        config = self.lab.config
        return take_snapshot(
            self.lab.policy,
            [self.rows[i] for i in rows],
            config.sample.temperature,
            config.update.micro_tokens,
        )


def recredit(rows: Sequence[Row]) -> list[Row]:
    """Rows of one group as if they were the whole group: advantages from their rewards alone.

    A single rollout has no group to be compared with: A = r, as in verl.
    """
    rewards_G = np.array([row.content.reward for row in rows])
    advantages_G = rewards_G if len(rows) == 1 else advantages.grpo(rewards_G)
    return [replace(row, advantage=float(a)) for row, a in zip(rows, advantages_G, strict=True)]
