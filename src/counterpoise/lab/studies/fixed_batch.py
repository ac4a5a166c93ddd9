"""The fixed batch on which updates are compared, and the tokens they are compared by.

Candidates are tokens of the first rollout of every group with signal: that rollout is in every
compared batch, even with a single rollout per prompt.

    open      p(o) <= 0.95      `open` random tokens of a rollout, or all if it has fewer
    closed    p(o) >  0.95      `closed` random tokens of a rollout; most tokens are closed, and
                                hardly move

A candidate's weight is the number of tokens of its rollout that it represents, so weighted means
are means over all tokens.
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
    entropy: float  # entropy of its distribution
    weight: float = 1.0  # number of tokens it represents

    @property
    def is_open(self) -> bool:
        return self.logprob <= math.log(OPEN_LIMIT)


class FixedBatch:
    """Eight rollouts of each of `lab.sizes["prompts"]` prompts, by the model as it was loaded."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.groups = lab.groups(lab.sizes["prompts"])
        self.rows = lab.credit_rows(self.groups)  # rows with signal
        self._tokens: dict[tuple[int, ...], list[Candidate]] = {}

    def rows_of(self, groups: Collection[str]) -> list[Row]:
        group_keys = set(groups)
        return [row for row in self.rows if row.group in group_keys]

    # -- tokens --------------------------------------------------------------------------------

    def candidates(self, *, closed: bool = False) -> list[Candidate]:
        """Open tokens of the first rollouts; with `closed` the candidates represent all tokens."""
        first_rows = [row_index for row_index, row in enumerate(self.rows) if row.index == 0]
        selected: list[Candidate] = []
        for row_index, members in groupby(
            self.tokens_of_rows(first_rows), key=lambda token: token.row
        ):
            tokens = list(members)
            rng = rng_for(self.lab.seed, f"candidates/{self.rows[row_index].group}")
            for token_kind in ("open", "closed"):
                pool = [token for token in tokens if token.is_open == (token_kind == "open")]
                count = min(len(pool), self.lab.sizes[token_kind])
                picked_indices = sorted(rng.permutation(len(pool))[:count])
                # Both kinds are always drawn: the open ones must not depend on `closed`.
                if token_kind == "open" or closed:
                    selected += [
                        replace(pool[pool_index], weight=len(pool) / count)
                        for pool_index in picked_indices
                    ]
        return selected

    def open_tokens(self) -> list[Candidate]:
        """Every open token of every rollout: first rollouts first, otherwise in random order.

        The order of rollouts is arbitrary, so the first n of these are a random sample that shares
        tokens with `candidates`.
        """
        pool = [token for token in self.tokens_of_rows(range(len(self.rows))) if token.is_open]
        order = rng_for(self.lab.seed, "all open").permutation(len(pool))
        return sorted(
            (pool[pool_index] for pool_index in order), key=lambda token: self.rows[token.row].index
        )

    def tokens_of_rows(self, rows: Sequence[int]) -> list[Candidate]:
        """All tokens of some rows under the model as loaded."""
        row_indices = tuple(rows)
        if row_indices not in self._tokens:
            # Computed once for these rows, with the loaded weights. A pass over other rows would
            # pack them into other micro-batches, and round differently.
            token_snapshot = self._snapshot_rows(row_indices)
            columns = (
                token_snapshot.rows,
                token_snapshot.positions,
                token_snapshot.logprobs.double(),
                token_snapshot.entropies.double(),
            )
            self._tokens[row_indices] = [
                Candidate(row_indices[row_number], position, logprob, entropy)
                for row_number, position, logprob, entropy in zip(
                    *(column.tolist() for column in columns), strict=True
                )
            ]
        return self._tokens[row_indices]

    # -- updates -------------------------------------------------------------------------------

    def measure_displacements(
        self, candidates: Sequence[Candidate], *updates: Callable[[], object]
    ) -> list[list[float]]:
        """Delta log p of the candidates since the start, after each of `updates` in turn.

        The weights are restored at the end. Log-probabilities before and after come from passes
        over the same rows, so an update that changes nothing displaces nothing.
        """
        row_indices = tuple(sorted({candidate.row for candidate in candidates}))
        tokens_before = self.tokens_of_rows(row_indices)
        # Candidates may repeat and come in any order; the pass has each row once, in row order.
        index_by_place = {
            (candidate.row, candidate.position): index
            for index, candidate in enumerate(tokens_before)
        }
        indices = [index_by_place[candidate.row, candidate.position] for candidate in candidates]
        displacements: list[list[float]] = []
        with self.lab.unchanged():
            for update in updates:
                update()
                logprobs_now = self._snapshot_rows(row_indices).logprobs.double().tolist()
                displacements.append(
                    [logprobs_now[index] - tokens_before[index].logprob for index in indices]
                )
        return displacements

    def _snapshot_rows(self, rows: Sequence[int]) -> Snapshot:
        config = self.lab.config
        return take_snapshot(
            self.lab.policy,
            [self.rows[row_index] for row_index in rows],
            config.sample.temperature,
            config.update.micro_tokens,
        )


def recredit(rows: Sequence[Row]) -> list[Row]:
    """Recompute the advantages of some rows of a group as if they were the whole group.

    A single rollout has no group to be compared with: A = r, as in verl.
    """
    rewards_G = np.array([row.content.reward for row in rows])
    advantages_G = rewards_G if len(rows) == 1 else advantages.grpo(rewards_G)
    return [
        replace(row, advantage=float(advantage))
        for row, advantage in zip(rows, advantages_G, strict=True)
    ]
