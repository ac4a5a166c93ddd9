"""Do the pushes of a step predict how held-out answers move? (`poise trace`)

One optimizer step from one checkpoint for each batch, on all parameters, by SGD and by AdamW. For
every held-out answer q, right or wrong, drawn from the model itself:

    moved            change of log p(q) by the step, measured
    output layer     sum_k c_k sum_{j in q} <h_j, h_k> <r_j, r_k>     what `poise trace` sums
    all parameters   <grad log p(q), -grad L>                         the same through every layer
    middle layer     the same through the middle layer alone          `monitor.probe_through`

c_k is -dL/dlogp of trained token k. All are divided by the answer's number of tokens, or long
answers would come first in both rankings by their length alone. Spearman's rank correlation of a
prediction with the measured change is taken over the answers of a step, and averaged over steps;
its interval is a bootstrap over problems.

Decision rule, for each optimizer: replicated when the interval of the output layer's correlation
lies above 0.3; not replicated when it lies below; inconclusive otherwise. The others are shown
beside it and decide nothing: they say what the output layer misses and, under AdamW, what the
optimizer does to any prediction from plain gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial

import altair as alt
import numpy as np

from counterpoise.lab.studies.harness import MICRO_TOKENS, Lab
from counterpoise.lab.studies.partial_results import measure_batches
from counterpoise.lab.studies.study import Study
from counterpoise.microscope.gradient_products import (
    ALL_PARAMETERS,
    MIDDLE_LAYER,
    GradientSettings,
    choose_parameters,
)
from counterpoise.microscope.parameter_kernel import derivatives_along
from counterpoise.microscope.probe_monitor import ProbeAnswer, ProbeMonitor
from counterpoise.microscope.probe_records import sum_by_answer
from counterpoise.report.charts.figure import Figure
from counterpoise.report.charts.series import base_chart
from counterpoise.run.probes import draw_probes
from counterpoise.sample.collect import SamplerBinding
from counterpoise.statistics.bootstrap import (
    Interval,
    format_interval,
    interval_from_draws,
    resampled_weights,
)
from counterpoise.statistics.finding import (
    ClaimVerdict,
    Finding,
    Number,
    Record,
    Records,
    Verdict,
    join_verdicts,
)
from counterpoise.statistics.ranks import rank_correlations
from counterpoise.types import Floats, Row
from counterpoise.update.step import StepSettings, accumulate_gradient

USEFUL_CORRELATION = 0.3
OPTIMIZERS = ("sgd", "adamw")
PREDICTIONS = {
    "output_layer": "output layer",
    "middle_layer": "middle layer",  # older records are without it
    "all_parameters": "all parameters",
}


# -- measure --------------------------------------------------------------------------------------


def measure(lab: Lab) -> Records:
    # Drawn when the first batch is measured, once for all: every batch starts from the same model.
    answers = cache(lambda: draw_answers(lab))
    return measure_batches(lab, lambda lab, batch: _measure_batch(lab, batch, answers()))


def draw_answers(lab: Lab) -> Sequence[ProbeAnswer]:
    monitor = replace(lab.config.monitor, probe=lab.sizes["answers"])
    config = replace(lab.config, monitor=monitor)
    sampler = SamplerBinding(lab.policy)
    return draw_probes(sampler, lab.task.heldout, config, lab.verifier, iteration=1).answers


def _measure_batch(lab: Lab, batch: int, answers: Sequence[ProbeAnswer]) -> list[Record]:
    rows = lab.rows(lab.sizes["prompts"], batch=batch)
    lengths = [answer.row.num_tokens for answer in answers]
    by_gradients = {
        name: sum_by_answer(values_J, lengths)
        for name, values_J in _predict_by_gradients(lab, rows, answers).items()
    }
    records: list[Record] = []
    for optimizer, lr in lab.learning_rates.items():
        monitor = ProbeMonitor(answers, lab.config.sample.temperature, MICRO_TOKENS)
        with lab.unchanged():
            lab.update(rows, optimizer=optimizer, lr=lr, max_grad_norm=0.0, observer=monitor)
            measurement = monitor.finish(lab.policy)
        assert measurement is not None, "the batch had no signal"
        moved = sum_by_answer(measurement.displacement, lengths)
        output_layer = measurement.by_row_RQ.sum(axis=0, dtype=np.float64)
        records += [
            {
                "optimizer": optimizer,
                "batch": batch,
                "problem": answer.problem,
                "kind": answer.kind,
                "moved": float(moved[index] / answer.row.num_tokens),
                "output_layer": float(output_layer[index] / answer.row.num_tokens),
                **{
                    name: float(values_Q[index] / answer.row.num_tokens)
                    for name, values_Q in by_gradients.items()
                },
            }
            for index, answer in enumerate(answers)
        ]
    return records


def _predict_by_gradients(
    lab: Lab, rows: Sequence[Row], answers: Sequence[ProbeAnswer]
) -> dict[str, Floats]:
    """<grad log p(j), -grad L> of every token j of the answers [J], over two sets of parameters."""
    policy, config = lab.policy, lab.config
    settings = StepSettings(
        replace(config.update, kl=0.0, micro_tokens=MICRO_TOKENS),
        temperature=config.sample.temperature,
        max_new_tokens=config.sample.max_new_tokens,
    )
    parameters = dict(policy.model.named_parameters())
    policy.model.zero_grad(set_to_none=True)
    accumulate_gradient(policy, rows, settings)
    direction = {
        name: -parameter.grad
        for name, parameter in parameters.items()
        if parameter.grad is not None
    }
    policy.model.zero_grad(set_to_none=True)
    predictions: dict[str, Floats] = {}
    for through in (MIDDLE_LAYER, ALL_PARAMETERS):
        settings_of_gradient = GradientSettings(through, config.sample.temperature)
        weights = choose_parameters(policy, settings_of_gradient, answers[0].row)
        chosen = {id(weight) for weight in weights}
        derivatives = derivatives_along(
            policy,
            [answer.row for answer in answers],
            {name: step for name, step in direction.items() if id(parameters[name]) in chosen},
            temperature=config.sample.temperature,
            micro_tokens=MICRO_TOKENS,
        )
        predictions[through] = derivatives.detach().float().cpu().numpy()
    return predictions


# -- judge ----------------------------------------------------------------------------------------


def judge(records: Records) -> Finding:
    measured = [prediction for prediction in PREDICTIONS if prediction in records[0]]
    correlations = {
        (optimizer, prediction): mean_correlation(records, optimizer, prediction)
        for optimizer in OPTIMIZERS
        for prediction in measured
    }
    claims = [
        ClaimVerdict(
            f"the pushes predict the order of the answers under {optimizer}",
            _verdict(correlations[optimizer, "output_layer"]),
        )
        for optimizer in OPTIMIZERS
    ]
    sgd, adamw = (correlations[optimizer, "output_layer"] for optimizer in OPTIMIZERS)
    full_sgd, full_adamw = (correlations[name, "all_parameters"][0] for name in OPTIMIZERS)
    steps = len({record["batch"] for record in records})
    problems = len({record["problem"] for record in records})
    return Finding(
        join_verdicts(claims),
        f"Over {steps} steps and {problems} held-out problems, the rank correlation of predicted "
        f"and real change is {format_interval(sgd, '.2f')} under SGD and "
        f"{format_interval(adamw, '.2f')} under AdamW; through all parameters it is "
        f"{full_sgd:.2f} and {full_adamw:.2f}.",
        tuple(
            Number(
                f"rank correlation, {PREDICTIONS[prediction]}, {optimizer}",
                *correlations[optimizer, prediction],
            )
            for optimizer in OPTIMIZERS
            for prediction in measured
        ),
        notes=("A single step of a fresh AdamW is nearly the sign of the gradient.",),
        claims=tuple(claims),
    )


def mean_correlation(records: Records, optimizer: str, prediction: str) -> Interval:
    """The rank correlation with the real change, averaged over steps."""
    problems = list(dict.fromkeys(record["problem"] for record in records))
    number_of_problem = {problem: number for number, problem in enumerate(problems)}
    weights_DP = resampled_weights(problems)
    correlations = []
    for batch in sorted({record["batch"] for record in records}):
        step_records = [
            record
            for record in records
            if record["batch"] == batch and record["optimizer"] == optimizer
        ]
        weights_DN = weights_DP[:, [number_of_problem[r["problem"]] for r in step_records]]
        correlations.append(
            rank_correlations(
                [record[prediction] for record in step_records],
                [record["moved"] for record in step_records],
                weights_DN,
            )
        )
    return interval_from_draws(np.mean(correlations, axis=0), len(problems))


def _verdict(correlation: Interval) -> Verdict:
    _, low, high = correlation
    if low > USEFUL_CORRELATION:
        return "replicated"
    return "not replicated" if high < USEFUL_CORRELATION else "inconclusive"


# -- draw -----------------------------------------------------------------------------------------


def draw(records: Records) -> tuple[Figure, ...]:
    return tuple(_draw_optimizer(records, optimizer) for optimizer in OPTIMIZERS)


def _draw_optimizer(records: Records, optimizer: str) -> Figure:
    """Predicted ranks against real ones, of all answers and steps."""
    points = []
    for batch in sorted({record["batch"] for record in records}):
        step_records = [
            record
            for record in records
            if record["batch"] == batch and record["optimizer"] == optimizer
        ]
        rank = partial(_relative_ranks, step_records)
        points += [
            {"kind": record["kind"], "predicted": x, "moved": y}
            for record, x, y in zip(step_records, rank("output_layer"), rank("moved"), strict=True)
        ]
    scale = alt.Scale(domain=[0.0, 1.0])
    layers = [
        base_chart([point for point in points if point["kind"] == kind])
        .mark_point(style=style, size=14, opacity=0.5)
        .encode(
            x=alt.X("predicted:Q", scale=scale, axis=alt.Axis(title="rank of the push")),
            y=alt.Y("moved:Q", scale=scale, axis=alt.Axis(title="rank of the real change")),
        )
        for kind, style in (("right", "series"), ("wrong", "soft"))
    ]
    chart = alt.LayerChart(
        layer=layers,
        width="container",
        height=220,
        description=f"Predicted and real change of held-out answers under {optimizer}",
    )
    name = {"sgd": "SGD", "adamw": "AdamW"}[optimizer]
    return Figure(
        chart,
        f"Held-out answers, one step of {name}",
        "Each point is an answer in one step: its rank by the sum of pushes and by real change.",
        (("series", "right answers"), ("soft", "wrong answers")),
    )


def _relative_ranks(records: Records, field: str) -> list[float]:
    """Ranks from 0 to 1."""
    order = np.argsort(np.argsort([record[field] for record in records], kind="stable"))
    return (order / max(1, len(records) - 1)).tolist()


STUDY = Study(
    name="trace",
    title="Pushes on held-out answers predict how they move",
    shows="poise trace",
    claim="The sums of pushes through the output layer order held-out answers as the step really "
    "moves them. This is a claim of ours, not of the paper.",
    rule="Replicated when the interval of the mean rank correlation lies above 0.3 under SGD and "
    "under AdamW; not replicated when one of them lies below 0.3; otherwise inconclusive.",
    budgets={
        "quick": {"prompts": 16, "batches": 4, "answers": 64},
        "full": {"prompts": 64, "batches": 12, "answers": 256},
    },
    measure=measure,
    judge=judge,
    draw=draw,
)
