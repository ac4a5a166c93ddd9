"""One pass over plans.jsonl: split groups, signs, waiting rollouts, and what QB would change.

Only groups with signal count as split: rows whose advantage is 0 have no gradient that could
cancel. The description of a plan without its rows (store.report = false) counts all groups.
QB is tried on a few plans, evenly spread: their rows are composed again by `grouped` with as many
steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from counterpoise.batch.compose import compose
from counterpoise.batch.describe import PlanDescription, describe_plan
from counterpoise.errors import PoiseError
from counterpoise.report.audit.records import Example
from counterpoise.report.audit.run_files import RunFiles
from counterpoise.report.audit.thresholds import RARE_SIGN
from counterpoise.report.texts import make_visible
from counterpoise.store.logs import row_names
from counterpoise.types import BatchPlan, Row

QB_PLANS = 8  # plans that are composed again, at most
MAX_EXAMPLES = 5


@dataclass(eq=False)
class PlanTotals:
    """Totals over the plans of a run."""

    num_plans: int = 0
    composers: set[str] = field(default_factory=set)
    split_groups: int = 0
    groups: int = 0  # with signal, where rows are stored; else all of a plan
    has_described_plans: bool = False  # some plans are stored without their rows
    cross_ratios: list[float] = field(default_factory=list)
    largest_remainder: float = 0.0
    rare_share: list[float] = field(default_factory=list)  # share of the rarer sign, per step
    waited_rows: int = 0
    # Iteration that sampled a group -> group -> its rows in plans; only where there is no buffer
    planned_rows: dict[int, Counter[str]] = field(default_factory=dict)
    # (as trained, the same rows composed by QB) of the plans on which QB was tried
    grouped: list[tuple[PlanDescription, PlanDescription]] = field(default_factory=list)
    examples: dict[str, list[Example]] = field(default_factory=dict)


def scan_plans(run: RunFiles) -> PlanTotals:
    """Read every plan once."""
    scan = PlanTotals()
    tried_every = max(1, -(-run.iterations // QB_PLANS))
    for number, plan in enumerate(run.iterate_plans()):
        scan.num_plans += 1
        scan.composers.add(str(plan.get("rule", "")))
        if "steps" in plan:
            _scan_rows(scan, plan)
            if run.has_plans_without_buffer:
                _count_planned_rows(scan, plan)
            if number % tried_every == 0:
                _try_grouped(scan, plan)
        else:
            _scan_description(scan, plan)
    return scan


def _scan_rows(scan: PlanTotals, plan: dict[str, Any]) -> None:
    """Count from the rows themselves, which every version stores alike."""
    step_lists: list[list[int]] = plan["steps"]
    advantage_R = np.array(plan["advantage"], dtype=np.float64)
    group_R = np.array(plan["group"], dtype=np.int64)
    waits_R = plan["iteration"] - np.array(plan["born"], dtype=np.int64)
    scan.waited_rows += int((waits_R > 0).sum())
    steps_of_group: dict[int, set[int]] = {}
    for step_number, rows in enumerate(step_lists):
        step_A = advantage_R[rows]
        positive, negative = int((step_A > 0).sum()), int((step_A < 0).sum())
        if positive + negative == 0:
            continue
        rarer = min(positive, negative) / (positive + negative)
        scan.rare_share.append(rarer)
        if rarer < RARE_SIGN:
            _add_example(
                scan,
                "sign",
                f"iteration {plan['iteration']}, step {step_number + 1}",
                f"{positive} rows up, {negative} down",
            )
        for row in rows:
            if advantage_R[row]:
                steps_of_group.setdefault(int(group_R[row]), set()).add(step_number)
    split = [group for group, steps in steps_of_group.items() if len(steps) > 1]
    scan.split_groups += len(split)
    scan.groups += len(steps_of_group)
    for group in split[:1]:
        _add_example(
            scan,
            "split",
            str(plan["groups"][group]),
            f"iteration {plan['iteration']}: in steps "
            + ", ".join(str(step + 1) for step in sorted(steps_of_group[group])),
        )
    _scan_description(scan, plan, with_rows=True)


def _count_planned_rows(scan: PlanTotals, plan: dict[str, Any]) -> None:
    for (group, _), born in zip(row_names(plan), plan["born"], strict=True):
        scan.planned_rows.setdefault(born, Counter())[group] += 1


def _scan_description(scan: PlanTotals, plan: dict[str, Any], *, with_rows: bool = False) -> None:
    """What the trainer itself said of its plan; all there is with store.report=false."""
    description: dict[str, Any] = plan.get("describe", {})
    remainder, ratio = (
        description.get(name) for name in ("max_abs_group_advantage_sum", "cross_advantage_ratio")
    )
    scan.largest_remainder = max(scan.largest_remainder, remainder or 0.0)
    if ratio is not None:
        scan.cross_ratios.append(ratio)
    if with_rows or not description or description.get("positive_share") is None:
        return
    scan.has_described_plans = True
    scan.split_groups += description.get("split_groups", 0)
    scan.groups += description.get("groups", 0)


def _try_grouped(scan: PlanTotals, plan: dict[str, Any]) -> None:
    rows = _rows_of(plan)
    steps: Sequence[Sequence[int]] = plan["steps"]
    if len(steps) < 2:
        return
    try:
        as_it_was = describe_plan(rows, BatchPlan(plan["rule"], tuple(map(tuple, steps))))
        grouped = compose("grouped", rows, len(steps), plan["iteration"])
        scan.grouped.append((as_it_was, describe_plan(rows, grouped)))
    except PoiseError:  # fewer groups than steps: QB cannot be tried on this plan
        return


def _rows_of(plan: dict[str, Any]) -> list[Row]:
    columns = (plan[name] for name in ("advantage", "tokens", "born"))
    return [
        Row(group, advantage, tokens, index, born)
        for (group, index), advantage, tokens, born in zip(row_names(plan), *columns, strict=True)
    ]


def _add_example(scan: PlanTotals, kind: str, place: str, text: str) -> None:
    kind_examples = scan.examples.setdefault(kind, [])
    if len(kind_examples) < MAX_EXAMPLES:
        kind_examples.append(Example(make_visible(place, 200), None, make_visible(text, 300)))
