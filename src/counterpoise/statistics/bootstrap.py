"""95 % intervals by bootstrap over prompts: tokens and rollouts of one prompt are not independent.

A draw gives every prompt a weight w_p, the number of times it was drawn. A record has the weight of
its prompt, so nothing is copied:

    ratio    sum_n w_n x_n / sum_n w_n y_n        mean: y = 1

Sums are first taken within each prompt; then all draws are one matrix product.

The bounds are quantiles of the draws. With P prompts the variance of the draws is too small by a
factor of (P - 1) / P, and they ignore that the variance itself is estimated: a 95 % interval covers
85 % of the time for 6 prompts and 92 % for 16. So the quantiles are moved outward (Hesterberg,
arXiv:1411.5279, "expanded"):

    tail = Phi(-sqrt(P / (P - 1)) t_{(1 + level) / 2, P - 1})        on either side

which covers 93 and 95 %. At a higher level, for many comparisons together, the tail is small: the
number of draws follows from it, so that `TAIL_DRAWS` of them lie beyond each bound.

With fewer than five prompts the bounds are nan, and no verdict follows. The same holds for a
statistic that depends on only k < 5 of many prompts, such as a mean over tokens that few prompts
have. A draw that misses all k leaves it undefined; about e^-k of the draws do, which for k < 5 is
more than the one in a hundred that is tolerated (`MAX_UNDEFINED`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from counterpoise.errors import PoiseError
from counterpoise.statistics.student import t_quantile

Weights = NDArray[np.float64]  # [N]
Interval = tuple[float, float, float]  # value, low, high
DRAWS = 1000
TAIL_DRAWS = 20  # draws beyond a bound: its error is then 0.06 standard errors of the statistic
CHUNK = 2048  # draws that `weight_chunks` expands to weights of all records at once
MIN_PROMPTS = 5
MAX_UNDEFINED = 0.01  # share of draws in which the statistic may be undefined


def bootstrap_interval(
    prompts_N: Sequence[object], statistic: Callable[[Weights], float]
) -> Interval:
    """The interval of any statistic of weighted records; draws that are not finite are dropped."""
    prompt_number_N, P = _number_prompts(prompts_N)
    value = statistic(np.ones(len(prompt_number_N)))
    return _interval_from_values(
        value, [statistic(weights_P[prompt_number_N]) for weights_P in _prompt_weights(P, DRAWS)], P
    )


def mean_interval(prompts_N: Sequence[object], values_N: ArrayLike) -> Interval:
    """The interval of a plain mean over records."""
    return ratio_interval(prompts_N, values_N, np.ones(len(prompts_N)))


def ratio_interval(
    prompts_N: Sequence[object], numerators_N: ArrayLike, denominators_N: ArrayLike
) -> Interval:
    """The interval of sum(numerators) / sum(denominators), such as a share of pooled tokens."""
    prompt_number_N, P = _number_prompts(prompts_N)
    numerator_P = np.bincount(prompt_number_N, np.asarray(numerators_N, np.float64), P)
    denominator_P = np.bincount(prompt_number_N, np.asarray(denominators_N, np.float64), P)
    weights_DP = _prompt_weights(P, DRAWS)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = numerator_P.sum() / denominator_P.sum()
        return _interval_from_values(
            ratio, (weights_DP @ numerator_P) / (weights_DP @ denominator_P), P
        )


def difference_interval(
    prompts_N: Sequence[object], values_N: ArrayLike, chosen_N: ArrayLike
) -> Interval:
    """The interval of mean(chosen) - mean(the others): a gap between two kinds of records."""
    value_N = np.asarray(values_N, dtype=np.float64)
    is_chosen_N = np.asarray(chosen_N, dtype=bool)
    prompt_number_N, P = _number_prompts(prompts_N)
    # The first row has weight 1 for every prompt: it is the estimate itself.
    weights_DP = np.vstack((np.ones(P), _prompt_weights(P, DRAWS)))
    gap_D = np.zeros(len(weights_DP))
    with np.errstate(divide="ignore", invalid="ignore"):
        for is_member_N, sign in ((is_chosen_N, 1.0), (~is_chosen_N, -1.0)):
            total_P = np.bincount(prompt_number_N[is_member_N], value_N[is_member_N], P)
            count_P = np.bincount(prompt_number_N[is_member_N], minlength=P)
            gap_D += sign * (weights_DP @ total_P) / (weights_DP @ count_P)
    return _interval_from_values(gap_D[0], gap_D[1:], P)


def resampled_weights(prompts_N: Sequence[object], draws: int = DRAWS) -> NDArray[np.float64]:
    """Weights [1 + draws, N] of the records: all 1 first, then one row a draw."""
    prompt_number_N, P = _number_prompts(prompts_N)
    return np.vstack((np.ones(P), _prompt_weights(P, draws)))[:, prompt_number_N]


def sums_over_draws(
    prompts_N: Sequence[object], columns: Iterable[NDArray[np.float64]], draws: int = DRAWS
) -> NDArray[np.float64]:
    """Weighted sums [1 + draws, K] of K columns of the records, a row for each row of
    `resampled_weights`: sums within prompts and one matrix product, whatever the number of records.
    """
    prompt_number_N, P = _number_prompts(prompts_N)
    sum_PK = np.stack([np.bincount(prompt_number_N, column_N, P) for column_N in columns], axis=1)
    return np.vstack((np.ones(P), _prompt_weights(P, draws))) @ sum_PK


def weight_chunks(prompts_N: Sequence[object], draws: int) -> Iterator[NDArray[np.float64]]:
    """The rows of `resampled_weights`, a chunk at a time: [up to CHUNK, N]."""
    prompt_number_N, P = _number_prompts(prompts_N)
    weights_DP = np.vstack((np.ones(P), _prompt_weights(P, draws)))
    for chunk_start in range(0, len(weights_DP), CHUNK):
        yield weights_DP[chunk_start : chunk_start + CHUNK].take(prompt_number_N, axis=1)


def draws_for_level(prompts: int, level: float, at_least: int = DRAWS) -> int:
    """How many draws an interval at `level` needs.

    Example:
        >>> draws_for_level(60, 0.95), draws_for_level(60, 0.998)
        (1000, 36094)
    """
    if prompts < MIN_PROMPTS:  # there will be no interval
        return at_least
    return max(at_least, math.ceil(TAIL_DRAWS / _tail_probability(prompts, level)))


def interval_from_draws(statistics_D: ArrayLike, prompts: int, level: float = 0.95) -> Interval:
    """The interval at `level` from a statistic computed for each row of `resampled_weights`."""
    statistic_D = np.asarray(statistics_D, dtype=np.float64)
    return _interval_from_values(statistic_D[0], statistic_D[1:], prompts, level)


def format_interval(interval: Interval, number_format: str, unit: str = "") -> str:
    """A value with its interval in a sentence; `unit` "%" or "points" multiplies by 100.

    Bounds are nan with too few prompts, or where the statistic of many draws is undefined.

    Example:
        >>> format_interval((0.5, 0.4, 0.6), ".0f", "%"), format_interval((0.5, nan, nan), "+.2f")
        ('50 % [40, 60]', '+0.50 [no interval]')
    """
    scale = 100 if unit in ("%", "points") else 1
    value, low, high = (scale * bound for bound in interval)
    if not math.isfinite(value):
        return "unknown"
    bounds = f"{low:{number_format}}, {high:{number_format}}"
    if not (math.isfinite(low) and math.isfinite(high)):
        bounds = "no interval"
    return f"{value:{number_format}}{f' {unit}' if unit else ''} [{bounds}]"


def weighted_mean(values_N: NDArray[np.float64], weights_N: Weights) -> float:
    """The weighted mean; nan when all weights are 0."""
    total_weight = weights_N.sum()
    return float((values_N * weights_N).sum() / total_weight) if total_weight else float("nan")


def _number_prompts(prompts_N: Sequence[object]) -> tuple[NDArray[np.int64], int]:
    if not len(prompts_N):
        raise PoiseError("there is nothing to average: no prompt of the batch had signal")
    number_of_prompt: dict[object, int] = {}
    prompt_number_N = np.array(
        [number_of_prompt.setdefault(prompt, len(number_of_prompt)) for prompt in prompts_N]
    )
    return prompt_number_N, len(number_of_prompt)


@lru_cache(maxsize=8)
def _prompt_weights(P: int, draws: int) -> NDArray[np.float64]:
    """Weights [draws, P]; equal for all statistics of P prompts, so intervals can be compared."""
    # Always the same seed: a table judged twice gives the same intervals.
    rng = np.random.default_rng(0)
    return rng.multinomial(P, np.full(P, 1 / P), size=draws).astype(np.float64)


def _interval_from_values(
    value: float, statistics_D: ArrayLike, prompts: int, level: float = 0.95
) -> Interval:
    statistic_D = np.asarray(statistics_D, dtype=np.float64)
    # A draw may miss all prompts that define the statistic; a few such draws are harmless.
    finite_D = statistic_D[np.isfinite(statistic_D)]
    undefined_count = len(statistic_D) - len(finite_D)
    if prompts < MIN_PROMPTS or undefined_count > MAX_UNDEFINED * len(statistic_D):
        return float(value), math.nan, math.nan
    tail = _tail_probability(prompts, level)
    low, high = np.quantile(finite_D, (tail, 1 - tail))
    return float(value), float(low), float(high)


@lru_cache(maxsize=64)
def _tail_probability(P: int, level: float) -> float:
    """The share of draws beyond each bound.

    Example:
        >>> [round(_tail_probability(P, 0.95), 4) for P in (6, 16, 128)]
        [0.0024, 0.0139, 0.0235]
    """
    return NormalDist().cdf(-math.sqrt(P / (P - 1)) * t_quantile((1 + level) / 2, P - 1))
