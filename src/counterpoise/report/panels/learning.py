"""Panel of the learning curves: success, entropy, response length, gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import altair as alt

from counterpoise.config.evaluation_settings import group_by_setting
from counterpoise.report.charts.series import (
    SHARE_AXIS,
    ValueAxis,
    base_chart,
    iteration_chart,
    line_chart,
    make_tooltips,
    moving_average,
    x_axis,
    y_axis,
)
from counterpoise.report.panels.panel import Figure, Panel
from counterpoise.report.run_data import RunData

ROUNDING = 1e-4  # rounding error of float32 log-probabilities
HELDOUT_STYLES = ("ink", "muted")  # of the first two settings


class MetricChart(NamedTuple):
    """A chart of one column of metrics.jsonl."""

    title: str
    metric: str
    note: str
    axis: ValueAxis = ValueAxis()


SMALL_CHARTS = (
    MetricChart("Mean reward", "reward", "Over all rollouts of the iteration."),
    MetricChart(
        "Mixed groups",
        "mixed_groups",
        "Share of prompts whose responses did not all get the same reward. The others have "
        "advantage 0 and teach nothing.",
        SHARE_AXIS,
    ),
    MetricChart("Entropy", "entropy", "Mean over the trained tokens, in nats.", ValueAxis(".4f")),
    MetricChart(
        "Response length", "response_length", "Mean tokens of a response.", ValueAxis(".1f")
    ),
    MetricChart(
        "Truncated responses",
        "truncated_share",
        "Share that hit the length limit.",
        ValueAxis(".1%", "~%"),
    ),
    MetricChart("Gradient norm", "grad_norm", "Before clipping, mean over the iteration's steps."),
    MetricChart(
        "Clipped tokens",
        "clipped_share",
        "Share of tokens whose gradient was removed by clipping the importance ratio.",
        ValueAxis(".2%", "~%"),
    ),
    MetricChart(
        "Importance ratio",
        "mean_ratio",
        "New over old probability, mean over the trained tokens; 1 means on-policy.",
        ValueAxis(".4f", starts_at_zero=False),
    ),
    MetricChart(
        "Sampler mismatch",
        "sampler_mismatch",
        "Mean difference between the sampler's and the trainer's log-probability of a token, with "
        "the same weights.",
        ValueAxis(".2e", "~e"),
    ),
    MetricChart(
        "Capped importance weights",
        "capped_share",
        "Share of tokens whose sampler-mismatch correction was cut at its upper limit.",
        ValueAxis(".2%", "~%"),
    ),
    MetricChart(
        "Added loss",
        "added_loss",
        "Term that the step rule adds to the loss, mean over the iteration's optimizer steps.",
        ValueAxis(".2e", "~e"),
    ),
)


def panel(run: RunData) -> Panel | None:
    if not run.metrics:
        return None
    small = [
        _small(run, metric_chart)
        for metric_chart in SMALL_CHARTS
        if not is_uninformative(run, metric_chart.metric)
    ]
    return Panel(
        "Learning",
        "Training success is measured on the prompts an iteration samples, so it varies with "
        "their difficulty. Held-out success is measured on the same problems every time.",
        (_success(run), *(figure for figure in small if figure)),
    )


def is_uninformative(run: RunData, metric: str) -> bool:
    """Whether a chart of this metric would only repeat another one or show nothing but zeros."""
    if metric == "reward":
        return all(record["reward"] == record["success"] for record in run.metrics)
    # Our own sampler differs from the trainer by rounding only, which is not worth a chart.
    if metric == "sampler_mismatch" and run.config.sample.engine == "native":
        return not any((record.get(metric) or 0) > ROUNDING for record in run.metrics)
    if metric in ("truncated_share", "capped_share", "added_loss"):
        return not any(record.get(metric) for record in run.metrics)
    return False


def _small(run: RunData, metric_chart: MetricChart) -> Figure | None:
    points = [(record["iteration"], record.get(metric_chart.metric)) for record in run.metrics]
    # The clipping threshold is drawn as a guide in the chart of the gradient norm.
    norm_limit = run.config.update.max_grad_norm if metric_chart.metric == "grad_norm" else 0.0
    chart = line_chart(
        points,
        run.last_iteration,
        metric_chart.title,
        metric_chart.axis,
        guide=norm_limit or None,
    )
    note = metric_chart.note
    if norm_limit:
        note += f" Dashed: the limit, {norm_limit:g}."
    return Figure(chart, metric_chart.title, note) if chart else None


def _success(run: RunData) -> Figure:
    means, width = moving_average([record["success"] for record in run.metrics])
    records = [
        {"iteration": record["iteration"], "success": record["success"], "smoothed": mean}
        for record, mean in zip(run.metrics, means, strict=True)
    ]
    x, y = x_axis(run.last_iteration), y_axis("success", "%", (0.0, 1.0))
    chart = iteration_chart(
        [
            base_chart(records).mark_line(style="soft", strokeWidth=1.25).encode(x=x, y=y),
            base_chart(records)
            .mark_line(style="series", strokeWidth=2.5)
            .encode(x=x, y="smoothed:Q"),
        ],
        records,
        [("success", "training", ".1%"), ("smoothed", "smoothed", ".1%")],
        run.last_iteration,
        f"Success over iterations; training success ends at {100 * means[-1]:.0f} percent",
        above=[
            layer
            for style, (_, evaluations) in zip(HELDOUT_STYLES, _settings(run), strict=False)
            for layer in _heldout(evaluations, x, style)
        ],
        height=240,
    )
    keys = [("soft", "training"), ("series", f"training, mean of {width} iterations")]
    for style, (name, _) in zip(HELDOUT_STYLES, _settings(run), strict=False):
        keys.append((style, f"held-out{name}, with 95 % interval"))
    return Figure(chart, "Success", keys=tuple(keys), wide=True)


def _settings(run: RunData) -> list[tuple[str, list[Mapping[str, Any]]]]:
    """(name of a sampling setting, its evaluations); the name is empty where there is only one."""
    by_setting_found = group_by_setting(run.evaluations)
    return [
        (f" at {setting}" if len(by_setting_found) > 1 else "", evaluations)
        for setting, evaluations in by_setting_found.items()
    ]


def _heldout(judged: list[Mapping[str, Any]], x: alt.X, style: str) -> list[alt.Chart]:
    records = [
        {field: evaluation[field] for field in ("iteration", "mean", "low", "high")}
        for evaluation in judged
    ]
    tooltip = make_tooltips(
        [
            ("iteration", "after iteration", "d"),
            ("mean", "held-out", ".1%"),
            ("low", "95 % from", ".1%"),
            ("high", "to", ".1%"),
        ]
    )
    bar = base_chart(records).mark_rule(style=style, strokeWidth=1.5)
    dot = base_chart(records).mark_point(style=style, size=70)
    return [
        bar.encode(x=x, y="low:Q", y2="high:Q", tooltip=tooltip),
        dot.encode(x=x, y="mean:Q", tooltip=tooltip),
    ]
