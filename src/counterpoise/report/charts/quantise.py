"""Quantise numbers to steps of one percent: enough for colours and tables, in a few bits each.

    k = round(ln(|x| / largest) / ln 1.01) + 1600,    stored as sign(x) k;    0 is 0, None is NaN
    x = sign(k) largest 1.01^(|k| - 1600)

The error is at most half a percent of the number itself, so small pushes keep their digits beside
large ones; numbers 8 million times smaller than the largest become 0. tokens_data.js decodes them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

STEP, LEVELS = 1.01, 1600


def quantise(values: NDArray[np.floating]) -> dict[str, Any]:
    """Encode values as {"largest": a float, "codes": a list of small integers} for JSON."""
    x = np.asarray(values, dtype=np.float64)
    finite = np.isfinite(x)
    largest = float(np.abs(x[finite]).max(initial=0.0))
    codes = np.zeros(len(x), dtype=np.int64)
    # Zeros keep the code 0; other values are coded by their logarithm relative to the largest.
    nonzero = finite & (x != 0)
    if largest:
        levels = np.round(np.log(np.abs(x[nonzero]) / largest) / np.log(STEP)) + LEVELS
        codes[nonzero] = np.sign(x[nonzero]) * np.maximum(levels, 0)
    return {
        "largest": float(f"{largest:.6g}"),
        "codes": [
            code if is_finite else None
            for code, is_finite in zip(codes.tolist(), finite.tolist(), strict=True)
        ],
    }
