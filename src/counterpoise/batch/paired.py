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
from typing import TypeVar

import numpy as np

from counterpoise.batch.grouped import place_units
from counterpoise.batch.units import find_split_unit, rows_by_unit
from counterpoise.types import Row

Value = TypeVar("Value")


def compose(rows: Sequence[Row], num_steps: int, seed: int) -> list[list[int]]:
    """Whole pairs of groups in steps of nearly equal token load. arXiv:2602.03452"""
    units = rows_by_unit(rows)
    rates = success_rates(rows, units)
    shuffled_units = np.random.default_rng(seed).permutation(list(rates)).tolist()
    by_rate = sorted(shuffled_units, key=rates.__getitem__)  # stable: ties stay shuffled
    pairs = _pair_extremes(by_rate, len(units), num_steps)
    paired_units = [units[hard] + units[easy] for hard, easy in pairs]
    singles = set(range(len(units))).difference(*pairs)
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
    """Describe a split group, or a hard group without an easy partner; empty if there is none.

    Which groups of equal rates were paired with each other was up to the seed, which a plan does
    not hold. So any group of the partner's rate will do.
    """
    if split_unit := find_split_unit(rows, steps):
        return split_unit
    units = rows_by_unit(rows)
    rates = success_rates(rows, units)
    by_rate = sorted(rates.values())
    pairs = _pair_extremes(by_rate, len(units), len(steps))
    # The seed has also chosen between a hard group and the next one, if their rates are equal: only
    # lower rates surely have a partner.
    sure_pairs = [(low, high) for low, high in pairs if low < by_rate[len(pairs)]]
    unit_of_row = {i: number for number in rates for i in units[number]}
    for step_number, step in enumerate(steps):
        step_rates = {unit_of_row[i]: rates[unit_of_row[i]] for i in step if i in unit_of_row}
        for number, rate in step_rates.items():
            partner_rates = {high for low, high in sure_pairs if low == rate}
            if partner_rates and partner_rates.isdisjoint(step_rates.values()):
                group = rows[units[number][0]].group
                return f"group '{group}' in step {step_number} is without its partner"
    return ""


def _pair_extremes(
    by_rate: Sequence[Value], num_units: int, num_steps: int
) -> list[tuple[Value, Value]]:
    """(first, last), (second, second last), ...: as many pairs as leave a unit for every step."""
    num_pairs = max(0, min(len(by_rate) // 2, num_units - num_steps))
    return list(zip(by_rate, reversed(by_rate), strict=True))[:num_pairs]
