"""Panel of the prompt memory: how many settled prompts were left out before sampling."""

from __future__ import annotations

import altair as alt

from counterpoise.report.charts.figure import Figure
from counterpoise.report.charts.series import (
    area,
    iteration_chart,
    stack_fields,
    x_axis,
    y_axis,
)
from counterpoise.report.panels.panel import Panel
from counterpoise.report.run_data import RunData

# (field of metrics.jsonl, its meaning, colour), stacked from the bottom up
KINDS = (
    ("skipped_solved", "always solved", "positive"),
    ("skipped_unsolved", "never solved", "negative"),
)


def panel(run: RunData) -> Panel | None:
    records = [record for record in run.metrics if "skipped_solved" in record]
    if not records:
        return None
    sample, skip_fields = run.config.sample, [name for name, _, _ in KINDS]
    x_encoding = x_axis(run.axis_range)
    stacked_areas = stack_fields(records, skip_fields)
    layers = [
        area(
            [part for part in stacked_areas if part["field"] == name],
            style=colour,
            interpolate="step",
        ).encode(x=x_encoding, y=y_axis("floor"), y2=alt.Y2("top:Q"))
        for name, _, colour in KINDS
    ]
    chart = iteration_chart(
        layers,
        [{name: record[name] for name in ("iteration", *skip_fields)} for record in records],
        [(name, meaning, "d") for name, meaning, _ in KINDS],
        run.axis_range,
        "Prompts that were left out before sampling, as stacked areas",
        height=190,
    )
    return Panel(
        "Prompt memory",
        f"Prompts are chosen by sample.choose = {sample.choose}. A prompt is settled once "
        f"{sample.memory_visits} groups in a row were all right or all wrong, and open again "
        f"{sample.retry_after} iterations later.",
        (
            Figure(
                chart,
                "Settled prompts left out",
                "No rollout was spent on them. Many never solved prompts mean that the task is too "
                "hard for the policy, many always solved ones that it has little left to teach.",
                tuple((colour, meaning) for _, meaning, colour in KINDS),
            ),
        ),
    )
