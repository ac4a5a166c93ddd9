"""Quantise numbers to steps of one percent: enough for colours and tables, in a few bits each.

    level = max(0, round(ln(|x| / largest) / ln 1.01) + 1600)
    code  = sign(x) level;    x = 0 has the code 0, NaN and infinities the code None
    x     = sign(code) largest 1.01^(|code| - 1600)

The error is at most half a percent of the number itself, so small pushes keep their digits beside
large ones; numbers 8 million times smaller than the largest become 0. tokens_data.js decodes them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

STEP = 1.01  # ratio between neighbouring levels
LEVELS = 1600  # the level of the largest value; tokens_data.js gets both numbers


def quantise(values: NDArray[np.floating]) -> dict[str, Any]:
    """Encode values as {"largest": a float, "codes": a list of small integers} for JSON."""
    values_N = np.asarray(values, dtype=np.float64)
    finite_N = np.isfinite(values_N)
    largest = float(np.abs(values_N[finite_N]).max(initial=0.0))
    codes_N = np.zeros(len(values_N), dtype=np.int64)
    # Zeros keep the code 0; other values are coded by their logarithm relative to the largest.
    nonzero_N = finite_N & (values_N != 0)
    if largest:
        levels = np.round(np.log(np.abs(values_N[nonzero_N]) / largest) / np.log(STEP)) + LEVELS
        codes_N[nonzero_N] = np.sign(values_N[nonzero_N]) * np.maximum(levels, 0)
    return {
        "largest": float(f"{largest:.6g}"),
        "codes": [
            code if is_finite else None
            for code, is_finite in zip(codes_N.tolist(), finite_N.tolist(), strict=True)
        ],
    }
