"""Rewards that are known beforehand: of a group of four, `data_source` rollouts are right.

Whichever are judged first. Every eighth prompt has none, so that its group is without signal.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

GROUP, SILENT = 4, 8
_judged: Counter[int] = Counter()
_lock = threading.Lock()


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **_: Any
) -> float:
    prompt = int(extra_info["index"])
    with _lock:
        position = _judged[prompt] % GROUP
        _judged[prompt] += 1
    silent = prompt % SILENT == SILENT - 1
    return float(position < int(data_source) and not silent)
