"""What every arm makes of one batch whose tokens have Monte Carlo values.

The batch is that of the value studies: open tokens of its first rollouts are valued by
continuations (`lab/studies/token_values.py`). Each arm credits it, and has one iteration on its
first `iterated` prompts (`iteration_cost.py`). Records:

    panel "token"      a token under one arm: A w, w, how far the iteration moved it, its value
    panel "prompt"     a prompt under one arm, in the sums of `credit_iteration.sums_of`
    panel "cost"       an arm: seconds after sampling, seconds of sampling such a batch
    panel "refused"    an arm that this task has no use for, or that failed, and why

Kept in credit_arms.parquet, arm by arm: a study that was stopped goes on from there, and tries
again what failed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from counterpoise.config import RunConfig
from counterpoise.credit.assign import assign, read_settings
from counterpoise.credit.view import Reader, View, ones
from counterpoise.errors import PoiseError
from counterpoise.lab.studies.credit.arms import BASELINE, WEIGHTED_KINDS, CreditArm, credit_arms
from counterpoise.lab.studies.credit.iteration_cost import (
    IterationOutcome,
    prompt_sums,
    run_one_iteration,
    sampling_seconds,
)
from counterpoise.lab.studies.fixed_batch import Candidate, FixedBatch
from counterpoise.lab.studies.harness import Lab
from counterpoise.lab.studies.records import read_records, write_records
from counterpoise.lab.studies.token_values import VALUES_PROGRESS, TokenValueStore
from counterpoise.model.fit_memory import MicroBatch
from counterpoise.statistics.finding import Record
from counterpoise.types import Floats, Row
from counterpoise.variants import TOKEN_WEIGHTS

ARMS_PROGRESS = 0.85  # of the study's time, by when every arm had its iteration
SINGLE_ITERATION = ("update.warmup_steps=0", "update.capture=false")
SETTING_SIZES = (
    "prompts",
    "iterated",
    "continuations",
    "open",
    "steps",
    "repeats",
)  # that records are of


def measure_tokens(lab: Lab) -> list[Record]:
    """Every arm that gives credit to a batch that is there."""
    path = lab.out / "credit_arms.parquet"
    settings = {
        "model": lab.model,
        "seed": lab.seed,
        **{name: lab.sizes[name] for name in SETTING_SIZES},
        **({"set": list(lab.options)} if lab.options else {}),
    }
    records, seconds = read_records(path, settings) or ([], 0.0)
    known = {r["arm"] for r in records}
    todo = [arm for arm in credit_arms().values() if arm.name not in known]
    if not todo:
        return records
    glass, failed = ArmProbe(lab), list[Record]()
    for done, arm in enumerate(todo):
        share = VALUES_PROGRESS + (ARMS_PROGRESS - VALUES_PROGRESS) * done / len(todo)
        lab.progress(f"credit and one iteration of {arm.name}", share)
        start = time.perf_counter()
        try:
            records = [*records, *glass.measure_arm(arm)]
        except RuntimeError as fault:  # torch's: no memory left, or nothing this device can do
            if arm.name == BASELINE:
                raise
            failed.append(_refusal_record(arm, f"{arm.name} failed: {str(fault).splitlines()[0]}"))
            continue
        seconds += time.perf_counter() - start
        write_records(path, records, settings, seconds)
    return records + failed


def _refusal_record(arm: CreditArm, reason: str) -> Record:
    return {"panel": "refused", "arm": arm.name, "kind": arm.kind, "reason": reason}


class ArmProbe:
    """The batch, its values, and what all arms share."""

    def __init__(self, lab: Lab) -> None:
        self.lab, self.batch = lab, FixedBatch(lab)
        self.candidates = self.batch.candidates()
        self.values = TokenValueStore(lab, self.batch).value_records(self.candidates)
        self.groups = self.batch.groups[: lab.sizes["iterated"]]
        keys = {group.key for group in self.groups}
        self.iterated_candidates = [
            n for n, c in enumerate(self.candidates) if self._row(c).group in keys
        ]
        micro = MicroBatch(lab.config.update.micro_tokens)
        reader = Reader(lab.policy, lab.config.sample.temperature, micro, seed=lab.seed)
        self.view = View(self.batch.rows, reader)
        self.sampling_seconds: float | None = None  # seconds, once an iteration was asked for

    def measure_arm(self, arm: CreditArm) -> list[Record]:
        """The records of one arm."""
        about: Record = {"arm": arm.name, "kind": arm.kind}
        try:
            config = self.configure(arm)
        except PoiseError as fault:
            return [_refusal_record(arm, str(fault))]
        if arm.kind == "sampling":
            return [{"panel": "sampling", **about}]
        weights = self.weights(arm, config)
        advantages = self.advantages(config)
        delta_N, prompts, cost = self.iterate(config)
        tokens: list[Record] = []
        for c, value, moved in zip(self.candidates, self.values, delta_N, strict=True):
            w = float(weights[c.row][c.position])
            credit = advantages[self._row(c).name] * w
            tokens.append(
                {"panel": "token", **about, **value, "w": w, "credit": credit, "delta": moved}
            )
        plain = arm.kind in WEIGHTED_KINDS and all((w_T == 1).all() for w_T in weights)
        return [
            *tokens,
            *({"panel": "prompt", **about, **sums} for sums in prompts),
            {"panel": "cost", **about, **cost, "ones": plain},
        ]

    def configure(self, arm: CreditArm) -> RunConfig:
        sizes = self.lab.sizes
        common = (
            *SINGLE_ITERATION,
            f"sample.prompts={sizes['iterated']}",
            f"batch.steps={sizes['steps']}",
        )
        return self.lab.config_with(*common, *arm.options)

    def weights(self, arm: CreditArm, config: RunConfig) -> Sequence[Floats]:
        """Per row of the batch [T]; all look through one view."""
        if arm.kind not in WEIGHTED_KINDS or arm.name == BASELINE:
            return ones(self.batch.rows)
        name = config.credit.weights
        weights_of = TOKEN_WEIGHTS.load(name)
        given = read_settings(name, weights_of, config.credit.settings)
        found: Sequence[Floats] | None = weights_of(self.view, **given)
        return ones(self.batch.rows) if found is None else found

    def advantages(self, config: RunConfig) -> dict[tuple[str, int], float]:
        rows = assign(self.batch.groups, config.credit.name)
        return {row.name: row.advantage for group in rows for row in group}

    def iterate(self, config: RunConfig) -> tuple[list[float | None], list[Record], Record]:
        """(how far every candidate moved, None: not in it; sums of every prompt; seconds)."""
        if self.sampling_seconds is None:
            self.sampling_seconds = sampling_seconds(self.lab, len(self.groups))
            self._run(config)  # the first of all is slower
        runs = [self._run(config) for _ in range(self.lab.sizes["repeats"])]
        moved, last = runs[-1]
        delta_N: list[float | None] = [None] * len(self.candidates)
        for n, delta in zip(self.iterated_candidates, moved, strict=True):
            delta_N[n] = delta
        seconds = min(one.seconds for _, one in runs)  # whatever else happened only adds
        return delta_N, prompt_sums(last), {"seconds": seconds, "sampling": self.sampling_seconds}

    def _run(self, config: RunConfig) -> tuple[list[float], IterationOutcome]:
        """Displacements of the moving candidates, and the iteration; the weights are put back."""
        done: list[IterationOutcome] = []
        chosen = [self.candidates[n] for n in self.iterated_candidates]
        (moved,) = self.batch.measure_displacements(
            chosen, lambda: done.append(run_one_iteration(self.lab, self.groups, config))
        )
        return moved, done[0]

    def _row(self, c: Candidate) -> Row:
        return self.batch.rows[c.row]
