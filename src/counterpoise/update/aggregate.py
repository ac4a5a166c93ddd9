"""Token losses -> one number: L = sum_i c_i sum_t L_{i,t}. An aggregation is its coefficients c_i.

They are computed from all rows of the optimizer step, never from a micro-batch: that is why the
gradient does not depend on how a step is cut to fit in memory.

With `update.mask_truncated` a response that was cut off at the length limit has c_i = 0, and its
tokens leave the denominators (`Row.loss_tokens`); its row and its group are still counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from counterpoise.types import Row


def token_mean(rows: Sequence[Row], max_new_tokens: int) -> NDArray[np.float64]:
    """c_i = 1 / (tokens of the step): every token weighs the same (DAPO, verl's token-mean)."""
    total_tokens = sum(row.loss_tokens for row in rows)
    return np.where(_is_unmasked(rows), 1.0 / max(1, total_tokens), 0.0)


def group_token_mean(rows: Sequence[Row], max_new_tokens: int) -> NDArray[np.float64]:
    """c_i = 1 / (groups * tokens of i's group), a mean within prompts first: eq. 15 as printed.

    arXiv:2605.08666
    """
    group_tokens: Counter[str] = Counter()
    for row in rows:
        group_tokens[row.group] += row.loss_tokens
    return np.array(
        [
            1.0 / (len(group_tokens) * group_tokens[row.group]) if row.loss_tokens else 0.0
            for row in rows
        ]
    )


def sequence_mean(rows: Sequence[Row], max_new_tokens: int) -> NDArray[np.float64]:
    """c_i = 1 / (rows * tokens of i): the original GRPO, which dilutes long responses.

    In a group whose advantages sum to 0, A_i c_i summed over all tokens is 0. But a token that
    every response has once is pushed by sum_i A_i c_i, in general not 0 where lengths differ.
    """
    return np.array(
        [1.0 / (len(rows) * row.loss_tokens) if row.loss_tokens else 0.0 for row in rows]
    )


def constant(rows: Sequence[Row], max_new_tokens: int) -> NDArray[np.float64]:
    """c_i = 1 / (rows * max_new_tokens): Dr. GRPO; no length in the denominator at all."""
    return np.where(_is_unmasked(rows), 1.0 / (len(rows) * max_new_tokens), 0.0)


def _is_unmasked(rows: Sequence[Row]) -> NDArray[np.bool_]:
    return np.array([not row.masked for row in rows])
