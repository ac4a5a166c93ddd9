"""What tables of rollouts do not say: which rows are a group, and which columns are the reward.

Both are told by the advantages, which TRL and ms-swift write beside the columns of all their reward
functions.

Rows with equal prompts are a group, unless a prompt was drawn more than once in a generation. All
groups of a generation have one size G, and the advantages of each sum to zero. So where most
prompts have G rows and another has k G, these are k groups, in the order of the rows, if the
advantages of each sum to zero. If they do not (an evaluation's rows are among them), the rows of
that prompt stay together.

The reward is what the advantages follow:

    r = sum_k w_k r_k, NaN left out;   A - mean(A) = c (r - mean(r)) in every group, c > 0

holds for every `scale_rewards` of TRL. Columns of reward functions come before those of log_extra,
so the reward is the sum of the first k floating-point columns, for the k that fits. With other
weights, or `multi_objective_aggregation="normalize_then_sum"`, no k fits; with groups of two, or a
column that is constant, several fit. Then the user must name the columns with --reward.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from counterpoise.errors import PoiseError, unknown_name

SUM_TOLERANCE = 1e-3  # TRL computes advantages in float32, over std + 1e-4
COSINE_TOLERANCE = 1e-4  # on 1 - cosine; TRL computes with float32 columns
STD_OFFSET = 1e-4  # TRL divides by std + this, which magnifies the rounding of equal rewards
GroupColumns = Mapping[str, np.ndarray]  # of one group: each candidate column and "advantage", [G]


def rows_by_prompt(prompts: Sequence[str]) -> list[list[int]]:
    """The rows of each prompt, in the order in which prompts first appear."""
    rows: dict[str, list[int]] = {}
    for row, prompt in enumerate(prompts):
        rows.setdefault(prompt, []).append(row)
    return list(rows.values())


def group_rows(prompts: Sequence[str], advantages: np.ndarray) -> list[list[int]]:
    """The rows of each group; groups of one prompt are next to each other.

    Example:
        >>> group_rows(["a", "a", "b", "b", "a", "a"], np.array([1.0, -1, 0, 0, 2, -2]))
        [[0, 1], [4, 5], [2, 3]]
    """
    rows_of_prompts = rows_by_prompt(prompts)
    sizes = Counter(map(len, rows_of_prompts))
    # The most frequent size; among equally frequent ones the smallest: others may be multiples.
    group_size = max(sizes, key=lambda size: (sizes[size], -size), default=1)
    groups: list[list[int]] = []
    for rows in rows_of_prompts:
        blocks = [rows[start : start + group_size] for start in range(0, len(rows), group_size)]
        several_groups = len(rows) % group_size == 0 and all(
            _sums_to_zero(advantages[block]) for block in blocks
        )
        groups.extend(blocks if several_groups else [rows])
    return groups


def _sums_to_zero(advantages_G: np.ndarray) -> bool:
    finite_G = np.nan_to_num(advantages_G)
    return bool(abs(finite_G.sum()) <= SUM_TOLERANCE * max(1.0, np.abs(finite_G).sum()))


def parse_reward_columns(reward: str, names: list[str]) -> dict[str, float]:
    """The weight of each column that --reward names.

    Example:
        >>> parse_reward_columns("correct,form=0.2", ["correct", "form", "length"])
        {'correct': 1.0, 'form': 0.2}
    """
    weights: dict[str, float] = {}
    for term in reward.split(","):
        name, has_weight, weight = term.strip().rpartition("=")
        name, weight = (name, weight) if has_weight else (weight, "1")
        if name not in names:
            raise unknown_name("reward column", name, names)
        try:
            weights[name] = float(weight)
        except ValueError:
            weights[name] = math.nan
        if not math.isfinite(weights[name]):
            raise PoiseError(f"--reward {term.strip()}: '{weight}' is not a number")
    return weights


def infer_reward_columns(groups: Iterable[GroupColumns], names: list[str]) -> dict[str, float]:
    """The first k columns that the advantages follow, with weight 1 each."""
    if len(names) == 1:
        return {names[0]: 1.0}
    fitting = set(range(1, len(names) + 1))  # the values of k that fit all groups so far
    zero_columns = set(names)  # columns that are 0 everywhere
    for group in groups:
        fitting = {k for k in fitting if _advantages_follow(group, names[:k])}
        zero_columns = {name for name in zero_columns if not np.nan_to_num(group[name]).any()}
    if not fitting:
        raise PoiseError(
            f"the advantages follow no sum of {', '.join(names)}: name the reward's columns and "
            f"their weights, as --reward {names[0]},{names[1]}=0.5"
        )
    fewest, most = min(fitting), max(fitting)
    # Columns of zeros do not change the sum: including them or not is the same reward.
    if set(names[fewest:most]) - zero_columns:
        raise PoiseError(
            f"the advantages follow both {' + '.join(names[:fewest])} and "
            f"{' + '.join(names[:most])}: "
            f"name the reward's columns, as --reward {','.join(names[:fewest])}"
        )
    return dict.fromkeys(names[:fewest], 1.0)


def _advantages_follow(group: GroupColumns, names: list[str]) -> bool:
    """Whether A - mean(A) is a positive multiple of r - mean(r) in this group."""
    columns = [group[name] for name in names]
    rewards_G = weighted_sum(columns, [1.0] * len(names))
    has_reward_G = ~np.isnan(rewards_G)
    if has_reward_G.sum() < 2:
        return True
    r = rewards_G[has_reward_G] - rewards_G[has_reward_G].mean()
    A = group["advantage"][has_reward_G] - group["advantage"][has_reward_G].mean()
    norm_r, norm_A = float(np.linalg.norm(r)), float(np.linalg.norm(A))
    # Equal rewards have no direction: the advantages must then be zero too, up to the rounding of
    # TRL's float32 sums.
    rounding = float(np.finfo(np.float32).eps * np.nanmax(np.abs(columns)) * np.sqrt(len(r)))
    are_equal = norm_r < max(1e-6, rounding)
    if are_equal or norm_A < 1e-6:
        return are_equal and norm_A < max(1e-3, rounding / STD_OFFSET)
    return bool(1 - (r @ A) / (norm_r * norm_A) < COSINE_TOLERANCE)


def weighted_sum(columns: list[np.ndarray], weights: list[float]) -> np.ndarray:
    """The sum by row, without NaN; NaN where all columns are."""
    weighted = np.stack([weight * column for weight, column in zip(weights, columns, strict=True)])
    sums: np.ndarray = np.nansum(weighted, axis=0)
    return np.where(np.isnan(weighted).all(axis=0), np.nan, sums)


def reward_formula(weights: Mapping[str, float]) -> str:
    """The reward in words.

    Example:
        >>> reward_formula({"correct": 1.0, "form": 0.2})
        'correct + 0.2 * form'
    """
    terms = (f"{weight:g} * {name}" if weight != 1 else name for name, weight in weights.items())
    return " + ".join(terms)
