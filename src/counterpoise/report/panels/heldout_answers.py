"""Panel of the probes: how held-out answers moved, and which training prompts moved them."""

from __future__ import annotations

import math
from itertools import accumulate
from typing import Any

from counterpoise.report.charts.figure import Figure
from counterpoise.report.charts.render import render
from counterpoise.report.charts.series import base_chart, iteration_chart, x_axis, y_axis
from counterpoise.report.panels.panel import Panel
from counterpoise.report.probe_trace.over_time import (
    InfluenceOverTime,
    PromptInfluence,
    trace_over_time,
)
from counterpoise.report.probe_trace.read import ProbedRun
from counterpoise.report.run_data import RunData
from counterpoise.report.texts import make_visible

SHOWN_PROMPTS = 8  # in each direction
SHOWN_UPDATES = 40  # of a prompt, the latest


def panel(run: RunData) -> Panel | None:
    """None if the run tracked no held-out answers, or has made no update yet."""
    traced = {plan["iteration"] for plan in run.plans} & {
        record["iteration"] for record in run.metrics if record.get("probe_right") is not None
    }
    if not traced or not (run.path / "probes.jsonl").is_file():
        return None
    probed_run = ProbedRun.open(run.path)
    trace = trace_over_time(probed_run, SHOWN_PROMPTS)
    value, low, high = trace.agreement.correlation
    interval = f" [{low:.2f}, {high:.2f}]" if math.isfinite(low) else ""
    trust = f"{value:.2f}{interval}" if math.isfinite(value) else "unknown"
    return Panel(
        "Held-out answers",
        f"Right and wrong answers to {trace.num_problems} held-out problems, and which of "
        f"{trace.num_prompts} training prompts pushed the right answers up or down, through "
        f"{probed_run.through}. The rank correlation of predicted and real change is {trust}: the "
        "table is no more reliable than that. `poise trace` names rollouts and tokens."
        f"{_describe_limits(trace)}",
        (_movement_figure(run, trace),),
        after=render(
            "heldout_answers.html",
            tables=[
                ("Raised right answers most", [_table_row(p, trace) for p in trace.raising]),
                ("Lowered right answers most", [_table_row(p, trace) for p in trace.lowering]),
            ],
        ),
        assets=("heldout_answers.css", "heldout_answers.js"),
    )


def _describe_limits(trace: InfluenceOverTime) -> str:
    """Sentences about what the run traced and the panel leaves out; empty if nothing."""
    sentences = ""
    if trace.left_out:
        sentences += (
            f" Numbers are of the latest {len(trace.updates)} traced updates; {trace.left_out} "
            "earlier ones are left out."
        )
    shown_prompts = (*trace.raising, *trace.lowering)
    if any(len(prompt.updates) > SHOWN_UPDATES for prompt in shown_prompts):
        sentences += f" Bars are of the latest {SHOWN_UPDATES} updates that trained on a prompt."
    return sentences


def _movement_figure(run: RunData, trace: InfluenceOverTime) -> Figure:
    series = {
        kind: list(accumulate(getattr(update, kind) or 0.0 for update in trace.updates))
        for kind in ("right", "wrong")
    }
    records = [
        {"iteration": update.iteration, **{kind: series[kind][index] for kind in series}}
        for index, update in enumerate(trace.updates)
    ]
    x_encoding = x_axis(run.axis_range)
    styles = {"right": "positive", "wrong": "negative"}
    layers = [
        mark.encode(x=x_encoding, y=y_axis(kind))
        for kind, style in styles.items()
        for mark in (
            base_chart(records).mark_line(style=style),
            base_chart(records).mark_point(style=style),
        )
    ]
    chart = iteration_chart(
        layers,
        records,
        [(kind, kind, ".3~g") for kind in styles],
        run.axis_range,
        "Change of the mean log-probability of held-out answers, added up over updates",
        height=190,
    )
    return Figure(
        chart,
        "How they moved",
        "Change of the mean log-probability, in nats, added up over the traced updates.",
        (("positive", "right"), ("negative", "wrong")),
        wide=True,
    )


def _table_row(prompt: PromptInfluence, trace: InfluenceOverTime) -> dict[str, Any]:
    shown_prompts = (*trace.raising, *trace.lowering)
    largest = max(abs(update.change) for other in shown_prompts for update in other.updates) or 1.0
    return {
        "prompt": make_visible(prompt.prompt_id, 80),
        "total": prompt.total,
        "raising": prompt.raising,
        "moving": prompt.moving,
        "updates": [
            {
                "iteration": update.iteration,
                "row": update.row,
                "change": update.change,
                "size": round(math.sqrt(abs(update.change) / largest), 3),
            }
            for update in prompt.updates[-SHOWN_UPDATES:]
        ],
    }
