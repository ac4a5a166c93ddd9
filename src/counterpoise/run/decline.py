"""Detect that training made a model worse: one line at the end of such a run.

    collapsed    success ended below COLLAPSE_RATIO = 1/2 of where it began, and the 95 % intervals
                 do not overlap
    declined     success ended below where it began; maybe by chance, if the intervals overlap or
                 are not known (a single problem with graded rewards)

Success is measured on held-out problems, with responses sampled under the first of
`evaluate.settings`. In a run without held-out evaluations, success on the training prompts of the
last quarter of the iterations is compared with that of the first quarter; since these are different
prompts, only a collapse is reported. Rollouts of a group share their prompt, so the intervals of
these two count groups. Graded rewards have no natural 0, so for them a collapse is
never reported, only a decline of the mean held-out reward.
"""

from __future__ import annotations

from counterpoise.config.evaluation_settings import group_by_setting
from counterpoise.run.heldout import HeldoutSuccess, with_same_quantity
from counterpoise.statistics.prompt_intervals import IntervalEstimate, wilson_interval
from counterpoise.store.logs import LogRecords

COLLAPSE_RATIO = 0.5  # of the success at the beginning
NUM_QUARTERS = 4
REMEDY = "lower update.lr, which was {lr:g}, or stop earlier"


def describe_decline(
    evaluations: LogRecords, metrics: LogRecords, lr: float, *, group_size: int = 1
) -> str:
    """A warning from a run's evaluations.jsonl and metrics.jsonl; "" if it did not decline.

    `group_size` is the number of rollouts that share a prompt.

    Example:
        "held-out success ended below its start, 46.1 % [41.0, 51.2] -> 32.5 % [29.1, 36.4]; lower
        update.lr, which was 0.0001, or stop earlier"
    """
    records_by_setting = group_by_setting(evaluations)
    if not records_by_setting:
        is_graded = any(record.get("graded") for record in metrics)
        return "" if is_graded else _describe_training_collapse(metrics, lr, group_size)
    # Settings differ in their level of success: compare within the first one only.
    setting_records = next(iter(records_by_setting.values()))
    first_success, last_success = with_same_quantity(
        HeldoutSuccess.from_record(setting_records[0]),
        HeldoutSuccess.from_record(setting_records[-1]),
    )
    start, end, quantity = first_success.headline, last_success.headline, last_success.quantity
    if end.mean >= start.mean:
        return ""
    change = f"{first_success} -> {last_success}"
    # Graded rewards have no natural 0, so half of one means nothing.
    is_halved = quantity == "success" and end.mean < COLLAPSE_RATIO * start.mean
    if is_halved and end.high < start.low:
        return (
            f"the run collapsed: held-out success ended below half of its start, {change}; "
            + REMEDY.format(lr=lr)
        )
    advice = REMEDY.format(lr=lr)
    if not (start.is_bounded and end.is_bounded):
        advice = "its intervals are not known, so it may be chance"
    elif end.high >= start.low:
        advice = "the intervals overlap, so it may be chance"
    return f"held-out {quantity} ended below its start, {change}; {advice}"


def _describe_training_collapse(metrics: LogRecords, lr: float, group_size: int) -> str:
    """A warning from the success on training prompts, for runs without held-out problems."""
    records = [record for record in metrics if "success" in record and record.get("rollouts")]
    quarter_length = len(records) // NUM_QUARTERS
    if not quarter_length:
        return ""
    start = _training_success(records[:quarter_length], group_size)
    end = _training_success(records[-quarter_length:], group_size)
    if end.mean >= COLLAPSE_RATIO * start.mean or end.high >= start.low:
        return ""
    return (
        "the run collapsed: success on training prompts ended below half of its start, "
        f"{start} -> {end} (first and last quarter of the iterations); " + REMEDY.format(lr=lr)
    )


def _training_success(records: LogRecords, group_size: int) -> IntervalEstimate:
    """The mean success of some iterations, with Wilson's interval for their number of groups."""
    mean = sum(record["success"] for record in records) / len(records)
    groups = sum(record["rollouts"] for record in records) / group_size
    return IntervalEstimate(mean, *wilson_interval(mean, groups))
