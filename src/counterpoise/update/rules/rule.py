"""What a rule of an optimizer step may change: the step's tokens are weighed, or its loss grows.

    L = sum_i c_i sum_t w_{i,t} (L_{i,t} + D_{i,t})        L_{i,t} linear in k_{i,t} A_{i,t}

    k    factors of token advantages, such as 0 for tokens that are left out
    D    a term for every token, which the passes add to the surrogate's loss

A rule is asked once a step, before its gradient is taken, and sees all of its rows with signal: so
what it decides does not depend on how the step is cut into micro-batches. A term is then asked in
every pass for the tokens of that pass. Rules are in credit/, one file each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from torch import Tensor

from counterpoise.model.scoring import ForwardOutputs
from counterpoise.types import Floats, Row


class LossTerm(Protocol):
    def __call__(self, rows: Sequence[Row], found: ForwardOutputs, old_M: Tensor) -> Tensor:
        """D [M] for the tokens of a pass; `found` carries the gradient."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class RuleEffect:
    """What a rule makes of a step. As it is: nothing.

    Example:
        RuleEffect(factors=[np.array([1, 0, 1], np.float32)], chosen=1)
    """

    factors: Sequence[Floats] | None = None  # k, per row [T]
    term: LossTerm | None = None
    num_chosen: int = 0  # tokens that were singled out


class StepRule(Protocol):
    def __call__(self, rows: Sequence[Row], *, on_policy: bool) -> RuleEffect:
        """`rows` are those with signal; `on_policy` as in `update/step.py`."""
        ...


def apply_rule(
    rows: Sequence[Row], rule: StepRule, *, on_policy: bool
) -> tuple[list[Row], RuleEffect]:
    """All rows of a step, weighed by the rule's factors, and what else it said."""
    signal = [i for i, row in enumerate(rows) if row.sign]
    made = rule([rows[i] for i in signal], on_policy=on_policy) if signal else RuleEffect()
    done = list(rows)
    if made.factors is None:
        return done, made
    for i, factors_T in zip(signal, made.factors, strict=True):
        row = rows[i]
        weights_T = factors_T if row.weights_T is None else factors_T * row.weights_T
        done[i] = replace(row, weights_T=weights_T)
    return done, made
