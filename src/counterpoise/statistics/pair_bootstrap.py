"""95 % intervals of statistics of pairs of tokens, by bootstrap over the prompts of both.

A pair (j, k) belongs to two prompts, p of j and q of k, and every prompt is in the pairs of all
others. So whole prompts are resampled, each with all pairs it takes part in on either side. If a
draw contains prompt p w_p times, a sum over pairs becomes

    sum over p != q of w_p w_q x_pq  +  sum over p of w_p x_pp        x_pq = sum over its pairs

Pairs within a prompt have the weight w_p, not w_p^2: two copies of one prompt are not two prompts,
and pairs between the copies are left out. Otherwise pairs within a prompt, which couple more than
others, would be more frequent in every draw than in the data. Resampling the prompts of j alone
would treat the prompts of k as fixed: where the values depend on both prompts, such 95 % intervals
cover the truth only 85 % of the time (tests/statistics/test_pair_bootstrap.py). The bounds are
those of bootstrap.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from counterpoise.statistics.bootstrap import Interval, interval_from_draws, resampled_weights


class PairBootstrap:
    """Resampled sums over pairs; all sums of one object use the same draws of prompts.

    Example:
        pairs = PairBootstrap(prompts_of_j, prompts_of_k)
        share = pairs.interval(pairs.ratios(strength * is_equal, strength))
    """

    def __init__(self, prompts_j_N: Sequence[object], prompts_k_N: Sequence[object]) -> None:
        prompts_P = list(dict.fromkeys([*prompts_j_N, *prompts_k_N]))
        number_of_prompt = {prompt: number for number, prompt in enumerate(prompts_P)}
        self.prompt_count = len(prompts_P)
        self._cell_N = np.array(
            [
                number_of_prompt[prompt_j] * self.prompt_count + number_of_prompt[prompt_k]
                for prompt_j, prompt_k in zip(prompts_j_N, prompts_k_N, strict=True)
            ],
            dtype=np.int64,
        )
        # Row 0 has weight 1 for every prompt: it is the data itself.
        self._weights_DP = resampled_weights(prompts_P)

    def sums(self, values_N: ArrayLike) -> NDArray[np.float64]:
        """The sum over all pairs, then that of every draw: [1 + draws]."""
        P = self.prompt_count
        sum_PP = np.bincount(self._cell_N, np.asarray(values_N, np.float64), P * P).reshape(P, P)
        within_P = np.diagonal(sum_PP).copy()
        np.fill_diagonal(sum_PP, 0.0)
        between_D = ((self._weights_DP @ sum_PP) * self._weights_DP).sum(axis=1)
        return between_D + self._weights_DP @ within_P

    def ratios(self, numerators_N: ArrayLike, denominators_N: ArrayLike) -> NDArray[np.float64]:
        """sum(numerators) / sum(denominators): [1 + draws]; not finite where nothing was drawn."""
        return divide(self.sums(numerators_N), self.sums(denominators_N))

    def means(self, values_N: ArrayLike, is_member_N: ArrayLike) -> NDArray[np.float64]:
        """Means over the pairs that are members: [1 + draws]."""
        member_N = np.asarray(is_member_N, np.float64)
        return self.ratios(np.asarray(values_N, np.float64) * member_N, member_N)

    def interval(self, statistics_D: ArrayLike) -> Interval:
        """The interval of a statistic that was computed from these."""
        return interval_from_draws(statistics_D, self.prompt_count)


def divide(numerators_D: ArrayLike, denominators_D: ArrayLike) -> NDArray[np.float64]:
    """Draw by draw, without a warning where the denominator is 0: such draws are dropped later."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(numerators_D, np.float64) / np.asarray(denominators_D, np.float64)
