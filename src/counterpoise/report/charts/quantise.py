"""Numbers in steps of one percent: all a colour and a table need, in a few bits each.

    k = round(ln(|x| / largest) / ln 1.01) + 1600,    stored as sign(x) k;    0 is 0, None is NaN
    x = sign(k) largest 1.01^(|k| - 1600)

The error is at most half a percent of the number itself, so small pushes keep their digits beside
large ones; what is 8 million times smaller than the largest becomes 0. tokens_data.js inverts it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

STEP, LEVELS = 1.01, 1600


def quantise(values: NDArray[np.floating]) -> dict[str, Any]:
    """{"largest": a float, "codes": a list of small integers} for JSON."""
    x = np.asarray(values, dtype=np.float64)
    finite = np.isfinite(x)
    largest = float(np.abs(x[finite]).max(initial=0.0))
    codes = np.zeros(len(x), dtype=np.int64)
    there = finite & (x != 0)
    if largest:
        levels = np.round(np.log(np.abs(x[there]) / largest) / np.log(STEP)) + LEVELS
        codes[there] = np.sign(x[there]) * np.maximum(levels, 0)
    return {
        "largest": float(f"{largest:.6g}"),
        "codes": [c if ok else None for c, ok in zip(codes.tolist(), finite.tolist(), strict=True)],
    }
