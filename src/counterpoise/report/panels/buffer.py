"""Reward balance and dynamic sampling at work: what waits, and what became of every rollout."""

from __future__ import annotations

from itertools import accumulate

import altair as alt

from counterpoise.report.charts.series import Records, base_chart, iteration_chart, x_axis, y_axis
from counterpoise.report.panels.panel import Figure, Panel
from counterpoise.report.run_data import RunData

# field, what became of the rollout, colour; drawn from the bottom up
FATES = (
    ("used", "used in an update", "series"),
    ("waiting", "waiting", "soft"),
    ("surplus", "dropped: surplus of one sign", "fate-surplus"),
    ("aged", "dropped: too old", "fate-aged"),
    ("without", "no signal: group all right or all wrong", "fate-without"),
    ("replaced", "no spread: replaced by another group", "fate-replaced"),
)


def panel(run: RunData) -> Panel | None:
    balance, refills = run.config.balance, run.config.sample.refills
    if not run.metrics or (balance.tau == 0 and refills == 0):
        return None
    if balance.tau == 0:
        return Panel(
            "Rollouts",
            f"Groups whose rewards are all equal give way to others, in up to {refills} more "
            "rounds of sampling an iteration.",
            (_fates(run),),
        )
    return Panel(
        "Buffer",
        f"An update needs about {run.config.target} rollouts, at least {100 * balance.tau:g} % of "
        f"each sign. Until then they wait, at most {balance.max_age} iterations.",
        (_waiting(run), _fates(run)),
    )


def _waiting(run: RunData) -> Figure:
    records = [
        {
            "iteration": record["iteration"],
            "positive": record["buffer_positive"],
            "negative": record["buffer_negative"],
            "below": -record["buffer_negative"],
            "used": record["batch_rows"],
        }
        for record in run.metrics
    ]
    x = x_axis(run.last_iteration)
    counts = alt.Axis(labelExpr="format(abs(datum.value), '~s')")  # below 0 is a count too
    layers = [
        base_chart(records)
        .mark_area(style="positive", interpolate="step", opacity=0.85)
        .encode(x=x, y=alt.Y("positive:Q", axis=counts)),
        base_chart(records)
        .mark_area(style="negative", interpolate="step", opacity=0.85)
        .encode(x=x, y="below:Q"),
        base_chart([r for r in records if r["used"]])
        .mark_point(style="ink", shape="triangle-up", size=34)
        .encode(x=x, y=alt.datum(0)),
    ]
    drawn = iteration_chart(
        layers,
        records,
        [
            ("positive", "waiting, positive", "d"),
            ("negative", "waiting, negative", "d"),
            ("used", "used in this iteration", "d"),
        ],
        run.last_iteration,
        "Rollouts waiting in the buffer after each iteration, positive above, negative below",
        height=190,
    )
    return Figure(
        drawn,
        "Waiting after the iteration",
        "A one-sided buffer is a policy that has become too good, or too bad, at its prompts.",
        (("positive", "positive"), ("negative", "negative"), ("ink", "▲ an update was made")),
    )


def count_fates(run: RunData) -> Records:
    """What became of every rollout sampled so far, iteration by iteration; the parts add up."""
    waits = run.config.balance.tau > 0  # else rows without signal are in the batch, and used
    used = accumulate(record["batch_rows"] for record in run.metrics)
    without = accumulate(record["rows_without_signal"] * waits for record in run.metrics)
    replaced = accumulate(record.get("dropped_no_spread", 0) for record in run.metrics)
    return [
        {
            "iteration": record["iteration"],
            "used": used_so_far,
            "waiting": record["buffer_positive"] + record["buffer_negative"],
            "surplus": record["dropped_surplus"],  # counted since the run began
            "aged": record["dropped_aged"],
            "without": without_so_far,
            "replaced": replaced_so_far,
        }
        for record, used_so_far, without_so_far, replaced_so_far in zip(
            run.metrics, used, without, replaced, strict=True
        )
    ]


def wasted_shares(run: RunData) -> list[tuple[int, float]]:
    """Of the rollouts sampled so far, the share that no update learns from: (no signal + surplus
    + too old + replaced) / sampled. Empty where a run does not tell."""
    if any("rows_without_signal" not in record for record in run.metrics):
        return []
    sampled = accumulate(record["rollouts"] for record in run.metrics)
    silent = accumulate(record["rows_without_signal"] for record in run.metrics)
    return [
        (fate["iteration"], (without + sum(fate[k] for k in ("surplus", "aged", "replaced"))) / n)
        for fate, without, n in zip(count_fates(run), silent, sampled, strict=True)
    ]


def _fates(run: RunData) -> Figure:
    records = count_fates(run)
    off = set() if run.config.sample.refills else {"replaced"}
    if run.config.balance.tau == 0:
        off |= {"waiting", "surplus", "aged", "without"}
    shown = [fate for fate in FATES if fate[0] not in off]
    stacked = []
    for record in records:
        floor = 0
        for field, _, _ in shown:
            top = floor + record[field]
            stacked.append(
                {"iteration": record["iteration"], "fate": field, "floor": floor, "top": top}
            )
            floor = top
    x = x_axis(run.last_iteration)
    layers = [
        base_chart([row for row in stacked if row["fate"] == field])
        .mark_area(color=f"var(--{colour})", opacity=0.85)
        .encode(x=x, y=y_axis("floor"), y2="top:Q")
        for field, _, colour in shown
    ]
    drawn = iteration_chart(
        layers,
        records,
        [(field, meaning, "d") for field, meaning, _ in shown],
        run.last_iteration,
        "What became of the rollouts sampled so far, as stacked areas",
        height=190,
    )
    return Figure(
        drawn,
        "What became of every rollout",
        "Since the run began.",
        tuple((colour, meaning) for _, meaning, colour in shown),
    )
