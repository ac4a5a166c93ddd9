"""Fig. 10: does a step of the output layer alone move tokens in the same direction as a full step?

Two updates from one checkpoint and one batch: all parameters, and the unembedding alone. A token
agrees when its displacement has the same sign under both; tokens that are stable under either
(|delta| <= 1e-6) are not counted. Several batches take the place of the paper's training steps. The
proxy was derived for SGD; training uses AdamW, whose first step is nearly sign(g).

Replicated: agreement under the paper's setting (AdamW) within [0.6, 0.8], interval included.
Not replicated: the interval lies outside it. Inconclusive otherwise.
"""

from __future__ import annotations

import altair as alt
import torch

from counterpoise.lab.studies.harness import Lab
from counterpoise.lab.studies.partial_results import measure_batches
from counterpoise.lab.studies.study import Study
from counterpoise.microscope.batch_tokens import take_snapshot
from counterpoise.microscope.displacement import EPSILON
from counterpoise.microscope.output_layer import output_displacement, output_gradient
from counterpoise.report.charts.figure import Figure
from counterpoise.report.charts.series import base_chart
from counterpoise.statistics.bootstrap import format_interval, mean_interval
from counterpoise.statistics.finding import Finding, Number, Record, Records, Verdict

LOWEST_AGREEMENT, HIGHEST_AGREEMENT, PAPER_AGREEMENT = 0.6, 0.8, 0.7
OPTIMIZERS = ("sgd", "adamw")


# -- measure --------------------------------------------------------------------------------------


def measure(lab: Lab) -> Records:
    return measure_batches(lab, _measure_batch)


def _measure_batch(lab: Lab, batch: int) -> list[Record]:
    records: list[Record] = []
    rows = lab.rows(lab.sizes["prompts"], batch=batch)
    snapshot_before = take_snapshot(lab.policy, rows)
    W = lab.policy.decoder.unembedding.detach().clone()
    gradient = output_gradient(snapshot_before, W)
    for optimizer, lr in lab.learning_rates.items():
        with lab.unchanged():
            # Not clipped, like the step of the output layer below.
            lab.update(rows, optimizer=optimizer, lr=lr, max_grad_norm=0.0)
            full_displacement = take_snapshot(lab.policy, rows).logprobs - snapshot_before.logprobs
        # AdamW's first step has momenta g and g^2, so it moves by g / (|g| + eps).
        change = lr * (gradient if optimizer == "sgd" else gradient / (gradient.abs() + 1e-8))
        layer_displacement = output_displacement(snapshot_before, W, change)
        is_counted_N = (full_displacement.abs() > EPSILON) & (layer_displacement.abs() > EPSILON)
        same_sign = torch.sign(full_displacement) == torch.sign(layer_displacement)
        for group in snapshot_before.groups.unique().tolist():
            member_N = is_counted_N & (snapshot_before.groups == group)
            records.append(
                {
                    "optimizer": optimizer,
                    "batch": batch,
                    "prompt": f"{batch}:{group}",
                    "tokens": int(member_N.sum()),
                    "agree": int((same_sign & member_N).sum()),
                }
            )
    return records


# -- judge ----------------------------------------------------------------------------------------


def judge(records: Records) -> Finding:
    agreements = {
        optimizer: _agreement([record for record in records if record["optimizer"] == optimizer])
        for optimizer in OPTIMIZERS
    }
    _, low, high = agreements["adamw"]
    verdict: Verdict = "inconclusive"
    if low >= LOWEST_AGREEMENT and high <= HIGHEST_AGREEMENT:
        verdict = "replicated"
    elif high < LOWEST_AGREEMENT or low > HIGHEST_AGREEMENT:
        verdict = "not replicated"
    sgd = agreements["sgd"][0]
    return Finding(
        verdict,
        f"Under AdamW a full step and a step of the output layer agree in sign on "
        f"{format_interval(agreements['adamw'], '.0f', '%')} of a prompt's tokens, under "
        f"SGD on {100 * sgd:.0f} %; the paper's figure settles near 70 %.",
        tuple(
            Number(
                f"sign agreement, {optimizer}",
                *agreements[optimizer],
                paper=PAPER_AGREEMENT,
                unit="share",
            )
            for optimizer in OPTIMIZERS
        ),
    )


def _agreement(records: Records) -> tuple[float, float, float]:
    """Sign agreement: the share of each prompt's tokens, averaged over prompts."""
    prompts_with_tokens = [record for record in records if record["tokens"]]
    return mean_interval(
        [record["prompt"] for record in prompts_with_tokens],
        [record["agree"] / record["tokens"] for record in prompts_with_tokens],
    )


# -- draw -----------------------------------------------------------------------------------------


def draw(records: Records) -> tuple[Figure, ...]:
    points = []
    for optimizer in OPTIMIZERS:
        for batch in sorted({record["batch"] for record in records}):
            value, low, high = _agreement(
                [
                    record
                    for record in records
                    if record["optimizer"] == optimizer and record["batch"] == batch
                ]
            )
            points.append(
                {"optimizer": optimizer, "batch": batch, "value": value, "low": low, "high": high}
            )
    x_axis = alt.X("batch:O", axis=alt.Axis(title="batch", labelAngle=0))
    y_axis = alt.Y("value:Q", scale=alt.Scale(domain=[0.0, 1.0]), axis=alt.Axis(format="%"))
    layers = []
    for optimizer, style in (("adamw", "series"), ("sgd", "soft")):
        optimizer_chart = base_chart([point for point in points if point["optimizer"] == optimizer])
        layers += [
            optimizer_chart.mark_rule(style=style, strokeWidth=1.5).encode(
                x=x_axis, y=alt.Y("low:Q"), y2=alt.Y2("high:Q")
            ),
            optimizer_chart.mark_point(style=style, size=50).encode(x=x_axis, y=y_axis),
        ]
    paper_rule = (
        base_chart([{"value": PAPER_AGREEMENT}])
        .mark_rule(style="muted", strokeDash=[2, 3])
        .encode(y=y_axis)
    )
    layered_chart = alt.LayerChart(
        layer=[paper_rule, *layers],
        width="container",
        height=200,
        description="Share of tokens whose displacement has one sign under both updates",
    )
    return (
        Figure(
            layered_chart,
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
