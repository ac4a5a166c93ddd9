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

from counterpoise.batch.grouped import place_units
from counterpoise.batch.units import find_split_unit, rows_by_unit
from counterpoise.types import Row


def compose(rows: Sequence[Row], num_steps: int, seed: int) -> list[list[int]]:
    """Whole pairs of groups in steps of nearly equal token load. arXiv:2602.03452"""
    units = rows_by_unit(rows)
    rates = success_rates(rows, units)
    shuffled_units = np.random.default_rng(seed).permutation(list(rates)).tolist()
    by_rate = sorted(shuffled_units, key=rates.__getitem__)  # stable: ties stay shuffled
    num_pairs = _count_pairs(len(by_rate), len(units), num_steps)
    hardest, easiest = by_rate[:num_pairs], by_rate[::-1][:num_pairs]
    paired_units = [units[hard] + units[easy] for hard, easy in zip(hardest, easiest, strict=True)]
    singles = set(range(len(units))).difference(hardest, easiest)
    return place_units(rows, paired_units + [units[i] for i in sorted(singles)], num_steps, seed)


def success_rates(rows: Sequence[Row], units: Sequence[Sequence[int]]) -> dict[int, float]:
    """Unit number -> share of positive rows among its rows with signal, where it has any."""
    signs_by_unit = {
        number: [rows[i].sign for i in unit if rows[i].sign] for number, unit in enumerate(units)
    }
    return {
        number: sum(sign > 0 for sign in signs) / len(signs)
        for number, signs in signs_by_unit.items()
        if signs
    }


def find_unpaired(rows: Sequence[Row], steps: Sequence[Sequence[int]]) -> str:
    """Describe a split group, or a hard group without an easy partner; empty if there is none."""
    if split_unit := find_split_unit(rows, steps):
        return split_unit
    units = rows_by_unit(rows)
    rates = success_rates(rows, units)
    unit_of_row = {i: number for number, unit in enumerate(units) for i in unit}
    sorted_rates = sorted(rates.values())
    num_pairs = _count_pairs(len(rates), len(units), len(steps))
    partner_rates = list(zip(sorted_rates, sorted_rates[::-1], strict=True))[:num_pairs]
    for step_number, step in enumerate(steps):
        numbers = dict.fromkeys(unit_of_row[i] for i in step)
        step_rates = {number: rates[number] for number in numbers if number in rates}
        for number, rate in step_rates.items():
            partners = {high for low, high in partner_rates if low == rate}
            # The num_pairs groups with the lowest rates have a partner. Where the next group has
            # the rate of this one, chance decided between them, and this one may be single.
            is_surely_paired = partners and rate < sorted_rates[num_pairs]
            other_rates = {
                other_rate for other, other_rate in step_rates.items() if other != number
            }
            if is_surely_paired and not partners & other_rates:
                group = rows[units[number][0]].group
                return f"group '{group}' in step {step_number} is without its partner"
    return ""


def _count_pairs(num_rated: int, num_units: int, num_steps: int) -> int:
    """As many pairs as leave a unit for every step; each pair makes one unit of two groups."""
    return max(0, min(num_rated // 2, num_units - num_steps))
