"""Fig. 10: does a step of the output layer alone move tokens the way a full step does?

From one checkpoint and one batch, two updates: all parameters, and the unembedding alone. A token
agrees when its displacement has the same sign under both; tokens that either leaves stable
(|delta| <= 1e-6) are not counted. Several batches stand in for the paper's training steps. SGD is
the update the proxy was derived for; AdamW (first step, so nearly sign(g)) is what trains.

Replicated: agreement under the paper's setting (AdamW) within [0.6, 0.8], interval included.
Not replicated: the interval lies outside it. Inconclusive otherwise.
"""

from __future__ import annotations

import altair as alt
import torch

from counterpoise.lab.studies.harness import Lab
from counterpoise.lab.studies.partial_results import by_batch
from counterpoise.lab.studies.study import Study
from counterpoise.microscope.batch_tokens import snapshot
from counterpoise.microscope.displacement import EPSILON
from counterpoise.microscope.output_layer import output_displacement, output_gradient
from counterpoise.report.charts.series import base_chart
from counterpoise.report.panels.panel import Figure
from counterpoise.statistics.bootstrap import mean_interval
from counterpoise.statistics.finding import Finding, Number, Record, Records, Verdict

LOW, HIGH, PAPER = 0.6, 0.8, 0.7
OPTIMIZERS = ("sgd", "adamw")


def measure(lab: Lab) -> Records:
    return by_batch(lab, _of_batch)


def _of_batch(lab: Lab, batch: int) -> list[Record]:
    records: list[Record] = []
    rows = lab.rows(lab.sizes["prompts"], batch=batch)
    before = snapshot(lab.policy, rows)
    W = lab.policy.decoder.unembedding.detach().clone()
    gradient = output_gradient(before, W)
    for optimizer, lr in lab.rates.items():
        with lab.unchanged():
            lab.update(rows, optimizer=optimizer, lr=lr, max_grad_norm=0.0)
            full = snapshot(lab.policy, rows).logprobs - before.logprobs
        change = lr * (gradient if optimizer == "sgd" else gradient / (gradient.abs() + 1e-8))
        alone = output_displacement(before, W, change)
        counted = (full.abs() > EPSILON) & (alone.abs() > EPSILON)
        same = torch.sign(full) == torch.sign(alone)
        for group in before.groups.unique().tolist():
            mine = counted & (before.groups == group)
            records.append(
                {
                    "optimizer": optimizer,
                    "batch": batch,
                    "prompt": f"{batch}:{group}",
                    "tokens": int(mine.sum()),
                    "agree": int((same & mine).sum()),
                }
            )
    return records


def judge(records: Records) -> Finding:
    found = {
        name: _agreement([r for r in records if r["optimizer"] == name]) for name in OPTIMIZERS
    }
    value, low, high = found["adamw"]
    verdict: Verdict = "inconclusive"
    if low >= LOW and high <= HIGH:
        verdict = "replicated"
    elif high < LOW or low > HIGH:
        verdict = "not replicated"
    sgd = found["sgd"][0]
    return Finding(
        verdict,
        f"Under AdamW a full step and a step of the output layer agree in sign on "
        f"{100 * value:.0f} % [{100 * low:.0f}, {100 * high:.0f}] of tokens, under SGD on "
        f"{100 * sgd:.0f} %; the paper's figure settles near 70 %.",
        tuple(
            Number(f"sign agreement, {name}", *found[name], paper=PAPER, unit="share")
            for name in OPTIMIZERS
        ),
    )


def _agreement(records: Records) -> tuple[float, float, float]:
    """Tokens are pooled within prompts, prompts are resampled."""
    counted = [r for r in records if r["tokens"]]
    return mean_interval(
        [r["prompt"] for r in counted], [r["agree"] / r["tokens"] for r in counted]
    )


def draw(records: Records) -> tuple[Figure, ...]:
    points = []
    for optimizer in OPTIMIZERS:
        for batch in sorted({r["batch"] for r in records}):
            value, low, high = _agreement(
                [r for r in records if r["optimizer"] == optimizer and r["batch"] == batch]
            )
            points.append(
                {"optimizer": optimizer, "batch": batch, "value": value, "low": low, "high": high}
            )
    x = alt.X("batch:O", axis=alt.Axis(title="batch", labelAngle=0))
    y = alt.Y("value:Q", scale=alt.Scale(domain=[0.0, 1.0]), axis=alt.Axis(format="%"))
    layers = []
    for optimizer, style in (("adamw", "series"), ("sgd", "soft")):
        mine = base_chart([p for p in points if p["optimizer"] == optimizer])
        layers += [
            mine.mark_rule(style=style, strokeWidth=1.5).encode(x=x, y="low:Q", y2="high:Q"),
            mine.mark_point(style=style, size=50).encode(x=x, y=y),
        ]
    dashed = base_chart([{"value": PAPER}]).mark_rule(style="muted", strokeDash=[2, 3]).encode(y=y)
    drawn = alt.LayerChart(
        layer=[dashed, *layers],
        width="container",
        height=200,
        description="Share of tokens whose displacement has one sign under both updates",
    )
    return (
        Figure(
            drawn,
            "Full step against output layer",
            "Share of tokens that move the same way, with 95 % intervals over prompts.",
            (("series", "AdamW"), ("soft", "SGD"), ("muted", "paper, about 70 %")),
            wide=True,
        ),
    )


STUDY = Study(
    name="proxy",
    title="The output layer stands in for all parameters",
    shows="Fig. 10",
    claim="A step of the unembedding alone moves about 70 % of tokens in the direction of a full "
    "step, steadily through training.",
    rule="Replicated when the sign agreement under AdamW and its interval lie within 60 to 80 %; "
    "not replicated when the interval lies outside; otherwise inconclusive.",
    budgets={
        "quick": {"prompts": 16, "batches": 4},
        "full": {"prompts": 64, "batches": 12},
    },
    measure=measure,
    judge=judge,
    draw=draw,
)
