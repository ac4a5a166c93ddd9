"""What the records of the value study say: numbers, verdict, figures."""

from __future__ import annotations

import numpy as np

from counterpoise.lab.studies.value_gap import (
    change,
    curve,
    detectable,
    gap,
    matched_gap,
    told,
    verdict_of,
)
from counterpoise.lab.studies.value_gap_charts import along, at
from counterpoise.report.charts.forest import forest_chart, forest_point
from counterpoise.report.panels.panel import Figure
from counterpoise.statistics.bootstrap import Interval, interval, mean_interval, ratio_interval
from counterpoise.statistics.finding import Finding, Number, Record, Records

SIGNS = ("positive", "negative")
SHARES = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)  # top k % by entropy
PEAK = 0.4  # the paper's
ESTIMATORS = {
    "value": "forced",
    "mixed": "eq. 20",
    "plain": "Q - V, undivided",
}


def judge(records: Records) -> Finding:
    cells, everything = _panel(records, "cells"), _panel(records, "all")
    gaps = {sign: gap(_of(cells, sign)) for sign in SIGNS}
    matched, control, excess = _controls(everything)
    peak, top = peak_of(everything, "value"), peak_of(everything, "plain")
    counted = _panel(records, "tokens")
    share = ratio_interval(
        [r["prompt"] for r in counted], [r["open"] for r in counted], [r["tokens"] for r in counted]
    )
    numbers = [
        Number(f"mean value, {way}, {sign} rollouts", *_mean(_of(cells, sign), way))
        for sign in SIGNS
        for way in ("boosted", "suppressed")
    ]
    numbers += [
        Number(f"gap, {sign} rollouts, {name}", *gap(_of(cells, sign), field))
        for field, name in ESTIMATORS.items()
        for sign in SIGNS
    ]
    numbers += [
        Number("gap of both signs, among tokens of like probability", *matched),
        Number("gap of both signs, advantages shuffled within groups", *control),
        Number("gap beyond that of shuffled advantages", *excess),
        Number("gap over all tokens", *gap(everything)),
        Number("share of tokens by entropy where the gap peaks", *peak, paper=PEAK, unit="share"),
        Number("the same for Q - V", *top, paper=PEAK, unit="share"),
        Number("tokens with p <= 0.95", *share, unit="share"),
    ]
    smallest = max(detectable(found) for found in gaps.values())
    return Finding(
        verdict_of(list(gaps.values())),
        f"Boosted tokens are worth {told(gaps['positive'])} more than suppressed ones in positive "
        f"rollouts and {told(gaps['negative'])} in negative ones ({len(cells) // 4} tokens each). "
        f"Over entropy the gap peaks at the top {100 * peak[0]:.0f} % "
        f"[{100 * peak[1]:.0f}, {100 * peak[2]:.0f}]; the paper's at about 40 %.",
        tuple(numbers),
        (
            f"A gap of {smallest:.3f} in rollouts of one sign would usually have been seen.",
            f"A step with advantages shuffled within groups leaves a gap of {told(control)}; "
            f"tokens of like probability have one of {told(matched)}.",
            f"{100 - 100 * share[0]:.0f} % of tokens have p > 0.95 and are left out of the "
            "comparison by sign; they are in the curve over entropy.",
            "The paper's main text defines value without the division by 1 - p, its appendix with "
            "it; both are given.",
        ),
    )


def _controls(everything: Records) -> tuple[Interval, Interval, Interval]:
    """(matched, shuffled, true minus shuffled) on the open tokens of first rollouts."""
    tokens = [r for r in everything if r["p"] <= 0.95]
    control = [{**r, "delta": r["shuffled"]} for r in tokens]
    return matched_gap(tokens), gap(control), change(tokens, control)


def peak_of(everything: Records, field: str) -> Interval:
    """The share k at which the gap is largest."""
    gaps_of = curve(everything, field, "top", SHARES)

    def statistic(w_N: np.ndarray) -> float:
        gaps = np.array(gaps_of(w_N))
        return SHARES[int(np.nanargmax(gaps))] if np.isfinite(gaps).any() else float("nan")

    return interval([r["prompt"] for r in everything], statistic)


def _panel(records: Records, name: str) -> list[Record]:
    return [r for r in records if r["panel"] == name]


def _of(records: Records, sign: str) -> list[Record]:
    return [r for r in records if r["sign"] == sign]


def _mean(records: Records, way: str) -> Interval:
    kept = [r for r in records if (r["delta"] > 0) == (way == "boosted")]
    return mean_interval([r["prompt"] for r in kept], [r["value"] for r in kept])


# -- figures ---------------------------------------------------------------------------------------


def draw(records: Records) -> tuple[Figure, ...]:
    cells, everything = _panel(records, "cells"), _panel(records, "all")
    return _values(cells), _over_entropy(everything), _checks(cells, everything)


def _values(cells: Records) -> Figure:
    means = [
        at(f"{sign} rollouts", way, _mean(_of(cells, sign), way))
        for sign in SIGNS
        for way in ("boosted", "suppressed")
    ]
    drawn = along(
        means,
        {"boosted": "series", "suppressed": "soft"},
        "",
        "Mean value of boosted and suppressed tokens by the sign of their rollout",
        joined=False,
    )
    return Figure(
        drawn,
        "Value of boosted and suppressed tokens",
        "Mean reward gained by the token over the policy's alternatives to it, 95 % intervals "
        "over prompts.",
        (("series", "boosted"), ("soft", "suppressed")),
    )


def _over_entropy(everything: Records) -> Figure:
    gaps = [
        at(f"{100 * k:.0f}", name, gap([r for r in everything if r["top"] <= k], field))
        for k in SHARES
        for field, name in (("value", "value"), ("plain", "Q - V"))
    ]
    drawn = along(
        gaps,
        {"value": "series", "Q - V": "soft"},
        "top k % of tokens by entropy",
        "Value gap among the tokens with the highest entropy",
    )
    return Figure(
        drawn,
        "Gap over entropy",
        "Boosted minus suppressed among the tokens with the highest entropy, mean of both "
        "signs. The paper's peak is at about 40 %.",
        (("series", "value"), ("soft", "Q - V = (1 - p) value")),
    )


def _checks(cells: Records, everything: Records) -> Figure:
    matched, control, _ = _controls(everything)
    checks = [
        forest_point(f"{sign}, {name}", "gap", gap(_of(cells, sign), field))
        for field, name in ESTIMATORS.items()
        for sign in SIGNS
    ]
    checks += [
        forest_point("like probability", "gap", matched),
        forest_point("advantages shuffled", "gap", control),
    ]
    drawn = forest_chart(
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
        drawn,
        "The gap by other estimators, and two controls",
        "Like probability: within bins of p(o). Advantages shuffled: a step on the same "
        "rollouts with advantages permuted within each group.",
        wide=True,
    )
