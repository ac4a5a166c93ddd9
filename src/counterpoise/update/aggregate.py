"""Token losses -> one number: L = sum_i c_i sum_t L_{i,t}. An aggregation is its coefficients c_i.

They are computed from all rows of the optimizer step, never from a micro-batch: that is why the
gradient does not depend on how a step is cut to fit in memory.

With `update.mask_truncated` a response that was cut off at the length limit has c_i = 0 and L_i = 0
(`Row.loss_tokens`). Its tokens leave the denominators; its row and its group are still counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from counterpoise.types import Row


def token_mean(rows: Sequence[Row], max_new_tokens: int) -> NDArray[np.float64]:
    """c_i = 1 / sum_j L_j: every token of the step weighs the same (DAPO, verl's token-mean)."""
    total_tokens = sum(row.loss_tokens for row in rows)
    return np.where(_has_loss(rows), 1.0 / max(1, total_tokens), 0.0)


def group_token_mean(rows: Sequence[Row], max_new_tokens: int) -> NDArray[np.float64]:
    """c_i = 1 / (groups * tokens of i's group): eq. 15 as printed, a mean within prompts first."""
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
    """c_i = 1 / (rows * L_i): the original GRPO, which dilutes long responses.

    sum_i A_i c_i L_i cancels, but sum_i A_i c_i does not.
    """
    return np.array(
        [1.0 / (len(rows) * row.loss_tokens) if row.loss_tokens else 0.0 for row in rows]
    )


def constant(rows: Sequence[Row], max_new_tokens: int) -> NDArray[np.float64]:
    """c_i = 1 / (rows * max_new_tokens): Dr. GRPO; no length in the denominator at all."""
    return np.where(_has_loss(rows), 1.0 / (len(rows) * max_new_tokens), 0.0)


def _has_loss(rows: Sequence[Row]) -> NDArray[np.bool_]:
    return np.array([not row.masked for row in rows])
