"""Which columns of TRL's files are the reward: those that its advantages follow.

    r = sum_k w_k r_k, NaN left out;   A - mean(A) = c (r - mean(r)) in every group, c > 0

holds for every `scale_rewards` of TRL. Reward functions come before what log_extra adds, so the
reward is the sum of the first k columns of numbers, for the k that holds. Other weights, or
`multi_objective_aggregation="normalize_then_sum"`, fit no k; groups of two, or a column that is the
same in every row, fit more than one: then --reward must say.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow as pa

from counterpoise.errors import PoiseError, unknown

Scored = Mapping[str, np.ndarray]  # a group: each candidate and "advantage", [G]
TOLERANCE = 1e-4  # of 1 - cosine; the columns are float32 inside TRL


def as_named(reward: str, names: list[str]) -> dict[str, float]:
    """
    Example:
        >>> as_named("correct,form=0.2", ["correct", "form", "length"])
        {'correct': 1.0, 'form': 0.2}
    """
    weights: dict[str, float] = {}
    for part in reward.split(","):
        name, has_weight, weight = part.strip().rpartition("=")
        name, weight = (name, weight) if has_weight else (weight, "1")
        if name not in names:
            raise unknown("reward column", name, names)
        try:
            weights[name] = float(weight)
        except ValueError:
            weights[name] = math.nan
        if not math.isfinite(weights[name]):
            raise PoiseError(f"--reward {part.strip()}: '{weight}' is not a number")
    return weights


def choose_columns(groups: Iterable[Scored], names: list[str]) -> dict[str, float]:
    """The first k columns, weight 1 each; of one column there is no choice."""
    if len(names) == 1:
        return {names[0]: 1.0}
    fits = set(range(1, len(names) + 1))
    empty = set(names)  # columns that add nothing anywhere
    for group in groups:
        fits = {k for k in fits if _follows(group, names[:k])}
        empty = {name for name in empty if not np.nan_to_num(group[name]).any()}
    if not fits:
        raise PoiseError(
            f"the advantages follow no sum of {', '.join(names)}: name the reward's columns and "
            f"their weights, as --reward {names[0]},{names[1]}=0.5"
        )
    k, most = min(fits), max(fits)
    if set(names[k:most]) - empty:
        raise PoiseError(
            f"the advantages follow {' + '.join(names[:k])} and {' + '.join(names[:most])} alike: "
            f"name the reward's columns, as --reward {','.join(names[:k])}"
        )
    return dict.fromkeys(names[:k], 1.0)


def _follows(group: Scored, names: list[str]) -> bool:
    rewards = summed([group[name] for name in names], [1.0] * len(names))
    known = ~np.isnan(rewards)
    if known.sum() < 2:
        return True
    r = rewards[known] - rewards[known].mean()
    A = group["advantage"][known] - group["advantage"][known].mean()
    size_r, size_A = float(np.linalg.norm(r)), float(np.linalg.norm(A))
    if size_r < 1e-6 or size_A < 1e-6:
        return size_r < 1e-6 and size_A < 1e-3
    return bool(1 - (r @ A) / (size_r * size_A) < TOLERANCE)


def total(table: pa.Table, weights: Mapping[str, float]) -> np.ndarray:
    """The reward of every row; NaN where no reward function gave one."""
    columns = [table[name].to_numpy().astype(float) for name in weights]
    return summed(columns, list(weights.values()))


def summed(columns: list[np.ndarray], weights: list[float]) -> np.ndarray:
    weighted = np.stack([w * c for w, c in zip(weights, columns, strict=True)])
    sums: np.ndarray = np.nansum(weighted, axis=0)
    return np.where(np.isnan(weighted).all(axis=0), np.nan, sums)
