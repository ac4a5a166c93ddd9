"""Fig. 11: do repeated updates on one batch widen the value gap?

K GRPO steps on the same fixed batch from one checkpoint, with one AdamW throughout. Old
log-probabilities stay those of the checkpoint, so ratios leave 1 and clipping sets in. After every
step, a token's class is given by its displacement since the start; its value is that at the start.

Replicated: the gap after the last step exceeds that after the first, with the interval of the
difference above 0, and it rises along the way: the rank correlation of gap and step is at least
0.8. Not replicated: the interval lies below 0. Inconclusive otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from counterpoise.lab.studies.fixed_batch import FixedBatch
from counterpoise.lab.studies.harness import Lab
from counterpoise.lab.studies.study import Study
from counterpoise.lab.studies.token_values import VALUE_SIZES, VALUES_PROGRESS, TokenValueStore
from counterpoise.lab.studies.value_gap import (
    detectable_note,
    format_gap,
    gap_change,
    pool_signs,
    value_gap,
)
from counterpoise.lab.studies.value_gap_charts import (
    KEYS,
    SIGN_STYLES,
    gap_chart,
    gap_points_by_sign,
)
from counterpoise.report.charts.figure import Figure
from counterpoise.statistics.finding import Finding, Number, Record, Records, Verdict
from counterpoise.statistics.ranks import rank_correlations
from counterpoise.update.optimizer import Optimizer
from counterpoise.update.step import StepSettings, take_step

MIN_RANK_CORRELATION = 0.8  # of gap and step


# -- measure --------------------------------------------------------------------------------------


def measure(lab: Lab) -> Records:
    batch = FixedBatch(lab)
    group_keys = {group.key for group in batch.groups[: lab.sizes["repeated"]]}
    rows = batch.rows_of(group_keys)
    candidates = [
        candidate
        for candidate in batch.candidates()
        if batch.rows[candidate.row].group in group_keys
    ]
    values = TokenValueStore(lab, batch).value_records(candidates)
    # One optimizer for all steps: its moments must carry over, as in training.
    options = replace(lab.config.update, warmup_steps=0, kl=0.0)
    optimizer = Optimizer(lab.policy.model, options)
    steps, steps_taken = lab.sizes["steps"], 0

    def step() -> None:
        nonlocal steps_taken
        take_step(
            lab.policy,
            optimizer,
            rows,
            StepSettings(
                options,
                temperature=lab.config.sample.temperature,
                max_new_tokens=lab.config.sample.max_new_tokens,
            ),
        )
        steps_taken += 1
        progress_share = VALUES_PROGRESS + (1 - VALUES_PROGRESS) * steps_taken / steps
        lab.progress(f"update {steps_taken} of {steps}", progress_share)

    records: list[Record] = []
    for step_number, displacements in enumerate(
        batch.measure_displacements(candidates, *[step] * steps), 1
    ):
        records += [
            {"step": step_number, **value_record, "delta": displacement}
            for value_record, displacement in zip(values, displacements, strict=True)
        ]
    return records


# -- judge ----------------------------------------------------------------------------------------


def judge(records: Records) -> Finding:
    records_by_step = _records_by_step(records)
    gaps = {step: value_gap(step_records) for step, step_records in records_by_step.items()}
    last_step = max(records_by_step)
    growth = gap_change(records_by_step[last_step], records_by_step[1])
    gap_step_correlation = rank_correlation([gap_interval[0] for gap_interval in gaps.values()])
    verdict: Verdict = "inconclusive"
    if growth[1] > 0 and gap_step_correlation >= MIN_RANK_CORRELATION:
        verdict = "replicated"
    elif growth[2] < 0:
        verdict = "not replicated"
    numbers = [
        Number(f"gap after {step} steps", *gap_interval) for step, gap_interval in gaps.items()
    ]
    numbers += [
        Number(f"gap, step {last_step} minus step 1", *growth),
        Number(
            "the same, pooled over signs",
            *gap_change(pool_signs(records_by_step[last_step]), pool_signs(records_by_step[1])),
        ),
        Number("rank correlation of gap and step", gap_step_correlation),
    ]
    return Finding(
        verdict,
        f"The gap goes from {format_gap(gaps[1])} after one step to "
        f"{format_gap(gaps[last_step])} after {last_step}, a change of "
        f"{format_gap(growth)}; its rank correlation with the step is "
        f"{gap_step_correlation:.2f}.",
        tuple(numbers),
        tuple(detectable_note("A change of {:.3f} would usually have been seen.", growth)),
    )


def rank_correlation(values: Sequence[float]) -> float:
    """Spearman's correlation of values with their order; nan if one is missing or all are equal."""
    if not np.isfinite(values).all():
        return float("nan")
    unit_weights = np.ones((1, len(values)))
    return float(rank_correlations(values, np.arange(len(values)), unit_weights)[0])


def _records_by_step(records: Records) -> dict[int, list[Record]]:
    steps = sorted({record["step"] for record in records})
    return {step: [record for record in records if record["step"] == step] for step in steps}


# -- draw -----------------------------------------------------------------------------------------


def draw(records: Records) -> tuple[Figure, ...]:
    points = [
        point
        for step, step_records in _records_by_step(records).items()
        for point in gap_points_by_sign(str(step), step_records)
    ]
    gap_plot = gap_chart(
        points,
        SIGN_STYLES,
        "steps on the same batch",
        "Value gap between boosted and suppressed tokens after repeated steps",
    )
    note = (
        "Boosted minus suppressed by displacement since the start, 95 % intervals over prompts. "
        "The tokens are the same at every step."
    )
    return (Figure(gap_plot, "Gap after repeated steps", note, KEYS, wide=True),)


STUDY = Study(
    name="repeated",
    title="Repeated updates widen the value gap",
    shows="Fig. 11",
    claim="With every further update on the same batch, the value gap between boosted and "
    "suppressed tokens grows.",
    rule="Replicated when the gap after the last step exceeds that after the first, the interval "
    "of the difference above 0, and the rank correlation of gap and step is at least 0.8; not "
    "replicated when the interval lies below 0; otherwise inconclusive.",
    budgets={
        "quick": {**VALUE_SIZES["quick"], "repeated": 48, "steps": 8},
        "full": {**VALUE_SIZES["full"], "repeated": 96, "steps": 16},
    },
    measure=measure,
    judge=judge,
    draw=draw,
)
