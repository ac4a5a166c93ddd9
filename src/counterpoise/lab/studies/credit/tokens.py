"""Measure every arm on one batch whose tokens have Monte Carlo values.

The batch is that of the value studies: open tokens of its first rollouts are valued by
continuations (`lab/studies/token_values.py`). Each arm assigns credit to the batch and runs one
iteration on its first `iterated` prompts (`iteration_cost.py`). Records:

    panel "token"      a token under one arm: A w, w, how far the iteration moved it, its value
    panel "prompt"     a prompt under one arm, in the sums of `iteration_cost.prompt_sums`
    panel "cost"       an arm: seconds after sampling, seconds of sampling such a batch
    panel "refused"    an arm that does not fit this task, or that failed, and why

Records are saved to credit_arms.parquet arm by arm: a stopped study continues from there. Failed
arms are not saved, so `poise study credit --again` tries them again, and only them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from counterpoise.config import RunConfig
from counterpoise.credit.assign import assign, parse_settings
from counterpoise.credit.view import CreditView, PolicyReader, unit_weights
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
from counterpoise.lab.studies.records import path_for, read_records, write_records
from counterpoise.lab.studies.token_values import VALUES_PROGRESS, TokenValueStore
from counterpoise.model.fit_memory import FittedSize
from counterpoise.statistics.finding import Record
from counterpoise.types import Floats, Row
from counterpoise.variants import TOKEN_WEIGHTS

ARMS_PROGRESS = 0.85  # share of the study's time when every arm had its iteration
SINGLE_ITERATION = ("update.warmup_steps=0", "update.capture=false")
# Sizes that the records depend on.
SETTING_SIZES = ("prompts", "iterated", "continuations", "open", "steps", "repeats")


def measure_tokens(lab: Lab) -> list[Record]:
    """The records of the arms that `--size every` chooses, and of the baseline."""
    settings = {
        **lab.source_settings,
        **{size_name: lab.sizes[size_name] for size_name in SETTING_SIZES},
    }
    table_path = path_for(lab.out / "credit_arms.parquet", settings)
    records, seconds = read_records(table_path, settings) or ([], 0.0)
    known_arms = {record["arm"] for record in records}
    chosen_arms = {BASELINE, *lab.sizes["every"]}
    missing_arms = [
        arm
        for arm in credit_arms().values()
        if arm.name in chosen_arms and arm.name not in known_arms
    ]
    if not missing_arms:
        return [record for record in records if record["arm"] in chosen_arms]
    measurer = ArmMeasurer(lab)
    failed_records: list[Record] = []
    for index, arm in enumerate(missing_arms):
        progress_share = VALUES_PROGRESS + (ARMS_PROGRESS - VALUES_PROGRESS) * index / len(
            missing_arms
        )
        lab.progress(f"credit and one iteration of {arm.name}", progress_share)
        start_time = time.perf_counter()
        try:
            records = [*records, *measurer.measure_arm(arm)]
        except RuntimeError as fault:  # torch: out of memory, or not supported on this device
            # Without the baseline nothing can be compared; any other arm may be missing.
            if arm.name == BASELINE:
                raise
            # Returned but not saved, so that --again tries the arm again.
            failed_records.append(
                _refusal_record(arm, f"{arm.name} failed: {str(fault).splitlines()[0]}")
            )
            continue
        seconds += time.perf_counter() - start_time
        write_records(table_path, records, settings, seconds)
    return [record for record in records if record["arm"] in chosen_arms] + failed_records


def _refusal_record(arm: CreditArm, reason: str) -> Record:
    return {"panel": "refused", "arm": arm.name, "kind": arm.kind, "reason": reason}


class ArmMeasurer:
    """The batch, its token values, and everything else that all arms share."""

    def __init__(self, lab: Lab) -> None:
        self.lab, self.batch = lab, FixedBatch(lab)
        self.candidates = self.batch.candidates()
        self.values = TokenValueStore(lab, self.batch).value_records(self.candidates)
        self.groups = self.batch.groups[: lab.sizes["iterated"]]
        group_keys = {group.key for group in self.groups}
        self.iterated_candidates = [
            index
            for index, candidate in enumerate(self.candidates)
            if self._row(candidate).group in group_keys
        ]
        micro_batch = FittedSize(lab.config.update.micro_tokens)
        reader = PolicyReader(lab.policy, lab.config.sample.temperature, micro_batch, seed=lab.seed)
        self.view = CreditView(self.batch.rows, reader)
        self.sampling_seconds: float | None = None  # measured with the first iteration

    def measure_arm(self, arm: CreditArm) -> list[Record]:
        """The records of one arm."""
        arm_columns: Record = {"arm": arm.name, "kind": arm.kind}
        try:
            config = self.configure(arm)
        except PoiseError as fault:
            return [_refusal_record(arm, str(fault))]
        # Other rewards or groups change the batch itself: there is nothing to compare on this one.
        if arm.kind == "sampling":
            return [{"panel": "sampling", **arm_columns}]
        weights = self.weights(arm, config)
        advantages = self.advantages(config)
        delta_N, prompts, cost = self.iterate(config)
        tokens: list[Record] = []
        for candidate, value_record, displacement in zip(
            self.candidates, self.values, delta_N, strict=True
        ):
            token_weight = float(weights[candidate.row][candidate.position])
            credit = advantages[self._row(candidate).name] * token_weight
            tokens.append(
                {
                    "panel": "token",
                    **arm_columns,
                    **value_record,
                    "w": token_weight,
                    "credit": credit,
                    "delta": displacement,
                }
            )
        # A weighting of 1 everywhere is the baseline: it is neither judged nor trained.
        all_ones = arm.kind in WEIGHTED_KINDS and all((w_T == 1).all() for w_T in weights)
        return [
            *tokens,
            *({"panel": "prompt", **arm_columns, **sums} for sums in prompts),
            {"panel": "cost", **arm_columns, **cost, "ones": all_ones},
        ]

    def configure(self, arm: CreditArm) -> RunConfig:
        """The configuration of one iteration of the arm."""
        sizes = self.lab.sizes
        common = (
            *SINGLE_ITERATION,
            f"sample.prompts={sizes['iterated']}",
            f"batch.steps={sizes['steps']}",
        )
        return self.lab.config_with(*common, *arm.options)

    def weights(self, arm: CreditArm, config: RunConfig) -> Sequence[Floats]:
        """Token weights of each row of the batch [T]; all arms share one view, and so its cache."""
        if arm.kind not in WEIGHTED_KINDS or arm.name == BASELINE:
            return unit_weights(self.batch.rows)
        weights_name = config.credit.weights
        weights_function = TOKEN_WEIGHTS.load(weights_name)
        settings = parse_settings(weights_name, weights_function, config.credit.settings)
        weights: Sequence[Floats] | None = weights_function(self.view, **settings)
        return unit_weights(self.batch.rows) if weights is None else weights

    def advantages(self, config: RunConfig) -> dict[tuple[str, int], float]:
        """The advantage of every row, by its name."""
        rows = assign(self.batch.groups, config.credit.name)
        return {row.name: row.advantage for group in rows for row in group}

    def iterate(self, config: RunConfig) -> tuple[list[float | None], list[Record], Record]:
        """(displacement of every candidate, or None; sums of every prompt; seconds)."""
        if self.sampling_seconds is None:
            self.sampling_seconds = sampling_seconds(self.lab, len(self.groups))
            self._run(config)  # warm-up: the first iteration is slower
        runs = [self._run(config) for _ in range(self.lab.sizes["repeats"])]
        displacements, last_outcome = runs[-1]
        delta_N: list[float | None] = [None] * len(self.candidates)
        for index, displacement in zip(self.iterated_candidates, displacements, strict=True):
            delta_N[index] = displacement
        # The minimum, because other load on the machine only adds time.
        seconds = min(outcome.seconds for _, outcome in runs)
        return (
            delta_N,
            prompt_sums(last_outcome),
            {"seconds": seconds, "sampling": self.sampling_seconds},
        )

    def _run(self, config: RunConfig) -> tuple[list[float], IterationOutcome]:
        """Displacements of the iterated candidates, and the outcome; the weights are restored."""
        outcomes: list[IterationOutcome] = []
        moved_candidates = [self.candidates[index] for index in self.iterated_candidates]
        (displacements,) = self.batch.measure_displacements(
            moved_candidates,
            lambda: outcomes.append(run_one_iteration(self.lab, self.groups, config)),
        )
        return displacements, outcomes[0]

    def _row(self, candidate: Candidate) -> Row:
        return self.batch.rows[candidate.row]
