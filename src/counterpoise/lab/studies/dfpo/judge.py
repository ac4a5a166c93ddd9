"""The verdict on DFPO's argument: repaired objectives minus broken ones, paired by seed.

    contrast   (t1 + t2) / 2 - (grpo + gspo) / 2 of the same seed, for each measure and condition

A condition is rollouts (fresh or stale) by rate (stable or collapsing). Intervals are Student's t
over seeds, at a level that holds for the four conditions of a measure together. `unclipped` and
`reinforce` have neither of the two faults that the paper names, nor its repair: they are reported
and not judged.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence

from counterpoise.statistics.finding import (
    ClaimVerdict,
    Finding,
    Number,
    Record,
    Records,
    Verdict,
    join_verdicts,
)
from counterpoise.statistics.student import SeedMean, bonferroni_level, student_mean

REPAIRED, BROKEN = ("t1", "t2"), ("grpo", "gspo")
CONDITIONS = tuple((cell, rate) for cell in ("fresh", "stale") for rate in ("stable", "collapsing"))
DECIDING_CELL = "stale"  # ratios leave 1 and clips set in where rollouts are old
SCORE_GAIN = 0.05  # the score to reach: held-out success above the start
LEVEL = 0.95
# measure -> (what is claimed, the sign of an improvement)
CLAIMS: Mapping[str, tuple[str, int]] = {
    "residual": ("pulls on shared tokens cancel better", -1),
    "tax": ("less is spent on tokens that right and wrong rollouts share", -1),
    "drift": ("right answers drift apart less", -1),
    "entropy": ("more entropy is left", 1),
    "success": ("held-out success is higher", 1),
    "steps": ("the score is reached earlier", -1),
}
RULE = (
    "T1 and T2 minus GRPO and GSPO (means of the two, paired by seed), for residual, relative tax, "
    "relative drift, entropy, held-out success and iterations until success is 5 points above the "
    "start. Each claim: replicated when, with stale rollouts, the interval lies on the claimed "
    "side at both rates; not replicated when it lies on the other side at either; else "
    "inconclusive. The whole: by the rule for several claims."
)

Chain = tuple[str, str, str, int]  # arm, cell ("fresh" or "stale" rollouts), rate, seed


def chain_values(records: Records) -> dict[str, dict[Chain, float]]:
    """Each measure of each chain; chains without a value are left out."""
    chains: dict[Chain, list[Record]] = {}
    for record in records:
        key = (record["arm"], record["cell"], record["rate"], record["seed"])
        chains.setdefault(key, []).append(record)
    measures: Mapping[str, Callable[[list[Record]], float]] = {
        "residual": _mean_over_iterations("residual"),
        "tax": _mean_over_iterations("tax"),
        "drift": _mean_over_iterations("drift"),
        "entropy": lambda chain: _scores(chain)[-1]["entropy"],
        "success": lambda chain: _scores(chain)[-1]["success"],
        "steps": steps_to_score,
    }
    values = {
        name: {key: read(chain) for key, chain in chains.items()} for name, read in measures.items()
    }
    return {
        name: {key: value for key, value in by_chain.items() if math.isfinite(value)}
        for name, by_chain in values.items()
    }


def steps_to_score(chain: Sequence[Record]) -> float:
    """The first scored iteration at which success is SCORE_GAIN above the start.

    A chain that never gets there counts as 1.5 times its length.
    """
    scores = _scores(chain)
    for score in scores[1:]:
        if score["success"] >= scores[0]["success"] + SCORE_GAIN:
            return float(score["iteration"])
    return 1.5 * scores[-1]["iteration"]


def _scores(chain: Sequence[Record]) -> list[Record]:
    scores = [record for record in chain if record["panel"] == "score"]
    return sorted(scores, key=lambda record: record["iteration"])


def _mean_over_iterations(name: str) -> Callable[[Sequence[Record]], float]:
    def mean(chain: Sequence[Record]) -> float:
        values = [
            record[name]
            for record in chain
            if record["panel"] == "iteration"
            and record[name] is not None
            and math.isfinite(record[name])
        ]
        return statistics.fmean(values) if values else math.nan

    return mean


def contrast(by_chain: Mapping[Chain, float], cell: str, rate: str) -> SeedMean | None:
    """Repaired minus broken over the seeds that have all four arms; None if there are none."""
    differences = []
    for seed in sorted({key[3] for key in by_chain}):
        keys = {arm: (arm, cell, rate, seed) for arm in (*REPAIRED, *BROKEN)}
        if all(key in by_chain for key in keys.values()):
            repaired, broken = (
                statistics.fmean(by_chain[keys[arm]] for arm in arms) for arms in (REPAIRED, BROKEN)
            )
            differences.append(repaired - broken)
    if not differences:
        return None
    return student_mean(differences, bonferroni_level(LEVEL, len(CONDITIONS)))


def claim_verdict(contrasts: Sequence[SeedMean | None], better: int) -> Verdict:
    """The verdict from the deciding conditions; `better` is the sign of an improvement."""
    known = [interval for interval in contrasts if interval and math.isfinite(interval.low)]
    if any(better * interval.value < 0 and _excludes_zero(interval) for interval in known):
        return "not replicated"
    decided = len(known) == len(contrasts) and all(
        better * interval.value > 0 and _excludes_zero(interval) for interval in known
    )
    return "replicated" if decided else "inconclusive"


def _excludes_zero(interval: SeedMean) -> bool:
    return interval.low > 0 or interval.high < 0


def judge(records: Records) -> Finding:
    values = chain_values(records)
    claims, numbers = [], []
    for name, (claim, better) in CLAIMS.items():
        contrasts = {condition: contrast(values[name], *condition) for condition in CONDITIONS}
        deciding = [
            contrasts[condition] for condition in CONDITIONS if condition[0] == DECIDING_CELL
        ]
        claims.append(ClaimVerdict(claim, claim_verdict(deciding, better)))
        numbers += [
            Number(
                f"{name}, repaired minus broken, {cell}, {rate}", mean.value, mean.low, mean.high
            )
            for (cell, rate), mean in contrasts.items()
            if mean
        ]
    numbers += arm_numbers(values)
    success = {
        rate: contrast(values["success"], DECIDING_CELL, rate) for rate in ("stable", "collapsing")
    }
    seeds = len({record["seed"] for record in records})
    because = "; ".join(
        f"{rate} rate: {100 * mean.value:+.1f} points "
        + (f"[{100 * mean.low:+.1f}, {100 * mean.high:+.1f}]" if mean.n > 1 else "(one seed)")
        for rate, mean in success.items()
        if mean
    )
    return Finding(
        join_verdicts(claims),
        "Held-out success of T1 and T2 minus that of GRPO and GSPO on stale rollouts, "
        f"{because or 'not known: no seed has all four'}.",
        tuple(numbers),
        (
            f"{seeds} seeds of short chains: a few iterations, not the long training that the "
            "paper speaks of.",
        ),
        tuple(claims),
    )


def arm_numbers(values: Mapping[str, Mapping[Chain, float]]) -> list[Number]:
    """Every measure of every arm, with its interval over seeds."""
    numbers = []
    for name, by_chain in values.items():
        for arm in dict.fromkeys(key[0] for key in by_chain):
            for condition in CONDITIONS:
                seed_values = [
                    value for key, value in by_chain.items() if key[:3] == (arm, *condition)
                ]
                if seed_values:
                    mean = student_mean(seed_values)
                    label = f"{name}, {arm}, {', '.join(condition)}"
                    numbers.append(Number(label, mean.value, mean.low, mean.high))
    return numbers
