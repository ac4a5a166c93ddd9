"""What a rule of an optimizer step may change: token advantages, or the loss by an added term.

    L = sum_i c_i sum_t w_{i,t} (L_{i,t} + D_{i,t})        L_{i,t} linear in k_{i,t} A_{i,t}

    k    factors of token advantages, such as 0 for tokens that are left out
    D    a term for every token, added to the surrogate's loss
    c, w as in `update/step.py`: w is the importance weight, not the token weight, which is in A

A rule is called once per step, before its gradient is computed, with all of its rows with signal:
its decision cannot depend on how the step is cut into micro-batches. A term is then evaluated in
every pass (forward and backward over one micro-batch), for the tokens of that pass. Each rule has
its own file in this folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from torch import Tensor

from counterpoise.model.scoring import ForwardOutputs
from counterpoise.types import Floats, Row


class LossTerm(Protocol):
    """A term that every pass adds to the loss of its tokens."""

    def __call__(
        self, rows: Sequence[Row], forward: ForwardOutputs, old_logprobs_M: Tensor
    ) -> Tensor:
        """D [M] for the tokens of a pass; `forward` carries the gradient."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class RuleEffect:
    """What a rule changes in a step; by default nothing.

    Example:
        RuleEffect(factors=[np.array([1, 0, 1], np.float32)], num_chosen=1)
    """

    factors: Sequence[Floats] | None = None  # k, per row [T]
    term: LossTerm | None = None
    num_chosen: int = 0  # tokens that the rule chose, for `StepResult.chosen_share`


class StepRule(Protocol):
    """A rule bound to one optimizer step."""

    def __call__(self, rows: Sequence[Row], *, on_policy: bool) -> RuleEffect:
        """The rule's effect on the rows with signal; `on_policy` as in `update/step.py`."""
        ...


def apply_rule(
    rows: Sequence[Row], rule: StepRule, *, on_policy: bool
) -> tuple[list[Row], RuleEffect]:
    """All rows of a step, weighted by the rule's factors, and the rule's effect."""
    signal_indices = [i for i, row in enumerate(rows) if row.sign]
    signal_rows = [rows[i] for i in signal_indices]
    effect = rule(signal_rows, on_policy=on_policy) if signal_rows else RuleEffect()
    updated_rows = list(rows)
    if effect.factors is None:
        return updated_rows, effect
    for i, factors_T in zip(signal_indices, effect.factors, strict=True):
        row = rows[i]
        weights_T = factors_T if row.weights_T is None else factors_T * row.weights_T
        updated_rows[i] = replace(row, weights_T=weights_T)
    return updated_rows, effect
