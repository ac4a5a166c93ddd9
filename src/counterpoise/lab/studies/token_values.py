"""Token values of the fixed batch, estimated once for every study that compares updates by them.

A token's value depends on the policy and the state, not on the update under study. What is
estimated is kept in values.parquet, a line for each state that was continued, after every few
groups: a study that was stopped, or another study, goes on from there.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence

from counterpoise.lab.studies.fixed_batch import Candidate, FixedBatch
from counterpoise.lab.studies.harness import Lab
from counterpoise.lab.studies.records import read_records, write_records
from counterpoise.microscope.value import Branch, BranchKind, branch_rewards
from counterpoise.statistics.finding import Record

GROUPS_AT_ONCE = 12  # their states are sampled together, then saved
VALUES_PROGRESS = 0.7  # of a study's time, for its progress bar
VALUE_SIZES = {  # the batch and the values that the four studies share; `continuations` is even
    "quick": {"prompts": 96, "continuations": 12, "open": 8, "closed": 2},
    "full": {"prompts": 96, "continuations": 256, "open": 16, "closed": 6},
}
ValueState = tuple[
    Candidate, BranchKind
]  # a token, and what is continued: s + o, s, or s without o
StateKey = tuple[str, int, int, BranchKind]  # the same by name: group, rollout, position, kind
HalfMeans = tuple[float, float]  # mean reward of the even and of the odd continuations
COLUMNS = ("group", "rollout", "position", "kind", "even", "odd")


class TokenValueStore:
    """Example:

    batch = FixedBatch(lab)
    records = TokenValueStore(lab, batch).values(batch.candidates())
    """

    def __init__(self, lab: Lab, batch: FixedBatch) -> None:
        self.lab, self.rows = lab, batch.rows
        self.path = lab.out / "values.parquet"
        self.settings = {
            "model": lab.model,
            "seed": lab.seed,
            "prompts": lab.sizes["prompts"],
            "continuations": lab.sizes["continuations"],
            **({"set": list(lab.options)} if lab.options else {}),
        }
        saved, self.seconds = read_records(self.path, self.settings) or ([], 0.0)
        self.known_halves: dict[StateKey, HalfMeans] = {
            (r["group"], r["rollout"], r["position"], r["kind"]): (r["even"], r["odd"])
            for r in saved
        }

    def value_records(
        self, candidates: Sequence[Candidate], *, mixed: bool = False
    ) -> list[Record]:
        """What the records of every study say of a token.

        value      Q(s, o) - Q_other, by the forced estimator
        even, odd  the same from half of the continuations each: one to choose by, one to measure
        plain      Q - V = (1 - p) value, the main text's definition
        mixed      eq. 20 itself, where asked for
        """
        kinds: tuple[BranchKind, ...] = ("taken", "other", "free") if mixed else ("taken", "other")
        self._estimate([(c, kind) for c in candidates for kind in kinds])
        return [self._record(c, mixed) for c in candidates]

    def _record(self, c: Candidate, mixed: bool) -> Record:
        row = self.rows[c.row]
        taken, other = (
            self.known_halves[self._state_key((c, kind))] for kind in ("taken", "other")
        )
        even, odd = taken[0] - other[0], taken[1] - other[1]
        value, rest = (even + odd) / 2, -math.expm1(c.logprob)  # rest: 1 - p
        record: Record = {
            "prompt": row.group,
            "rollout": row.index,
            "position": c.position,
            "sign": "positive" if row.sign > 0 else "negative",
            "p": math.exp(c.logprob),
            "entropy": c.entropy,
            "weight": c.weight,
            "value": value,
            "even": even,
            "odd": odd,
            "plain": rest * value,
        }
        if mixed:
            excess = (sum(taken) - sum(self.known_halves[self._state_key((c, "free"))])) / 2
            record["mixed"] = excess / rest if rest else math.nan
        return record

    def _estimate(self, wanted: Sequence[ValueState]) -> None:
        """Sample the states that are not known yet, a few groups at a time."""
        missing = [state for state in wanted if self._state_key(state) not in self.known_halves]
        done = 0
        for part in self._group_batches(missing):
            start = time.perf_counter()
            used = sorted({c.row for c, _ in part})
            rewards_BM = branch_rewards(
                self.lab.policy,
                [self.rows[i] for i in used],
                [Branch(used.index(c.row), c.position, kind) for c, kind in part],
                self.lab.verifier,
                self.lab.config.sample,
                continuations=self.lab.sizes["continuations"],
                seed=self.lab.seed,
            )
            for state, rewards_M in zip(part, rewards_BM, strict=True):
                halves = float(rewards_M[::2].mean()), float(rewards_M[1::2].mean())
                self.known_halves[self._state_key(state)] = halves
            self.seconds += time.perf_counter() - start
            self._save()
            done += len(part)
            share = VALUES_PROGRESS * done / len(missing)
            self.lab.progress(f"token values, {done} of {len(missing)} states", share)

    def _save(self) -> None:
        self.lab.out.mkdir(parents=True, exist_ok=True)
        lines = [
            dict(zip(COLUMNS, (*place, *halves), strict=True))
            for place, halves in self.known_halves.items()
        ]
        write_records(self.path, lines, self.settings, self.seconds)

    def _state_key(self, state: ValueState) -> StateKey:
        c, kind = state
        return self.rows[c.row].group, self.rows[c.row].index, c.position, kind

    def _group_batches(self, missing: Sequence[ValueState]) -> Iterator[list[ValueState]]:
        """All of a group together: its rollouts share states."""
        by_group: dict[str, list[ValueState]] = {}
        for state in missing:
            by_group.setdefault(self.rows[state[0].row].group, []).append(state)
        groups = list(by_group.values())
        for first in range(0, len(groups), GROUPS_AT_ONCE):
            yield [state for group in groups[first : first + GROUPS_AT_ONCE] for state in group]
