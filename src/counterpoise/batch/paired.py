"""Positive-negative pairing: a hard but solvable group shares a step with an easy but brittle one.

    p_g     = share of positive rows among the rows of group g that carry signal
    pairs   = (lowest p, highest p), (second lowest, second highest), ...

The rare successes of the hard group show what to do, the rare failures of the easy one what to
avoid; in one optimizer step the policy gets both. Pairs are placed whole, as `grouped` places
groups, with equal token loads; groups stay whole too. arXiv:2602.03452

The paper samples one such pair per update, by success rates measured before training, and reweights
its rewards (Weighted GRPO). Here the groups that were sampled anyway are paired, by the rates of
the batch itself. Groups without signal have no rate and are placed alone, as is the middle one of
an odd number. Where pairs would leave a step empty, those of the most similar rates are separated.
Equal rates are paired in random order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from counterpoise.batch.grouped import find_split_group, place_units
from counterpoise.types import Row, rows_by_group


def compose(rows: Sequence[Row], num_steps: int, seed: int) -> list[list[int]]:
    """Whole pairs of groups in steps of nearly equal token load."""
    groups, rates = rows_by_group(rows), success_rates(rows)
    random_order = np.random.default_rng(seed).permutation(len(rates))
    shuffled_names = [list(rates)[i] for i in random_order]
    by_rate = sorted(shuffled_names, key=rates.__getitem__)  # stable: ties stay shuffled
    num_pairs = _count_pairs(len(by_rate), len(groups), num_steps)
    hardest, easiest = by_rate[:num_pairs], by_rate[::-1][:num_pairs]
    single_names = by_rate[num_pairs : len(by_rate) - num_pairs]
    single_names += [name for name in groups if name not in rates]
    units = [groups[hard] + groups[easy] for hard, easy in zip(hardest, easiest, strict=True)]
    units += [groups[name] for name in single_names]
    return place_units(rows, units, num_steps, seed, "whole group")


def success_rates(rows: Sequence[Row]) -> dict[str, float]:
    """The share of positive rows in each group with signal; rows without signal do not count."""
    signs_by_group: dict[str, list[int]] = {}
    for row in rows:
        if row.sign:
            signs_by_group.setdefault(row.group, []).append(row.sign)
    return {
        name: sum(sign > 0 for sign in signs) / len(signs) for name, signs in signs_by_group.items()
    }


def find_unpaired(rows: Sequence[Row], steps: Sequence[Sequence[int]]) -> str:
    """Describe a split group, or a hard group without an easy partner; empty if there is none."""
    if split_group := find_split_group(rows, steps):
        return split_group
    rates = success_rates(rows)
    sorted_rates = sorted(rates.values())
    num_pairs = _count_pairs(len(rates), len(rows_by_group(rows)), len(steps))
    partner_rates = list(zip(sorted_rates, sorted_rates[::-1], strict=True))[:num_pairs]
    for step_number, step in enumerate(steps):
        step_rates = {rows[i].group: rates[rows[i].group] for i in step if rows[i].group in rates}
        for name, rate in step_rates.items():
            partners = {high for low, high in partner_rates if low == rate}
            # Of several groups with the last paired rate, some may be single.
            is_surely_paired = partners and rate < sorted_rates[num_pairs]
            others = {other_rate for other, other_rate in step_rates.items() if other != name}
            if is_surely_paired and not partners & others:
                return f"group '{name}' in step {step_number} is without its partner"
    return ""


def _count_pairs(num_rated: int, num_groups: int, num_steps: int) -> int:
    """As many pairs as leave a unit for every step; each pair makes one unit of two groups."""
    return max(0, min(num_rated // 2, num_groups - num_steps))
