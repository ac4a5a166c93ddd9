"""Do the rows that push held-out answers cause their movement? (`poise trace`)

Steps are repeated from one checkpoint without some rows, and the held-out answers are measured
after each. A removed row keeps its place in the loss's denominator and loses its advantage, so the
gradient is that of the whole step minus the row's. Influences of a row i on an answer q:

    output layer     <M_i, M_q>                what `poise trace` sums: M_i = sum_k c_k r_k h_k^T
                                               over the tokens of i, c_k = -dL/dlogp_k, and 1 in q
    all parameters   <grad_i, grad log p(q)>   per-example gradients through every layer
    dattri           the same by dattri-llm    where it is installed (`dattri_products.py`)
    advantage        A_i                       the same for all answers
    length           tokens of the row         the same for all answers

Linear datamodeling score (LDS, arXiv:2303.14186): half of the rows are removed at random, many
times; for each right answer, Spearman's rank correlation over these subsets of the sum of the
influences of the rows that stayed and the answer's real change. Mean over answers and batches.

Dose: the rows are ranked by their influence on the right answers of the half `steer` and the top or
the bottom 10, 25 or 50 % are removed; the right answers of the half `judge` are measured. The
effect is their change without the bottom rows minus that without the top rows.

Decision rule, for each optimizer and fixed before any measurement:

    LDS     replicated when the interval of the output layer's score minus the better of advantage
            and length lies above 0; not replicated when it lies below 0; otherwise inconclusive
    dose    the same for the output layer's effect at 25 %, in mean change of log p per token

Intervals are bootstraps over held-out problems, so they say nothing about other batches. All
parameters and dattri decide nothing: they are what an exact first-order method would reach.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import altair as alt
import numpy as np
from numpy.typing import NDArray

from counterpoise.lab.studies import dattri_products
from counterpoise.lab.studies.harness import MICRO_TOKENS, Lab
from counterpoise.lab.studies.partial_results import measure_batches
from counterpoise.lab.studies.study import Study
from counterpoise.lab.studies.trace import OPTIMIZERS, draw_answers
from counterpoise.microscope.gradient_products import (
    ALL_PARAMETERS,
    GradientSettings,
    gradient_products,
)
from counterpoise.microscope.probe_monitor import ProbeAnswer, ProbeMonitor
from counterpoise.model.scoring import score_logprobs
from counterpoise.report.charts.figure import Figure
from counterpoise.report.charts.series import base_chart
from counterpoise.seeds import rng_for
from counterpoise.statistics.bootstrap import Interval, format_interval, mean_interval
from counterpoise.statistics.finding import (
    ClaimVerdict,
    Finding,
    Number,
    Record,
    Records,
    Verdict,
    join_verdicts,
)
from counterpoise.statistics.ranks import correlations_by_row
from counterpoise.types import Floats, Row

INFLUENCES = {
    "output_layer": "output layer",
    "all_parameters": "all parameters",
    "dattri": "dattri-llm",  # only where it is installed
    "advantage": "advantage",
    "length": "length",
}
BASELINES = ("advantage", "length")
SHARES = (0.1, 0.25, 0.5)  # of the rows, removed from either end of a ranking
JUDGED_SHARE = 0.25
REMOVED = 0.5  # share of the rows in a random subset of the LDS

InfluenceTable = Mapping[str, NDArray[np.float64]]  # [R, Q] by name


# -- measure --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class RepeatedStep:
    """One batch of rows whose step is repeated without some of them."""

    lab: Lab
    rows: Sequence[Row]
    answers: Sequence[ProbeAnswer]  # right ones
    logprobs_before: Sequence[Floats]  # log-probabilities of the answers, per answer [T]
    optimizer: str
    lr: float

    def without(self, removed: Sequence[int]) -> NDArray[np.float64]:
        """The real change of every answer's log-probability per token, without these rows: [Q]."""
        lab, dropped = self.lab, set(removed)
        rows = [
            replace(row, advantage=0.0) if index in dropped else row
            for index, row in enumerate(self.rows)
        ]
        with lab.unchanged():
            lab.update(rows, optimizer=self.optimizer, lr=self.lr, max_grad_norm=0.0)
            logprobs_after = _answer_logprobs(lab, self.answers)
        return np.array(
            [
                np.mean(new_T - old_T)
                for new_T, old_T in zip(logprobs_after, self.logprobs_before, strict=True)
            ]
        )


def measure(lab: Lab) -> Records:
    answers = cache(lambda: [answer for answer in draw_answers(lab) if answer.right])
    return measure_batches(lab, lambda lab, batch: _measure_batch(lab, batch, answers()))


def _measure_batch(lab: Lab, batch: int, answers: Sequence[ProbeAnswer]) -> list[Record]:
    rows = lab.rows(lab.sizes["prompts"], batch=batch)
    logprobs_before = _answer_logprobs(lab, answers)
    influences = measure_influences(lab, rows, answers)
    rng = rng_for(lab.seed, "removal", batch)
    subsets = [
        rng.permutation(len(rows))[: round(REMOVED * len(rows))]
        for _ in range(lab.sizes["subsets"])
    ]
    orders = rank_rows(influences, answers, rng.permutation(len(rows)))
    records: list[Record] = []
    for optimizer in OPTIMIZERS:
        lr = lab.learning_rates[optimizer]
        step = RepeatedStep(lab, rows, answers, logprobs_before, optimizer, lr)
        about = {"optimizer": optimizer, "batch": batch}
        for number, removed in enumerate(subsets):
            remaining_rows = np.setdiff1d(np.arange(len(rows)), removed)
            moved_Q = step.without(removed.tolist())
            records += [
                {
                    **about,
                    "subset": number,
                    "problem": answer.problem,
                    "moved": float(moved_Q[q]),
                    **{
                        name: float(table[remaining_rows, q].sum())
                        for name, table in influences.items()
                    },
                }
                for q, answer in enumerate(answers)
            ]
        for ranking, order in orders.items():
            for share in SHARES:
                count = max(1, round(share * len(rows)))
                for end, removed in (("top", order[:count]), ("bottom", order[-count:])):
                    moved_Q = step.without(removed.tolist())
                    records += [
                        {
                            **about,
                            "ranking": ranking,
                            "end": end,
                            "share": share,
                            "problem": answer.problem,
                            "moved": float(moved_Q[q]),
                        }
                        for q, answer in enumerate(answers)
                        if answer.half == "judge"
                    ]
    return records


def measure_influences(
    lab: Lab, rows: Sequence[Row], answers: Sequence[ProbeAnswer]
) -> InfluenceTable:
    """The influences of every row on every answer, before any step: [R, Q] each."""
    monitor = ProbeMonitor(answers, lab.config.sample.temperature, MICRO_TOKENS)
    pulls: dict[int, Floats] = {}
    with lab.unchanged():
        result = lab.update(rows, optimizer="sgd", lr=0.0, max_grad_norm=0.0, observer=monitor)
        measurement = monitor.finish(lab.policy)
    assert measurement is not None, "the batch had no signal"
    pulls.update(zip(result.rows, result.pulls, strict=True))
    by_row = np.zeros((len(rows), len(answers)))
    by_row[list(measurement.rows)] = measurement.by_row_RQ
    through_all_parameters = np.zeros_like(by_row)
    through_all_parameters[list(pulls)] = gradient_products(
        lab.policy,
        [rows[index] for index in pulls],
        list(pulls.values()),
        [answer.row for answer in answers],
        GradientSettings(ALL_PARAMETERS, lab.config.sample.temperature),
    )
    ones_Q = np.ones(len(answers))
    influences = {
        "output_layer": by_row,
        "all_parameters": through_all_parameters,
        "advantage": np.outer([row.advantage for row in rows], ones_Q),
        "length": np.outer([float(row.num_tokens) for row in rows], ones_Q),
    }
    if dattri_products.is_installed():
        products = np.zeros_like(by_row)
        products[list(pulls)] = dattri_products.dattri_products(
            lab.policy,
            [rows[index] for index in pulls],
            list(pulls.values()),
            [answer.row for answer in answers],
            lab.config.sample.temperature,
        )
        influences["dattri"] = products
    return influences


def rank_rows(
    influences: InfluenceTable, answers: Sequence[ProbeAnswer], random_order: NDArray[np.int64]
) -> dict[str, NDArray[np.int64]]:
    """Rows from the largest to the smallest influence on the steering half, for every ranking."""
    steering = [q for q, answer in enumerate(answers) if answer.half == "steer"]
    orders = {
        name: np.argsort(-table[:, steering].mean(axis=1), kind="stable")
        for name, table in influences.items()
    }
    return {**orders, "random": random_order}


def _answer_logprobs(lab: Lab, answers: Sequence[ProbeAnswer]) -> list[Floats]:
    rows = [answer.row for answer in answers]
    return score_logprobs(lab.policy, rows, lab.config.sample.temperature, MICRO_TOKENS)


# -- judge ----------------------------------------------------------------------------------------


def judge(records: Records) -> Finding:
    numbers, claims, texts = [], [], []
    measured = [name for name in INFLUENCES if any(name in record for record in records)]
    for optimizer in OPTIMIZERS:
        scores = {name: datamodeling_scores(records, optimizer, name) for name in measured}
        better = max(BASELINES, key=lambda name: np.mean(list(scores[name].values())))
        gap = _mean(
            {key: scores["output_layer"][key] - scores[better][key] for key in scores[better]}
        )
        effects = {
            name: _mean(removal_effects(records, optimizer, name)) for name in (*measured, "random")
        }
        claims += [
            ClaimVerdict(
                f"pushes order subsets of rows better than advantage and length ({optimizer})",
                _verdict(gap),
            ),
            ClaimVerdict(
                f"removing the rows that raise most lowers held-out answers ({optimizer})",
                _verdict(effects["output_layer"]),
            ),
        ]
        numbers += [
            *(
                Number(f"LDS, {INFLUENCES[name]}, {optimizer}", *_mean(scores[name]))
                for name in measured
            ),
            Number(f"LDS, output layer minus {better}, {optimizer}", *gap),
            *(
                Number(f"effect of removing 25 %, {name.replace('_', ' ')}, {optimizer}", *effect)
                for name, effect in effects.items()
            ),
        ]
        texts.append(
            f"Under {optimizer} the LDS is "
            f"{format_interval(_mean(scores['output_layer']), '.2f')} through the output layer, "
            f"{np.mean(list(scores['all_parameters'].values())):.2f} through all parameters and "
            f"{np.mean(list(scores[better].values())):.2f} by {better}."
        )
    return Finding(join_verdicts(claims), " ".join(texts), tuple(numbers), claims=tuple(claims))


def datamodeling_scores(
    records: Records, optimizer: str, influence: str
) -> dict[tuple[int, str], float]:
    """The rank correlation over subsets, of each batch and answer."""
    points: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for record in records:
        if record["optimizer"] == optimizer and record.get("subset") is not None:
            key = (record["batch"], record["problem"])
            points.setdefault(key, []).append((record[influence], record["moved"]))
    predicted_KS, moved_KS = np.moveaxis(np.array(list(points.values())), 2, 0)
    correlations_K = correlations_by_row(predicted_KS, moved_KS)
    # nan: a prediction that is the same for all subsets, such as equal lengths, orders nothing.
    return dict(zip(points, np.nan_to_num(correlations_K).tolist(), strict=True))


def removal_effects(
    records: Records, optimizer: str, ranking: str, share: float = JUDGED_SHARE
) -> dict[tuple[int, str], float]:
    """The change without the bottom rows minus that without the top rows, by batch and answer."""
    effects: dict[tuple[int, str], float] = {}
    for record in records:
        if (record["optimizer"], record.get("ranking"), record.get("share")) == (
            optimizer,
            ranking,
            share,
        ):
            key = (record["batch"], record["problem"])
            sign = 1.0 if record["end"] == "bottom" else -1.0
            effects[key] = effects.get(key, 0.0) + sign * record["moved"]
    return effects


def _mean(values: Mapping[tuple[int, str], float]) -> Interval:
    return mean_interval([problem for _, problem in values], list(values.values()))


def _verdict(interval: Interval) -> Verdict:
    _, low, high = interval
    if low > 0:
        return "replicated"
    return "not replicated" if high < 0 else "inconclusive"


# -- draw -----------------------------------------------------------------------------------------


def draw(records: Records) -> tuple[Figure, ...]:
    return tuple(_draw_dose(records, optimizer) for optimizer in OPTIMIZERS)


def _draw_dose(records: Records, optimizer: str) -> Figure:
    """The effect of removing more and more rows from both ends of a ranking."""
    styles = {"output_layer": "series", "advantage": "soft", "random": "muted"}
    x_axis = alt.X("share:Q", axis=alt.Axis(format="%", title="rows removed"))
    y_axis = alt.Y("effect:Q", axis=alt.Axis(title="bottom minus top"))
    layers = []
    for ranking, style in styles.items():
        points = [
            {
                "share": share,
                "effect": float(
                    np.mean(list(removal_effects(records, optimizer, ranking, share).values()))
                ),
            }
            for share in SHARES
        ]
        chart = base_chart(points)
        layers += [
            chart.mark_line(style=style).encode(x=x_axis, y=y_axis),
            chart.mark_point(style=style).encode(x=x_axis, y=y_axis),
        ]
    return Figure(
        alt.LayerChart(
            layer=layers,
            width="container",
            height=200,
            description=f"Effect of removing rows on held-out answers under {optimizer}",
        ),
        f"Rows removed by influence, one step of {'SGD' if optimizer == 'sgd' else 'AdamW'}",
        "Mean change of log p per token of the judging half, without the bottom rows minus without "
        "the top rows.",
        (("series", "output layer"), ("soft", "advantage"), ("muted", "random")),
    )


STUDY = Study(
    name="removal",
    title="Rows that push held-out answers cause their movement",
    shows="poise trace",
    claim="A step repeated without the rows that raise held-out answers most raises them less. "
    "This is a claim of ours, not of the paper.",
    rule="Replicated when, under SGD and under AdamW, the intervals of the linear datamodeling "
    "score minus the better of advantage and length, and of the effect of removing 25 % of the "
    "rows, lie above 0; not replicated when one lies below 0; otherwise inconclusive.",
    budgets={
        "quick": {"prompts": 12, "batches": 3, "answers": 64, "subsets": 16},
        "full": {"prompts": 64, "batches": 8, "answers": 256, "subsets": 64},
    },
    measure=measure,
    judge=judge,
    draw=draw,
)
