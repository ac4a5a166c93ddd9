"""What the plans did to groups, signs and loads: the numbers of batch/describe.py over the run."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup

from counterpoise.plugins import shown
from counterpoise.report.charts.series import (
    MAX_DISTINCT_POINTS,
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
    rules = sorted({shown(plan["rule"]) for plan in run.plans})
    figures = (_split(run), _sums(run), _cross(run), _signs(run), _load(run), _shared(run))
    return Panel(
        "Batch plans",
        f"What the rule {', '.join(rules)} made of each batch. A group whose rollouts are all in "
        "one step has advantages that sum to zero there; cutting it leaves a remainder.",
        tuple(figure for figure in figures if figure),
    )


def _points(run: RunData, name: str) -> list[tuple[int, float | None]]:
    """Of one number of the description. What is left of rounding is shown as 0."""
    return [
        (plan["iteration"], value if value is None or abs(value) > 1e-9 else 0.0)
        for plan in run.plans
        for value in (plan["describe"][name],)
    ]


def _top(points: list[tuple[int, float | None]], least: float) -> float:
    return max([least, *(1.05 * value for _, value in points if value is not None)])


def _split(run: RunData) -> Figure | None:
    points = _points(run, "split_share")
    drawn = line_chart(
        points, run.last_iteration, "Split groups", ".1%", axis="%", domain=[0.0, 1.0]
    )
    note = "Share of prompts whose rollouts are spread over more than one optimizer step."
    return Figure(drawn, "Split groups", note) if drawn else None


def _sums(run: RunData) -> Figure | None:
    points = _points(run, "max_abs_group_advantage_sum")
    drawn = line_chart(
        points, run.last_iteration, "Largest |S_B|", ".3f", domain=[0.0, _top(points, 1.0)]
    )
    note = Markup(
        "S<sub>B</sub> sums the advantages of the part of a group that shares a step: 0 if whole."
    )
    return Figure(drawn, Markup("Largest |S<sub>B</sub>|"), note) if drawn else None


def cross_term(plan: dict[str, Any]) -> float | None:
    """sum_B sum_{i != j in B} A_i A_j / sum_i A_i^2 (eq. 14): -1 exactly when every S_B is 0."""
    squares = sum(A * A for A in plan["advantage"])
    return sum(plan["describe"]["cross_advantage_sum"]) / squares if squares else None


def _cross(run: RunData) -> Figure | None:
    points = [(plan["iteration"], cross_term(plan)) for plan in run.plans]
    top = _top(points, 0.25)
    drawn = line_chart(
        points, run.last_iteration, "Cross term", ".3f", domain=[-1.1, top], guide=-1.0
    )
    note = (
        "Products of advantages within steps over their squares: −1 (dashed) cancels what is "
        "shared, above 0 one sign adds up."
    )
    return Figure(drawn, "Cross term", note) if drawn else None


def _signs(run: RunData) -> Figure | None:
    records = [
        {"iteration": plan["iteration"], "step": step + 1, "share": share}
        for plan in run.plans
        for step, share in enumerate(plan["describe"]["positive_share_per_step"])
        if share is not None
    ]
    if not records:
        return None
    whole = [
        {"iteration": i, "share": share, "low": min(shares), "high": max(shares)}
        for i, share in _points(run, "positive_share")
        if share is not None and (shares := [r["share"] for r in records if r["iteration"] == i])
    ]
    x, y = x_axis(run.last_iteration), y_axis("share", "%", [0.0, 1.0])
    if len(whole) > MAX_DISTINCT_POINTS:
        note = "Of the rollouts with signal: the band spans the steps, the line is the whole batch."
        steps = [
            base_chart(whole)
            .mark_area(style="soft", opacity=0.6)
            .encode(x=x, y="low:Q", y2="high:Q")
        ]
    else:
        note = "Of the rollouts with signal: a dot for each step, the line for the whole batch."
        steps = [
            base_chart(whole).mark_rule(style="soft").encode(x=x, y="low:Q", y2="high:Q"),
            base_chart(records).mark_point(style="soft", size=18).encode(x=x, y=y),
        ]
    layers = [
        base_chart([{"share": 0.5}]).mark_rule(style="muted", strokeDash=[2, 3]).encode(y=y),
        *steps,
        base_chart(whole).mark_line(style="series").encode(x=x, y=y),
    ]
    drawn = iteration_chart(
        layers,
        whole,
        [
            ("share", "whole batch", ".1%"),
            ("low", "lowest step", ".1%"),
            ("high", "highest step", ".1%"),
        ],
        run.last_iteration,
        "Positive share of the rows with signal, per step and for the whole batch",
    )
    return Figure(drawn, "Positive share", note)


def _load(run: RunData) -> Figure | None:
    points = _points(run, "token_imbalance")
    top = _top(points, 1.5)
    drawn = line_chart(points, run.last_iteration, "Token imbalance", ".3f", domain=[1.0, top])
    note = "Tokens of the heaviest step over the mean of the steps; 1 is even."
    return Figure(drawn, "Token imbalance", note) if drawn else None


def _shared(run: RunData) -> Figure | None:
    points = _points(run, "shared_token_share")
    drawn = line_chart(
        points, run.last_iteration, "Shared tokens", ".1%", axis="%", domain=[0.0, 1.0]
    )
    note = (
        "Of the token types in a step's positive rollouts, the share its negative ones have too: "
        "what there is to cancel."
    )
    return Figure(drawn, "Shared tokens", note) if drawn else None
