"""Panel of reward balance and dynamic sampling: the buffer, and what became of every rollout."""

from __future__ import annotations

from itertools import accumulate

import altair as alt

from counterpoise.batch.buffer import ANTI_UNIT
from counterpoise.config import RunConfig
from counterpoise.report.charts.figure import Figure
from counterpoise.report.charts.series import (
    Records,
    area,
    base_chart,
    iteration_chart,
    stack_fields,
    x_axis,
    y_axis,
)
from counterpoise.report.panels.panel import Panel
from counterpoise.report.run_data import RunData

# (field of `count_fates`, what happened to the rollout, colour), stacked from the bottom up
FATES = (
    ("used", "used in an update", "series"),
    ("waiting", "waiting", "soft"),
    ("surplus", "dropped: too many of one sign", "fate-surplus"),
    ("aged", "dropped: too old", "fate-aged"),
    ("without", "no signal: all rewards of its group are equal", "fate-without"),
    ("replaced", "no signal: replaced by another group", "fate-replaced"),
)
UNSCORED_FATE = "not scored: no reward was given"  # "without" of a run that balances by reward


def balances_by_reward(config: RunConfig) -> bool:
    """Whether rows count as right or wrong: then those without signal wait like any others."""
    return config.balance.tau > 0 and config.balance.sign == "reward"


def panel(run: RunData) -> Panel | None:
    balance, refills = run.config.balance, run.config.sample.refills
    if not run.metrics or (balance.tau == 0 and refills == 0):
        return None
    if balance.tau == 0:
        return Panel(
            "Rollouts",
            "Groups whose rewards are all equal are replaced by newly sampled ones, in up to "
            f"{refills} extra sampling rounds per iteration.",
            (_fates_figure(run),),
        )
    share_phrase = (
        f"with each sign of the {balance.sign} making up at least {100 * balance.tau:g} %"
    )
    if balance.unit == ANTI_UNIT:
        share_phrase = (
            f"with the rarer sign of the {balance.sign} held down to {100 * balance.tau:g} % as "
            "far as groups allow (experimental)"
        )
    return Panel(
        "Buffer",
        f"An update needs about {run.config.balance_target} rollouts, {share_phrase}. Until then "
        f"rollouts wait, at most {balance.max_age} iterations.",
        (_waiting_figure(run), _fates_figure(run)),
    )


def _waiting_figure(run: RunData) -> Figure:
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
    # Negative rollouts are drawn below zero; the axis labels are counts on both sides.
    x_encoding = x_axis(run.axis_range)
    count_axis = alt.Axis(labelExpr="format(abs(datum.value), '~s')")
    layers = [
        area(records, style="positive", interpolate="step").encode(
            x=x_encoding, y=alt.Y("positive:Q", axis=count_axis)
        ),
        area(records, style="negative", interpolate="step").encode(
            x=x_encoding, y=alt.Y("below:Q")
        ),
        base_chart([record for record in records if record["used"]])
        .mark_point(style="ink", shape="triangle-up", size=34)
        .encode(x=x_encoding, y=alt.datum(0)),
    ]
    chart = iteration_chart(
        layers,
        records,
        [
            ("positive", "waiting, positive", "d"),
            ("negative", "waiting, negative", "d"),
            ("used", "used in this iteration", "d"),
        ],
        run.axis_range,
        "Rollouts waiting in the buffer after each iteration, positive above, negative below",
        height=190,
    )
    return Figure(
        chart,
        "Waiting after the iteration",
        "A buffer with only one sign means that the prompts are too easy or too hard for the "
        "policy.",
        (("positive", "positive"), ("negative", "negative"), ("ink", "▲ an update was made")),
    )


def count_fates(run: RunData) -> Records:
    """Count what happened to all rollouts sampled so far, for every iteration.

    The counts of an iteration add up to the number of rollouts sampled up to then.
    """
    # Rows without signal are part of the batch and count as used, unless they are dropped. With
    # balance.sign = "reward" only unscored rollouts are left out of the batch.
    are_dropped, by_reward = run.config.drops_silent_rows, balances_by_reward(run.config)
    used_totals = accumulate(record["batch_rows"] for record in run.metrics)
    without_signal_totals = accumulate(
        record["rows_without_signal"] * are_dropped + record.get("unscored", 0) * by_reward
        for record in run.metrics
    )
    replaced_totals = accumulate(record.get("dropped_no_spread", 0) for record in run.metrics)
    return [
        {
            "iteration": record["iteration"],
            "used": used_so_far,
            "waiting": record["buffer_positive"] + record["buffer_negative"],
            # The buffer counts its drops since the run began, so these are totals already.
            "surplus": record["dropped_surplus"],
            "aged": record["dropped_aged"],
            "without": without_signal_so_far,
            "replaced": replaced_so_far,
        }
        for record, used_so_far, without_signal_so_far, replaced_so_far in zip(
            run.metrics, used_totals, without_signal_totals, replaced_totals, strict=True
        )
    ]


def used_with_signal_totals(run: RunData) -> list[int]:
    """Rollouts with signal that updates had used, after every iteration; empty if not known."""
    if balances_by_reward(run.config):
        # Rows without signal may wait or be dropped, so only the plans tell which ones were used.
        used_by_iteration = {
            plan["iteration"]: sum(advantage != 0 for advantage in plan["advantage"])
            for plan in run.plans
        }
        if any(
            record["batch_rows"] and record["iteration"] not in used_by_iteration
            for record in run.metrics
        ):
            return []
        return list(
            accumulate(used_by_iteration.get(record["iteration"], 0) for record in run.metrics)
        )
    # Unless they are dropped, rows without signal are part of the batches but teach nothing.
    are_used = not run.config.drops_silent_rows
    return list(
        accumulate(
            record["batch_rows"] - record["rows_without_signal"] * are_used
            for record in run.metrics
        )
    )


def wasted_shares(run: RunData) -> list[tuple[int, float]]:
    """(iteration, share of the rollouts sampled so far that no update learns from).

    share = (no signal + surplus + too old + replaced) / sampled. Balanced by reward, rows without
    signal are also surplus or too old, so the share is 1 - (waiting + used with signal) / sampled.
    Imported runs count no buffer: all that is not in an update with signal is wasted. Empty where
    the run does not have these counts.
    """
    if any("rows_without_signal" not in record for record in run.metrics):
        return []
    sampled_totals = accumulate(record["rollouts"] for record in run.metrics)
    if any("buffer_positive" not in record for record in run.metrics):
        # By plans: rows_without_signal counts rows of the batch or of all that was sampled,
        # depending on who wrote it.
        rows_with_signal = {
            plan["iteration"]: sum(advantage != 0 for advantage in plan["advantage"])
            for plan in run.plans
        }
        used_totals = accumulate(
            rows_with_signal.get(record["iteration"], 0) for record in run.metrics
        )
        return [
            (record["iteration"], 1 - used_so_far / sampled_so_far)
            for record, used_so_far, sampled_so_far in zip(
                run.metrics, used_totals, sampled_totals, strict=True
            )
        ]
    if balances_by_reward(run.config):
        return [
            (fate["iteration"], 1 - (fate["waiting"] + used_so_far) / sampled_so_far)
            for fate, used_so_far, sampled_so_far in zip(
                count_fates(run), used_with_signal_totals(run), sampled_totals, strict=False
            )
        ]
    without_signal_totals = accumulate(record["rows_without_signal"] for record in run.metrics)
    return [
        (
            fate["iteration"],
            (
                without_signal_so_far
                + sum(fate[reason] for reason in ("surplus", "aged", "replaced"))
            )
            / sampled_so_far,
        )
        for fate, without_signal_so_far, sampled_so_far in zip(
            count_fates(run), without_signal_totals, sampled_totals, strict=True
        )
    ]


def _fates_figure(run: RunData) -> Figure:
    records = count_fates(run)
    hidden_fates = set() if run.config.sample.refills else {"replaced"}
    if run.config.balance.tau == 0:
        hidden_fates |= {"waiting", "surplus", "aged"}
        if not run.config.batch.drop_silent:
            hidden_fates.add("without")
    meanings = {"without": UNSCORED_FATE} if balances_by_reward(run.config) else {}
    shown_fates = [
        (field, meanings.get(field, meaning), colour)
        for field, meaning, colour in FATES
        if field not in hidden_fates
    ]
    stacked_areas = stack_fields(records, [field for field, _, _ in shown_fates])
    x_encoding = x_axis(run.axis_range)
    layers = [
        area(
            [part for part in stacked_areas if part["field"] == field], color=f"var(--{colour})"
        ).encode(x=x_encoding, y=y_axis("floor"), y2=alt.Y2("top:Q"))
        for field, _, colour in shown_fates
    ]
    chart = iteration_chart(
        layers,
        records,
        [(field, meaning, "d") for field, meaning, _ in shown_fates],
        run.axis_range,
        "What happened to the rollouts sampled so far, as stacked areas",
        height=190,
    )
    return Figure(
        chart,
        "What happened to every rollout",
        "Since the run began.",
        tuple((colour, meaning) for _, meaning, colour in shown_fates),
    )
