"""Numbers, verdict and figures of the value study."""

from __future__ import annotations

import numpy as np

from counterpoise.lab.studies.value_gap import (
    detectable_note,
    format_gap,
    gap_change,
    gap_curves,
    matched_gap,
    value_gap,
    verdict_from_intervals,
)
from counterpoise.lab.studies.value_gap_charts import gap_chart, gap_point
from counterpoise.report.charts.figure import Figure
from counterpoise.report.charts.forest import forest_chart, forest_point
from counterpoise.statistics.bootstrap import (
    Interval,
    format_interval,
    interval_from_draws,
    mean_interval,
    ratio_interval,
)
from counterpoise.statistics.finding import Finding, Number, Record, Records

SIGNS = ("positive", "negative")
# Shares of tokens with the highest entropy.
ENTROPY_SHARES = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
PAPER_PEAK = 0.4
ESTIMATORS = {
    "value": "forced",
    "mixed": "eq. 20",
    "plain": "Q - V, undivided",
}


def judge(records: Records) -> Finding:
    # Panel (a) is judged; panel (b), the curve over entropy, is only reported.
    cells, everything = _of_panel(records, "cells"), _of_panel(records, "all")
    gaps = {sign: value_gap(_of_sign(cells, sign)) for sign in SIGNS}
    matched, control, excess = _controls(everything)
    peak_interval = peak_share(everything, "value")
    plain_peak_interval = peak_share(everything, "plain")
    token_counts = _of_panel(records, "tokens")
    open_share = ratio_interval(
        [record["prompt"] for record in token_counts],
        [record["open"] for record in token_counts],
        [record["tokens"] for record in token_counts],
    )
    numbers = [
        Number(
            f"mean value, {movement}, {sign} rollouts",
            *_mean_value(_of_sign(cells, sign), movement),
        )
        for sign in SIGNS
        for movement in ("boosted", "suppressed")
    ]
    numbers += [
        Number(f"gap, {sign} rollouts, {estimator}", *value_gap(_of_sign(cells, sign), field))
        for field, estimator in ESTIMATORS.items()
        for sign in SIGNS
    ]
    numbers += [
        Number("gap of both signs, among tokens of like probability", *matched),
        Number("gap of both signs, advantages shuffled within groups", *control),
        Number("gap beyond that of shuffled advantages", *excess),
        Number("gap over all tokens", *value_gap(everything)),
        Number(
            "share of tokens by entropy where the gap peaks",
            *peak_interval,
            paper=PAPER_PEAK,
            unit="share",
        ),
        Number("the same for Q - V", *plain_peak_interval, paper=PAPER_PEAK, unit="share"),
        Number("tokens with p <= 0.95", *open_share, unit="share"),
    ]
    # An unknown interval counts as the widest one.
    widest_gap = max(gaps.values(), key=lambda gap: np.nan_to_num(gap[2] - gap[1], nan=np.inf))
    return Finding(
        verdict_from_intervals(list(gaps.values())),
        f"Boosted tokens are worth {format_gap(gaps['positive'])} more than suppressed ones "
        f"in positive rollouts and {format_gap(gaps['negative'])} in negative ones "
        f"({len(cells) // 4} tokens each). "
        f"Over entropy the gap peaks at the top {format_interval(peak_interval, '.0f', '%')}; the "
        "paper's at about 40 %.",
        tuple(numbers),
        (
            *detectable_note(
                "A gap of {:.3f} in rollouts of one sign would usually have been seen.", widest_gap
            ),
            "A step with advantages shuffled within groups leaves a gap of "
            f"{format_gap(control)}; tokens of like probability have one of "
            f"{format_gap(matched)}.",
            f"{100 - 100 * open_share[0]:.0f} % of tokens have p > 0.95 and are left out of the "
            "comparison by sign; they are in the curve over entropy.",
            "The paper's main text defines value without the division by 1 - p, its appendix with "
            "it; both are given.",
        ),
    )


def _controls(everything: Records) -> tuple[Interval, Interval, Interval]:
    """(matched, shuffled, true minus shuffled) on the open tokens of first rollouts."""
    tokens = [record for record in everything if record["p"] <= 0.95]
    control = [{**record, "delta": record["shuffled"]} for record in tokens]
    return matched_gap(tokens), value_gap(control), gap_change(tokens, control)


def peak_share(everything: Records, field: str) -> Interval:
    """The share k of tokens, by entropy, at which the gap is largest."""
    gap_DK = gap_curves(everything, field, "top", ENTROPY_SHARES)
    is_defined_D = np.isfinite(gap_DK).any(axis=1)
    peak_D = np.argmax(np.where(np.isnan(gap_DK), -np.inf, gap_DK), axis=1)
    share_D = np.where(is_defined_D, np.array(ENTROPY_SHARES)[peak_D], np.nan)
    return interval_from_draws(share_D, len({record["prompt"] for record in everything}))


def _of_panel(records: Records, panel: str) -> list[Record]:
    return [record for record in records if record["panel"] == panel]


def _of_sign(records: Records, sign: str) -> list[Record]:
    return [record for record in records if record["sign"] == sign]


def _mean_value(records: Records, movement: str) -> Interval:
    class_records = [
        record for record in records if (record["delta"] > 0) == (movement == "boosted")
    ]
    return mean_interval(
        [record["prompt"] for record in class_records],
        [record["value"] for record in class_records],
    )


# -- figures ---------------------------------------------------------------------------------------


def draw(records: Records) -> tuple[Figure, ...]:
    cells, everything = _of_panel(records, "cells"), _of_panel(records, "all")
    return _values(cells), _over_entropy(everything), _checks(cells, everything)


def _values(cells: Records) -> Figure:
    means = [
        gap_point(f"{sign} rollouts", movement, _mean_value(_of_sign(cells, sign), movement))
        for sign in SIGNS
        for movement in ("boosted", "suppressed")
    ]
    gap_plot = gap_chart(
        means,
        {"boosted": "series", "suppressed": "soft"},
        "",
        "Mean value of boosted and suppressed tokens by the sign of their rollout",
        joined=False,
    )
    return Figure(
        gap_plot,
        "Value of boosted and suppressed tokens",
        "Mean reward gained by the token over the policy's alternatives to it, 95 % intervals "
        "over prompts.",
        (("series", "boosted"), ("soft", "suppressed")),
    )


def _over_entropy(everything: Records) -> Figure:
    gaps = [
        gap_point(
            f"{100 * share:.0f}",
            series,
            value_gap([record for record in everything if record["top"] <= share], field),
        )
        for share in ENTROPY_SHARES
        for field, series in (("value", "value"), ("plain", "Q - V"))
    ]
    gap_plot = gap_chart(
        gaps,
        {"value": "series", "Q - V": "soft"},
        "top k % of tokens by entropy",
        "Value gap among the tokens with the highest entropy",
    )
    return Figure(
        gap_plot,
        "Gap over entropy",
        "Boosted minus suppressed among the tokens with the highest entropy, mean of both "
        "signs. The paper's peak is at about 40 %.",
        (("series", "value"), ("soft", "Q - V = (1 - p) value")),
    )


def _checks(cells: Records, everything: Records) -> Figure:
    matched, control, _ = _controls(everything)
    checks = [
        forest_point(f"{sign}, {estimator}", "gap", value_gap(_of_sign(cells, sign), field))
        for field, estimator in ESTIMATORS.items()
        for sign in SIGNS
    ]
    checks += [
        forest_point("like probability", "gap", matched),
        forest_point("advantages shuffled", "gap", control),
    ]
    layered_chart = forest_chart(
        checks,
        {"gap": "series"},
        "value gap",
        "The value gap by other estimators and under two controls",
        axis=".2~f",
        number="+.3f",
        guide=0,
        labels=180,
    )
    return Figure(
        layered_chart,
        "The gap by other estimators, and two controls",
        "Like probability: within bins of p(o). Advantages shuffled: a step on the same "
        "rollouts with advantages permuted within each group.",
        wide=True,
    )
