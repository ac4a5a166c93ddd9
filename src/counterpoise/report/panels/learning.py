"""How the policy changed: success, entropy, length, gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import altair as alt

from counterpoise.config.evaluation_settings import by_setting
from counterpoise.report.charts.series import (
    base_chart,
    iteration_chart,
    line_chart,
    make_tooltips,
    smoothed,
    x_axis,
    y_axis,
)
from counterpoise.report.panels.panel import Figure, Panel
from counterpoise.report.run_data import RunData

ROUNDING = 1e-4  # of float32 log-probabilities
HELDOUT_STYLES = ("ink", "muted")  # of the first two settings


class MetricChart(NamedTuple):
    title: str
    metric: str
    note: str
    number_format: str = ".3f"
    axis_format: str = ""
    domain: list[float] | None = None
    starts_at_zero: bool = True  # the axis begins there


SMALL_CHARTS = (
    MetricChart("Mean reward", "reward", "Over all rollouts of the iteration."),
    MetricChart(
        "Mixed groups",
        "mixed_groups",
        "Share of prompts whose responses' rewards are not all equal: others tell nothing apart.",
        ".1%",
        "%",
        [0.0, 1.0],
    ),
    MetricChart("Entropy", "entropy", "Mean over the trained tokens, in nats.", ".4f"),
    MetricChart("Response length", "response_length", "Mean tokens of a response.", ".1f"),
    MetricChart(
        "Cut-off responses", "truncated_share", "Share that met the length limit.", ".1%", "~%"
    ),
    MetricChart("Gradient norm", "grad_norm", "Before clipping, mean over the iteration's steps."),
    MetricChart(
        "Clipped tokens",
        "clipped_share",
        "Share whose gradient the ratio clip removed.",
        ".2%",
        "~%",
    ),
    MetricChart(
        "Importance ratio",
        "mean_ratio",
        "New over old probability, mean over the trained tokens; 1 is on policy.",
        ".4f",
        starts_at_zero=False,
    ),
    MetricChart(
        "Sampler and trainer",
        "sampler_mismatch",
        "Mean difference of their log-probabilities of a token, by the same weights.",
        ".2e",
        "~e",
    ),
    MetricChart(
        "Capped weights",
        "capped_share",
        "Share of tokens whose importance weight is the cap.",
        ".2%",
        "~%",
    ),
    MetricChart(
        "Added loss",
        "added_loss",
        "What the rule of a step adds to the loss, mean over the iteration's steps.",
        ".2e",
        "~e",
    ),
)


def panel(run: RunData) -> Panel | None:
    if not run.metrics:
        return None
    small = [
        _small(run, quantity)
        for quantity in SMALL_CHARTS
        if not is_uninformative(run, quantity.metric)
    ]
    return Panel(
        "Learning",
        "Training success is measured on the prompts an iteration samples, so it varies with "
        "their difficulty. Held-out success is measured on the same problems every time.",
        (_success(run), *(figure for figure in small if figure)),
    )


def is_uninformative(run: RunData, metric: str) -> bool:
    """What only repeats another, or never happened, or is the rounding of our own sampler."""
    if metric == "reward":
        return all(record["reward"] == record["success"] for record in run.metrics)
    if metric == "sampler_mismatch" and run.config.sample.engine == "native":
        return not any((record.get(metric) or 0) > ROUNDING for record in run.metrics)
    if metric in ("truncated_share", "capped_share", "added_loss"):
        return not any(record.get(metric) for record in run.metrics)
    return False


def _small(run: RunData, q: MetricChart) -> Figure | None:
    points = [(record["iteration"], record.get(q.metric)) for record in run.metrics]
    limit = run.config.update.max_grad_norm if q.metric == "grad_norm" else 0.0
    drawn = line_chart(
        points,
        run.last_iteration,
        q.title,
        q.number_format,
        axis=q.axis_format,
        domain=q.domain,
        zero=q.starts_at_zero,
        guide=limit or None,
    )
    note = f"{q.note} Dashed: the limit, {limit:g}." if limit else q.note
    return Figure(drawn, q.title, note) if drawn else None


def _success(run: RunData) -> Figure:
    means, width = smoothed([record["success"] for record in run.metrics])
    records = [
        {"iteration": record["iteration"], "success": record["success"], "smoothed": mean}
        for record, mean in zip(run.metrics, means, strict=True)
    ]
    x, y = x_axis(run.last_iteration), y_axis("success", "%", [0.0, 1.0])
    drawn = iteration_chart(
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
            for style, (_, judged) in zip(HELDOUT_STYLES, _settings(run), strict=False)
            for layer in _heldout(judged, x, style)
        ],
        height=240,
    )
    keys = [("soft", "training"), ("series", f"training, mean of {width} iterations")]
    for style, (name, _) in zip(HELDOUT_STYLES, _settings(run), strict=False):
        keys.append((style, f"held-out{name}, with 95 % interval"))
    return Figure(drawn, "Success", keys=tuple(keys), wide=True)


def _settings(run: RunData) -> list[tuple[str, list[Mapping[str, Any]]]]:
    """(how it was sampled, its evaluations); a run with one way of sampling need not name it."""
    found = by_setting(run.evaluations)
    return [(f" at {setting}" if len(found) > 1 else "", e) for setting, e in found.items()]


def _heldout(judged: list[Mapping[str, Any]], x: alt.X, style: str) -> list[alt.Chart]:
    records = [{k: e[k] for k in ("iteration", "mean", "low", "high")} for e in judged]
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
