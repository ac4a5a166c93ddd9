"""Panel of the learning curves: success or reward, entropy, response length, gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import altair as alt
import numpy as np

from counterpoise.config.evaluation_settings import group_by_setting
from counterpoise.report.charts.figure import Figure
from counterpoise.report.charts.series import (
    SHARE_AXIS,
    ValueAxis,
    base_chart,
    evaluation_marks,
    iteration_chart,
    line_chart,
    make_tooltips,
    moving_average,
    x_axis,
    y_axis,
)
from counterpoise.report.panels.panel import Panel
from counterpoise.report.panels.summary import headline_record
from counterpoise.report.run_data import RunData

ROUNDING = 1e-4  # rounding error of float32 log-probabilities
HELDOUT_STYLES = ("ink", "muted")  # only the first two sampling settings are drawn
HISTOGRAM_ITERATIONS, HISTOGRAM_BINS = 10, 24
GRADED_CAPTION = (
    "Rewards are graded, so their mean is shown. Training rewards are measured on the prompts an "
    "iteration samples and vary with the difficulty of these prompts; held-out rewards are "
    "measured on the same problems every time."
)


class MetricChart(NamedTuple):
    """A chart of one column of metrics.jsonl."""

    title: str
    metric: str
    note: str
    axis: ValueAxis = ValueAxis()


SMALL_CHARTS = (
    MetricChart(
        "Mixed groups",
        "mixed_groups",
        "Share of prompts whose responses did not all get the same reward. The others have "
        "advantage 0 and teach nothing.",
        SHARE_AXIS,
    ),
    MetricChart("Entropy", "entropy", "Mean over the trained tokens, in nats.", ValueAxis(".4f")),
    MetricChart(
        "KL from the initial policy",
        "kl",
        "Estimated at the sampled tokens, mean per token, in nats.",
        ValueAxis(".2e", "~e"),
    ),
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
        "Share of tokens whose correction for sampler mismatch was capped at its upper limit.",
        ValueAxis(".2%", "~%"),
    ),
    MetricChart(
        "Added loss",
        "added_loss",
        "Term that the step rule adds to the loss: mean over the iteration's optimizer steps.",
        ValueAxis(".2e", "~e"),
    ),
)


def panel(run: RunData) -> Panel | None:
    if not run.metrics:
        return None
    small_figures = [
        _metric_figure(run, metric_chart)
        for metric_chart in SMALL_CHARTS
        if not is_uninformative(run, metric_chart.metric)
    ]
    return Panel(
        "Learning",
        GRADED_CAPTION
        if run.is_graded
        else "Training success is measured on the prompts an iteration samples, so it varies with "
        "their difficulty. Held-out success is measured on the same problems every time.",
        (
            _headline_figure(run),
            *(figure for figure in (_histogram_figure(run), *small_figures) if figure),
        ),
    )


def is_uninformative(run: RunData, metric: str) -> bool:
    """Whether a chart of this metric would show nothing but zeros or rounding errors."""
    # Our own sampler differs from the trainer by rounding only, which is not worth a chart.
    if metric == "sampler_mismatch" and run.config.sample.engine == "native":
        return not any((record.get(metric) or 0) > ROUNDING for record in run.metrics)
    if metric in ("truncated_share", "capped_share", "added_loss", "kl"):
        return not any(record.get(metric) for record in run.metrics)
    return False


def _metric_figure(run: RunData, metric_chart: MetricChart) -> Figure | None:
    points = [(record["iteration"], record.get(metric_chart.metric)) for record in run.metrics]
    # The clipping threshold is drawn as a guide in the chart of the gradient norm.
    norm_limit = run.config.update.max_grad_norm if metric_chart.metric == "grad_norm" else 0.0
    chart = line_chart(
        points,
        run.axis_range,
        metric_chart.title,
        metric_chart.axis,
        guide=norm_limit or None,
    )
    note = metric_chart.note
    if norm_limit:
        note += f" Dashed: the limit, {norm_limit:g}."
    return Figure(chart, metric_chart.title, note) if chart else None


def _headline_figure(run: RunData) -> Figure:
    """Success over iterations; of graded rewards, their mean."""
    metric, number_format = ("reward", ".3f") if run.is_graded else ("success", ".1%")
    means, window_width = moving_average([record[metric] for record in run.metrics])
    records = [
        {"iteration": record["iteration"], metric: record[metric], "smoothed": mean}
        for record, mean in zip(run.metrics, means, strict=True)
    ]
    x_encoding = x_axis(run.axis_range)
    y_encoding = y_axis(metric, zero=False) if run.is_graded else y_axis(metric, "%", (0.0, 1.0))
    last_mean = f"{means[-1]:.3f}" if run.is_graded else f"{100 * means[-1]:.0f} percent"
    chart = iteration_chart(
        [
            base_chart(records)
            .mark_line(style="soft", strokeWidth=1.25)
            .encode(x=x_encoding, y=y_encoding),
            base_chart(records)
            .mark_line(style="series", strokeWidth=2.5)
            .encode(x=x_encoding, y=alt.Y("smoothed:Q")),
        ],
        records,
        [(metric, "training", number_format), ("smoothed", "smoothed", number_format)],
        run.axis_range,
        f"{metric.capitalize()} over iterations; training {metric} ends at {last_mean}",
        above=[
            layer
            for style, (_, evaluations) in zip(
                HELDOUT_STYLES, _evaluations_by_setting(run), strict=False
            )
            for layer in evaluation_marks(
                evaluations, x_encoding, alt.Y("mean:Q"), style, number_format, name="held-out"
            )
        ],
        height=240,
    )
    keys = [("soft", "training"), ("series", f"training, mean of {window_width} iterations")]
    for style, (setting_suffix, _) in zip(
        HELDOUT_STYLES, _evaluations_by_setting(run), strict=False
    ):
        keys.append((style, f"held-out{setting_suffix}, with 95 % interval"))
    title = "Mean reward" if run.is_graded else "Success"
    return Figure(chart, title, keys=tuple(keys), wide=True)


def _histogram_figure(run: RunData) -> Figure | None:
    """The rewards of the first and the last iterations; None if they are not graded or stored."""
    if not run.is_graded:
        return None
    iterations = [record["iteration"] for record in run.metrics]
    count = min(HISTOGRAM_ITERATIONS, max(1, len(iterations) // 2))
    rewards_first, rewards_last = (
        [
            rollout.reward
            for iteration in chosen_iterations
            for rollout in run.rollouts(iteration)
            if math.isfinite(rollout.reward)
        ]
        for chosen_iterations in (iterations[:count], iterations[-count:])
    )
    if not rewards_first or not rewards_last:
        return None
    records = histogram_records({"muted": rewards_first, "series": rewards_last})
    chart = alt.LayerChart(
        layer=[
            base_chart([record for record in records if record["style"] == style])
            .mark_line(style=style, interpolate="step-after", strokeWidth=2)
            .encode(
                x=alt.X("start:Q", title=None, scale=alt.Scale(zero=False, nice=False)),
                y=y_axis("share", "~%"),
                tooltip=make_tooltips(
                    [("start", "from", ".3~f"), ("end", "to", ".3~f"), ("share", "share", ".1%")]
                ),
            )
            for style in ("muted", "series")
        ],
        width="container",
        height=132,
        autosize=alt.AutoSizeParams(type="fit-x", contains="padding"),
        description=f"Histogram of rewards, {len(rewards_first)} and {len(rewards_last)} rollouts",
    )
    span = "iteration" if count == 1 else f"{count} iterations"
    keys = (("muted", f"first {span}"), ("series", f"last {span}"))
    note = "Share of the rollouts whose reward falls into each of the intervals."
    return Figure(chart, "Rewards", note, keys=keys)


def histogram_records(rewards_by_style: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
    """The share of rewards in each of equal intervals, which all styles share.

    A last record with share 0 ends the line of a step chart.
    """
    all_rewards = np.concatenate([np.asarray(rewards) for rewards in rewards_by_style.values()])
    edges = np.histogram_bin_edges(all_rewards, bins=HISTOGRAM_BINS)
    records: list[dict[str, Any]] = []
    for style, rewards in rewards_by_style.items():
        counts, _ = np.histogram(np.asarray(rewards), bins=edges)
        shares = [*(counts / len(rewards)).tolist(), 0.0]
        ends = [*edges[1:].tolist(), float(edges[-1])]
        records += [
            {"style": style, "start": start, "end": end, "share": share}
            for start, end, share in zip(edges.tolist(), ends, shares, strict=True)
        ]
    return records


def _evaluations_by_setting(run: RunData) -> list[tuple[str, Sequence[Mapping[str, Any]]]]:
    """(end of a title, evaluations) of each sampling setting; " at 0.6/0.95", or "" if only one."""
    evaluations_by_setting = group_by_setting(run.evaluations)
    return [
        (
            f" at {setting}" if len(evaluations_by_setting) > 1 else "",
            [headline_record(each) for each in evaluations] if run.is_graded else evaluations,
        )
        for setting, evaluations in evaluations_by_setting.items()
    ]
