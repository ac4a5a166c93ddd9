"""Values of the fixed batch's tokens, estimated once for all studies that compare updates by them.

A token's value depends on the policy and the state, not on the update under study. Estimates are
saved to values.parquet after every few groups, one line for each continued state, so a stopped
study, or another study, continues from there. Values at other settings (`credit` has its own number
of prompts and continuations) are in a file of their own (records.py).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence

from counterpoise.errors import PoiseError
from counterpoise.lab.studies.fixed_batch import Candidate, FixedBatch
from counterpoise.lab.studies.harness import Lab, fast_sampling
from counterpoise.lab.studies.records import path_for, read_records, write_records
from counterpoise.microscope.value import (
    Branch,
    BranchKind,
    branch_rewards,
    mixed_value,
    probability_of_others,
)
from counterpoise.statistics.finding import Record

GROUPS_AT_ONCE = 12  # groups whose states are sampled together, then saved
VALUES_PROGRESS = 0.7  # share of a study's time, for its progress bar
# Sizes that the value studies share; `open` and `closed` tokens are defined in fixed_batch.py.
VALUE_SIZES = {
    "quick": {"prompts": 96, "continuations": 12, "open": 8, "closed": 2},
    "full": {"prompts": 96, "continuations": 256, "open": 16, "closed": 6},
}
# A token o after the prefix s, and what is continued: "taken", s + o; "free", s; or "other", s with
# a first token that is not o.
ValueState = tuple[Candidate, BranchKind]
# The state's key in the file: group, rollout, position, kind.
StateKey = tuple[str, int, int, BranchKind]
HalfMeans = tuple[float, float]  # mean reward of the even and of the odd continuations
COLUMNS = ("group", "rollout", "position", "kind", "even", "odd")


class TokenValueStore:
    """Estimates token values and keeps them in values.parquet.

    Example:
        batch = FixedBatch(lab)
        records = TokenValueStore(lab, batch).value_records(batch.candidates())
    """

    def __init__(self, lab: Lab, batch: FixedBatch) -> None:
        self.lab, self.rows = lab, batch.rows
        continuations = lab.sizes["continuations"]
        if continuations % 2:
            raise PoiseError(
                f"--size continuations={continuations}: a value is the mean of two equal halves of "
                f"its continuations; choose an even number, such as {continuations + 1}"
            )
        self.settings = {
            **lab.source_settings,
            "prompts": lab.sizes["prompts"],
            "continuations": continuations,
        }
        self.path = path_for(lab.out / "values.parquet", self.settings)
        saved_records, self.seconds = read_records(self.path, self.settings) or ([], 0.0)
        self.known_halves: dict[StateKey, HalfMeans] = {
            (record["group"], record["rollout"], record["position"], record["kind"]): (
                record["even"],
                record["odd"],
            )
            for record in saved_records
        }

    def value_records(
        self, candidates: Sequence[Candidate], *, mixed: bool = False
    ) -> list[Record]:
        """One record per candidate, with the columns that every study needs.

        value      Q(s, o) - Q_other, by the forced estimator
        even, odd  the same from half of the continuations each: choose by one, measure by the other
        plain      Q - V = (1 - p) value, the definition of the paper's main text
        mixed      eq. 20 itself, with `mixed=True`
        """
        kinds: tuple[BranchKind, ...] = ("taken", "other", "free") if mixed else ("taken", "other")
        self._estimate([(candidate, kind) for candidate in candidates for kind in kinds])
        return [self._record(candidate, mixed) for candidate in candidates]

    def _record(self, candidate: Candidate, mixed: bool) -> Record:
        row = self.rows[candidate.row]
        taken_halves, other_halves = (
            self.known_halves[self._state_key((candidate, kind))] for kind in ("taken", "other")
        )
        even, odd = taken_halves[0] - other_halves[0], taken_halves[1] - other_halves[1]
        value = (even + odd) / 2
        record: Record = {
            "prompt": row.group,
            "rollout": row.index,
            "position": candidate.position,
            "sign": "positive" if row.sign > 0 else "negative",
            "p": math.exp(candidate.logprob),
            "entropy": candidate.entropy,
            "weight": candidate.weight,
            "value": value,
            "even": even,
            "odd": odd,
            "plain": probability_of_others(candidate.logprob) * value,
        }
        if mixed:
            free_halves = self.known_halves[self._state_key((candidate, "free"))]
            record["mixed"] = mixed_value(
                sum(taken_halves) / 2, sum(free_halves) / 2, candidate.logprob
            )
        return record

    def _estimate(self, states: Sequence[ValueState]) -> None:
        """Sample the states that are not estimated yet, a few groups at a time."""
        missing = [state for state in states if self._state_key(state) not in self.known_halves]
        states_done = 0
        for state_batch in self._group_batches(missing):
            start_time = time.perf_counter()
            # Only the rows of this batch are passed, so branches index into that shorter list.
            row_indices = sorted({candidate.row for candidate, _ in state_batch})
            with fast_sampling(self.lab.policy.device):
                rewards_BM = branch_rewards(
                    self.lab.policy,
                    [self.rows[index] for index in row_indices],
                    [
                        Branch(row_indices.index(candidate.row), candidate.position, kind)
                        for candidate, kind in state_batch
                    ],
                    self.lab.verifier,
                    self.lab.config.sample,
                    continuations=self.lab.sizes["continuations"],
                    seed=self.lab.seed,
                )
            for state, rewards_M in zip(state_batch, rewards_BM, strict=True):
                # Even and odd continuations give two independent estimates of the same mean.
                halves = float(rewards_M[::2].mean()), float(rewards_M[1::2].mean())
                self.known_halves[self._state_key(state)] = halves
            self.seconds += time.perf_counter() - start_time
            self._save()
            states_done += len(state_batch)
            progress_share = VALUES_PROGRESS * states_done / len(missing)
            self.lab.progress(
                f"token values, {states_done} of {len(missing)} states", progress_share
            )

    def _save(self) -> None:
        self.lab.out.mkdir(parents=True, exist_ok=True)
        # The whole table is rewritten each time: parquet cannot be appended to.
        table_rows = [
            dict(zip(COLUMNS, (*state_key, *halves), strict=True))
            for state_key, halves in self.known_halves.items()
        ]
        write_records(self.path, table_rows, self.settings, self.seconds)

    def _state_key(self, state: ValueState) -> StateKey:
        candidate, kind = state
        return (
            self.rows[candidate.row].group,
            self.rows[candidate.row].index,
            candidate.position,
            kind,
        )

    def _group_batches(self, missing: Sequence[ValueState]) -> Iterator[list[ValueState]]:
        """Missing states in batches of whole groups, because rollouts of a group share states."""
        by_group: dict[str, list[ValueState]] = {}
        for state in missing:
            by_group.setdefault(self.rows[state[0].row].group, []).append(state)
        groups = list(by_group.values())
        for batch_start in range(0, len(groups), GROUPS_AT_ONCE):
            yield [
                state
                for group in groups[batch_start : batch_start + GROUPS_AT_ONCE]
                for state in group
            ]
