"""Panel of the batch plans: how they treat groups, signs and loads (see batch/describe.py)."""

from __future__ import annotations

from typing import Any

from counterpoise.plugins import display_name
from counterpoise.report.charts.series import (
    MAX_DISTINCT_POINTS,
    SHARE_AXIS,
    ValueAxis,
    base_chart,
    iteration_chart,
    line_chart,
    x_axis,
    y_axis,
)
from counterpoise.report.panels.panel import Figure, Panel
from counterpoise.report.run_data import RunData


def panel(run: RunData) -> Panel | None:
    if not run.plans:
        return None
    composers = sorted({display_name(plan["rule"]) for plan in run.plans})
    figures = (_split(run), _sums(run), _cross(run), _signs(run), _load(run), _shared(run))
    return Panel(
        "Batch plans",
        f"How the composer {', '.join(composers)} divided each batch into optimizer steps. The "
        "advantages of a group sum to zero if all its rollouts are in one step; a split group "
        "leaves a remainder in each of its steps.",
        tuple(figure for figure in figures if figure),
    )


def _points(run: RunData, name: str) -> list[tuple[int, float | None]]:
    """(iteration, value) of one number of the plans' description, with rounding error set to 0."""
    return [
        (plan["iteration"], value if value is None or abs(value) > 1e-9 else 0.0)
        for plan in run.plans
        for value in (plan["describe"][name],)
    ]


def _top(points: list[tuple[int, float | None]], least: float) -> float:
    return max([least, *(1.05 * value for _, value in points if value is not None)])


def _split(run: RunData) -> Figure | None:
    points = _points(run, "split_share")
    chart = line_chart(points, run.last_iteration, "Split groups", SHARE_AXIS)
    note = "Share of prompts whose rollouts are spread over more than one optimizer step."
    return Figure(chart, "Split groups", note) if chart else None


def _sums(run: RunData) -> Figure | None:
    points = _points(run, "max_abs_group_advantage_sum")
    title = "Largest advantage remainder"
    axis = ValueAxis(domain=(0.0, _top(points, 1.0)))
    chart = line_chart(points, run.last_iteration, title, axis)
    note = (
        "Largest |sum of advantages| over the rollouts of one group that share a step; 0 where "
        "every group is whole."
    )
    return Figure(chart, title, note) if chart else None


def cross_term(plan: dict[str, Any]) -> float | None:
    """sum_B sum_{i != j in B} A_i A_j / sum_i A_i^2 (eq. 14).

    B is the part of a group that shares a step. It is -1 exactly when the advantages of every B sum
    to 0; None where all advantages are 0.
    """
    squares = sum(A * A for A in plan["advantage"])
    return sum(plan["describe"]["cross_advantage_sum"]) / squares if squares else None


def _cross(run: RunData) -> Figure | None:
    points = [(plan["iteration"], cross_term(plan)) for plan in run.plans]
    axis = ValueAxis(domain=(-1.1, _top(points, 0.25)))
    chart = line_chart(points, run.last_iteration, "Cross term", axis, guide=-1.0)
    note = (
        "Sum of products of the advantages of different rollouts of a group within a step, over "
        "the sum of squares. At −1 (dashed) what they have in common cancels; above 0 one sign "
        "adds up."
    )
    return Figure(chart, "Cross term", note) if chart else None


def _signs(run: RunData) -> Figure | None:
    records = [
        {"iteration": plan["iteration"], "step": step + 1, "share": share}
        for plan in run.plans
        for step, share in enumerate(plan["describe"]["positive_share_per_step"])
        if share is not None
    ]
    if not records:
        return None
    batch_records = [
        {"iteration": iteration, "share": share, "low": min(shares), "high": max(shares)}
        for iteration, share in _points(run, "positive_share")
        if share is not None
        and (shares := [record["share"] for record in records if record["iteration"] == iteration])
    ]
    x, y = x_axis(run.last_iteration), y_axis("share", "%", (0.0, 1.0))
    if len(batch_records) > MAX_DISTINCT_POINTS:
        note = (
            "Share of rollouts with a positive advantage among those with an advantage other than "
            "0. The band spans the steps; the line is the whole batch."
        )
        step_layers = [
            base_chart(batch_records)
            .mark_area(style="soft", opacity=0.6)
            .encode(x=x, y="low:Q", y2="high:Q")
        ]
    else:
        note = (
            "Share of rollouts with a positive advantage among those with an advantage other than "
            "0. A dot is one step; the line is the whole batch."
        )
        step_layers = [
            base_chart(batch_records).mark_rule(style="soft").encode(x=x, y="low:Q", y2="high:Q"),
            base_chart(records).mark_point(style="soft", size=18).encode(x=x, y=y),
        ]
    layers = [
        # Dashed at one half: as many positive as negative rollouts.
        base_chart([{"share": 0.5}]).mark_rule(style="muted", strokeDash=[2, 3]).encode(y=y),
        *step_layers,
        base_chart(batch_records).mark_line(style="series").encode(x=x, y=y),
    ]
    chart = iteration_chart(
        layers,
        batch_records,
        [
            ("share", "whole batch", ".1%"),
            ("low", "lowest step", ".1%"),
            ("high", "highest step", ".1%"),
        ],
        run.last_iteration,
        "Positive share of the rows with signal, per step and for the whole batch",
    )
    return Figure(chart, "Positive share", note)


def _load(run: RunData) -> Figure | None:
    points = _points(run, "token_imbalance")
    axis = ValueAxis(domain=(1.0, _top(points, 1.5)))
    chart = line_chart(points, run.last_iteration, "Token imbalance", axis)
    note = "Tokens of the largest step over the mean of all steps; 1 means they are equal."
    return Figure(chart, "Token imbalance", note) if chart else None


def _shared(run: RunData) -> Figure | None:
    points = _points(run, "shared_token_share")
    chart = line_chart(points, run.last_iteration, "Shared tokens", SHARE_AXIS)
    note = (
        "Share of the distinct tokens in a step's positive rollouts that also occur in its "
        "negative ones: only these can cancel."
    )
    return Figure(chart, "Shared tokens", note) if chart else None
