"""Panel of the batch plans: split groups, signs and tokens per step (see batch/describe.py)."""

from __future__ import annotations

from typing import Any

import altair as alt

from counterpoise.plugins import display_name
from counterpoise.report.charts.figure import Figure
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
from counterpoise.report.panels.panel import Panel
from counterpoise.report.run_data import RunData


def panel(run: RunData) -> Panel | None:
    if not run.plans:
        return None
    composers = sorted({display_name(plan["rule"]) for plan in run.plans})
    figures = (
        _split_groups_figure(run),
        _remainder_figure(run),
        _cross_term_figure(run),
        _positive_share_figure(run),
        _token_imbalance_figure(run),
        _shared_tokens_figure(run),
    )
    return Panel(
        "Batch plans",
        f"How the composer {', '.join(composers)} divided each batch into optimizer steps. The "
        "advantages of a group sum to zero if all its rollouts are in one step; a split group "
        "leaves a remainder in each of its steps.",
        tuple(figure for figure in figures if figure),
    )


def _plan_points(run: RunData, statistic_name: str) -> list[tuple[int, float | None]]:
    """(iteration, value) of one statistic of the plans, with rounding error set to 0."""
    return [
        (plan["iteration"], value if value is None or abs(value) > 1e-9 else 0.0)
        for plan in run.plans
        for value in (plan["describe"][statistic_name],)
    ]


def _axis_top(points: list[tuple[int, float | None]], minimum: float) -> float:
    """The end of an axis: a little above the largest value, and at least `minimum`."""
    return max([minimum, *(1.05 * value for _, value in points if value is not None)])


def _split_groups_figure(run: RunData) -> Figure | None:
    points = _plan_points(run, "split_share")
    chart = line_chart(points, run.axis_range, "Split groups", SHARE_AXIS)
    note = "Share of prompts whose rollouts are spread over more than one optimizer step."
    return Figure(chart, "Split groups", note) if chart else None


def _remainder_figure(run: RunData) -> Figure | None:
    points = _plan_points(run, "max_abs_group_advantage_sum")
    title = "Largest advantage remainder"
    axis = ValueAxis(domain=(0.0, _axis_top(points, 1.0)))
    chart = line_chart(points, run.axis_range, title, axis)
    note = (
        "Largest |sum of advantages| over the rollouts of one group that share a step; 0 where "
        "every group is whole."
    )
    return Figure(chart, title, note) if chart else None


def cross_term(plan: dict[str, Any]) -> float | None:
    """sum_B sum_{i != j in B} A_i A_j / sum_i A_i^2 (eq. 14), as the plan's description has it.

    B is the part of a group that shares a step. The term is -1 exactly when the advantages of every
    B sum to 0; it is None where all advantages are 0.
    """
    if "cross_advantage_ratio" in plan["describe"]:
        return plan["describe"]["cross_advantage_ratio"]
    # Older runs stored the sums only.
    squares = sum(A * A for A in plan["advantage"])
    return sum(plan["describe"]["cross_advantage_sum"]) / squares if squares else None


def _cross_term_figure(run: RunData) -> Figure | None:
    points = [(plan["iteration"], cross_term(plan)) for plan in run.plans]
    axis = ValueAxis(domain=(-1.1, _axis_top(points, 0.25)))
    chart = line_chart(points, run.axis_range, "Cross term", axis, guide=-1.0)
    note = (
        "Sum of products of the advantages of different rollouts of a group within a step, divided "
        "by the sum of squared advantages. At −1 (dashed) what the rollouts have in common "
        "cancels; above 0 rollouts of the same sign dominate, and what they have in common adds up."
    )
    return Figure(chart, "Cross term", note) if chart else None


def _positive_share_figure(run: RunData) -> Figure | None:
    step_records = [
        {"iteration": plan["iteration"], "step": step_index + 1, "share": share}
        for plan in run.plans
        for step_index, share in enumerate(plan["describe"]["positive_share_per_step"])
        if share is not None
    ]
    if not step_records:
        return None
    batch_records = [
        {"iteration": iteration, "share": share, "low": min(step_shares), "high": max(step_shares)}
        for iteration, share in _plan_points(run, "positive_share")
        if share is not None
        and (
            step_shares := [
                step_record["share"]
                for step_record in step_records
                if step_record["iteration"] == iteration
            ]
        )
    ]
    x_encoding, y_encoding = x_axis(run.axis_range), y_axis("share", "%", (0.0, 1.0))
    if len(batch_records) > MAX_DISTINCT_POINTS:
        step_note = "The band spans the steps"
        step_layers = [
            base_chart(batch_records)
            .mark_area(style="soft", opacity=0.6)
            .encode(x=x_encoding, y=alt.Y("low:Q"), y2=alt.Y2("high:Q"))
        ]
    else:
        step_note = "A dot is one step"
        step_layers = [
            base_chart(batch_records)
            .mark_rule(style="soft")
            .encode(x=x_encoding, y=alt.Y("low:Q"), y2=alt.Y2("high:Q")),
            base_chart(step_records)
            .mark_point(style="soft", size=18)
            .encode(x=x_encoding, y=y_encoding),
        ]
    layers = [
        # Dashed at one half: as many positive as negative rollouts.
        base_chart([{"share": 0.5}])
        .mark_rule(style="muted", strokeDash=[2, 3])
        .encode(y=y_encoding),
        *step_layers,
        base_chart(batch_records).mark_line(style="series").encode(x=x_encoding, y=y_encoding),
    ]
    chart = iteration_chart(
        layers,
        batch_records,
        [
            ("share", "whole batch", ".1%"),
            ("low", "lowest step", ".1%"),
            ("high", "highest step", ".1%"),
        ],
        run.axis_range,
        "Positive share of the rows with signal, per step and for the whole batch",
    )
    note = (
        "Share of rollouts with a positive advantage among those with an advantage other than "
        f"0. {step_note}; the line is the whole batch."
    )
    return Figure(chart, "Positive share", note)


def _token_imbalance_figure(run: RunData) -> Figure | None:
    points = _plan_points(run, "token_imbalance")
    axis = ValueAxis(domain=(1.0, _axis_top(points, 1.5)))
    chart = line_chart(points, run.axis_range, "Token imbalance", axis)
    note = "Tokens of the largest step over the mean of all steps; 1 means they are equal."
    return Figure(chart, "Token imbalance", note) if chart else None


def _shared_tokens_figure(run: RunData) -> Figure | None:
    points = _plan_points(run, "shared_token_share")
    chart = line_chart(points, run.axis_range, "Shared tokens", SHARE_AXIS)
    note = (
        "Share of the distinct tokens in a step's positive rollouts that also occur in its "
        "negative ones."
    )
    return Figure(chart, "Shared tokens", note) if chart else None
