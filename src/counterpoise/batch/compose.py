"""compose(rule, rows, num_steps, seed) -> BatchPlan: run one composer and check what it returned.

Every plan, whatever its composer, is a partition of the rows into exactly `num_steps` steps, none
of them empty. A composer may promise more (`COMPOSER_PROMISES`); its promise is checked too. A
user's function (plugin_composer.py) is a composer like any other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from counterpoise.batch.units import rows_by_unit
from counterpoise.config.stage_options import BatchConfig
from counterpoise.errors import PoiseError, format_count
from counterpoise.plugins import display_name
from counterpoise.types import BatchPlan, Row
from counterpoise.variants import COMPOSER_PROMISES, COMPOSERS


def compose(rule: str, rows: Sequence[Row], num_steps: int, seed: int) -> BatchPlan:
    """Decide which rows share an optimizer step: a pure function of its arguments.

    Arguments:
        rule        grouped (QB: groups stay whole), shuffled, token_balanced, zigzag, by_sign,
                    half_groups, whole, coupled (needs token ids), paired, or your own
                    FILE.py:FUNCTION
        rows        [R], one for each rollout
        num_steps   optimizer steps to divide the rows among
        seed        decides ties and the order of the steps

    Example:
        >>> rows = [Row(group=g, advantage=a, num_tokens=9) for g in "xy" for a in (1.0, -1.0)]
        >>> sorted(compose("grouped", rows, num_steps=2, seed=0).steps)
        [(0, 1), (2, 3)]
    """
    composer = COMPOSERS.load(rule)
    if num_steps < 1:
        raise PoiseError(
            f"a plan of {num_steps} steps updates nothing: set num_steps (batch.steps; poise plan: "
            "--steps) to 1 or more"
        )
    if len(rows) < num_steps:
        raise PoiseError(
            f"{format_count(len(rows), 'row')} cannot fill {num_steps} steps: lower num_steps "
            "(batch.steps; poise plan: --steps) or sample more prompts"
        )
    steps = composer(rows, num_steps, seed)
    plan = BatchPlan(composer=rule, steps=tuple(tuple(int(i) for i in step) for step in steps))
    if fault := _find_fault(rows, plan, num_steps):
        raise PoiseError(f"{fault}. The composer is at fault")
    return plan


def plan_batch(rows: Sequence[Row], options: BatchConfig, seed: int) -> BatchPlan:
    """The plan of an update, in as many steps as the options ask for.

    That is `batch.steps`, or one step for every `batch.rows_per_step` rows with signal. With
    `rows_per_step` or `drop_silent`, there are never more steps than units (units.py).
    """
    num_steps = options.steps
    if options.rows_per_step:
        num_steps = max(1, sum(row.sign != 0 for row in rows) // options.rows_per_step)
    # A composer that keeps units whole cannot fill more steps than there are units.
    if options.rows_per_step or options.drop_silent:
        num_steps = min(num_steps, len(rows_by_unit(rows)))
    return compose(options.composer, rows, num_steps, seed)


def check_plan(rows: Sequence[Row], plan: BatchPlan, num_steps: int | None = None) -> None:
    """Raise unless the plan is a partition of the rows that keeps its composer's promise.

    For plans that were not composed here: read from a file, or made by a host framework.
    """
    if fault := _find_fault(rows, plan, num_steps or len(plan.steps)):
        raise PoiseError(
            f"{fault}. The plan must belong to exactly these rows; if it does, its composer is "
            "at fault"
        )


def _find_fault(rows: Sequence[Row], plan: BatchPlan, num_steps: int) -> str:
    """Describe what is wrong with the plan; empty if nothing is."""
    fault = find_partition_fault(len(rows), plan, num_steps)
    if not fault and plan.composer in COMPOSER_PROMISES:
        fault = COMPOSER_PROMISES.load(plan.composer)(rows, plan.steps)
    return f"not a plan of composer '{display_name(plan.composer)}': {fault}" if fault else ""


def find_partition_fault(num_rows: int, plan: BatchPlan, num_steps: int) -> str:
    """Describe why the steps are not a partition of the rows; empty if they are."""
    if len(plan.steps) != num_steps:
        return f"{len(plan.steps)} steps instead of {num_steps}"
    for step_number, step in enumerate(plan.steps):
        if not step:
            return f"step {step_number} is empty"
    # Every row must occur once, and a number that is not a row must not occur.
    occurrences = Counter(row_number for step in plan.steps for row_number in step)
    rows = range(num_rows)
    wrong_rows = [
        row_number
        for row_number in {*rows, *occurrences}
        if occurrences[row_number] != (row_number in rows)
    ]
    if wrong_rows:
        first_wrong = min(wrong_rows)
        return (
            f"its steps are not a partition of the {num_rows} rows: row {first_wrong} "
            f"(counting from 0) occurs {occurrences[first_wrong]} times"
        )
    return ""
