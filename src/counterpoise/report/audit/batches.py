"""Findings about batches: groups split over several steps, and steps in which one sign is rare."""

from __future__ import annotations

import numpy as np

from counterpoise.errors import format_count
from counterpoise.report.audit.audited_run import AuditRun
from counterpoise.report.audit.plan_scan import PlanTotals
from counterpoise.report.audit.records import (
    AuditFinding,
    Measurement,
    grade_above,
    percent,
    unsupported,
)
from counterpoise.report.audit.thresholds import RARE_SIGN, RARE_STEPS, SPLIT_SHARE
from counterpoise.statistics.prompt_intervals import (
    IntervalEstimate,
    share_estimate,
    wilson_interval,
)

SPLIT_TITLE = "Groups split over optimizer steps"
SIGN_TITLE = "One sign is rare"
PLANS_REMEDY = (
    "train with batch.composer, or with run_folder of counterpoise.trl, which store the plans"
)
MIN_STEPS = 8  # fewer are not judged by their signs


def split_groups(run: AuditRun) -> AuditFinding:
    """Groups with signal whose rollouts are in more than one optimizer step.

    In `poise audit --json` it is called cut_groups, as in the first version.
    """
    if not run.has_plans:
        return unsupported(SPLIT_TITLE, "plans.jsonl", remedy=PLANS_REMEDY)
    plans = run.plan_totals
    groups, split = plans.groups, plans.split_groups
    if not groups:
        count = format_count(plans.num_plans, "plan")
        return unsupported(SPLIT_TITLE, f"groups with signal: there are 0 in {count}")
    estimate = IntervalEstimate(split / groups, *wilson_interval(split / groups, groups))
    kind = "groups" if plans.has_described_plans else "groups with signal"
    composers = ", ".join(sorted(filter(None, plans.composers))) or "unknown"
    measurements = [
        Measurement.of(f"split, of {kind}", estimate, "share"),
        Measurement("largest advantage left over in a step", plans.largest_remainder),
    ]
    if plans.cross_ratios:
        measurements.append(
            Measurement("cross term, -1 for whole groups", float(np.mean(plans.cross_ratios)))
        )
    return AuditFinding(
        title=SPLIT_TITLE,
        level=grade_above(estimate.low, *SPLIT_SHARE),
        verdict=f"{split:,} of {groups:,} {kind} were split (composer {composers})",
        measurements=(*measurements, *_what_qb_changes(plans)),
        threshold=f"warning from {percent(SPLIT_SHARE[0])}, alarm from {percent(SPLIT_SHARE[1])} "
        "of groups, by the lower end of the interval",
        cost="what right and wrong rollouts share no longer cancels within a step; in our "
        "experiments QB alone was not shown to raise success, QB with RB was",
        remedy='batch.composer = "grouped" (TRL: composer="grouped"; verl: '
        "+poise.composer=grouped)",
        examples=tuple(plans.examples.get("split", ())),
    )


def _what_qb_changes(plans: PlanTotals) -> list[Measurement]:
    """The same rows composed by `grouped`: split groups, cross term and load, on a few plans."""
    if not plans.grouped or not any(before["split_groups"] for before, _ in plans.grouped):
        return []
    pairs = plans.grouped
    before_ratios = [before["cross_advantage_ratio"] for before, _ in pairs]
    after_ratios = [after["cross_advantage_ratio"] for _, after in pairs]
    return [
        Measurement(
            f"with QB, split groups ({len(pairs)} plans tried)",
            sum(after["split_groups"] for _, after in pairs)
            / max(1, sum(after["groups"] for _, after in pairs)),
            unit="share",
        ),
        Measurement(
            "with QB, change of the cross term",
            float(np.mean([ratio for ratio in after_ratios if ratio is not None] or [0.0]))
            - float(np.mean([ratio for ratio in before_ratios if ratio is not None] or [0.0])),
        ),
        Measurement(
            "with QB, heaviest step over the mean",
            float(np.mean([after["token_imbalance"] for _, after in pairs])),
        ),
        Measurement(
            "as it was, heaviest step over the mean",
            float(np.mean([before["token_imbalance"] for before, _ in pairs])),
        ),
    ]


def rare_sign(run: AuditRun) -> AuditFinding:
    """How often one sign has less than RARE_SIGN of a step's rows with signal."""
    by_step = run.has_plans and bool(run.plan_totals.rare_share)
    if by_step:
        shares, unit = run.plan_totals.rare_share, "steps"
        examples = tuple(run.plan_totals.examples.get("sign", ()))
    elif run.rollout_files:
        # Without plans, the rollouts of an iteration are the smallest batch that is known.
        shares = [
            min(tally.positive, tally.negative) / (tally.positive + tally.negative)
            for tally in run.rollout_totals.iterations
            if tally.positive + tally.negative
        ]
        unit, examples = "iterations", ()
    else:
        return unsupported(SIGN_TITLE, "plans.jsonl", "rollouts/", remedy=PLANS_REMEDY)
    if not shares:
        return unsupported(SIGN_TITLE, f"{unit} with signal: there are 0")
    is_rare = [float(share < RARE_SIGN) for share in shares]
    estimate = share_estimate(is_rare)
    # Steps of a short run are few: so few say nothing about the batches.
    level = grade_above(estimate.low, *RARE_STEPS) if len(shares) >= MIN_STEPS else "clear"
    return AuditFinding(
        title=SIGN_TITLE,
        level=level,
        verdict=f"in {int(sum(is_rare)):,} of {len(shares):,} {unit} one sign had less than "
        f"{percent(RARE_SIGN)} of the rows with signal",
        measurements=(
            Measurement.of(f"{unit} with a rare sign", estimate, "share"),
            Measurement("mean share of the rarer sign", float(np.mean(shares)), unit="share"),
        ),
        threshold=f"warning from {percent(RARE_STEPS[0])}, alarm from {percent(RARE_STEPS[1])} of "
        f"{unit}, by the lower end of the interval, if there are at least {MIN_STEPS}",
        cost=f"{percent(1 - 2 * float(np.mean(shares)))} of the rows with signal have no "
        f"counterpart of "
        f"the other sign in their {unit.removesuffix('s')}",
        remedy="balance.tau = 0.25 waits for both signs (RB); batch.composer other than by_sign",
        examples=examples,
        missing=() if by_step else ("plans.jsonl",),
    )
