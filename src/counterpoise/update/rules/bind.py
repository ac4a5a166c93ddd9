"""Rules of an optimizer step: what a method sees of the step, and how a run binds one.

A rule is a function `rule(step, *, settings) -> Ruled` (`update/rules/rule.py`): factors on token
advantages, a term that is added to the loss, or both. It sees a `Step`: the rows with signal of one
optimizer step, and what the weights as that step finds them make of every token, whatever its
micro-batches. Asked about no rows, it checks its settings and answers `Ruled()`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from counterpoise.config import CreditConfig, RunConfig, UpdateConfig
from counterpoise.credit.assign import read_settings
from counterpoise.credit.view import Reader, View
from counterpoise.model.load import Policy
from counterpoise.model.scoring import ForwardOutputs, score_logprobs
from counterpoise.model.swapped_weights import forward_with_weights
from counterpoise.seeds import rng_for
from counterpoise.types import Floats, Row
from counterpoise.update.rules.rule import Rule, Ruled
from counterpoise.update.surrogates import SurrogateInputs
from counterpoise.variants import STEP_RULES, SURROGATES

OFF = "off"
REGULARISED = "alpha"  # a rule with this setting above 0 reads the weights the run began with


@dataclass(frozen=True, eq=False)
class Step(View):
    """A view of one optimizer step, by the weights as it finds them.

    Example:
        def rule(step: Step, *, share: float = 0.1) -> Ruled:
            edges = np.quantile(np.concatenate(step.entropies), 1 - share)
            return Ruled(factors=[(H_T < edge).astype(np.float32) for H_T in step.entropies])
    """

    update: UpdateConfig = field(default_factory=UpdateConfig)
    number: int = 0  # among the iteration's steps
    iterations: int = 1  # of the whole run
    on_policy: bool = False  # rows without scores were sampled by these very weights
    reference: Mapping[str, Tensor] | None = None  # the first weights, by parameter name

    @cached_property
    def logprobs(self) -> list[Floats]:
        """Per row [T]; hidden states, which are large, are not kept for it."""
        at = self._reader
        return score_logprobs(at.policy, self.rows, at.temperature, at.micro, at.passes.read)

    @cached_property
    def old_logprobs(self) -> list[Floats]:
        """Per row [T], of the policy that sampled it."""
        now = self.logprobs if self.on_policy else [row.old_logprobs for row in self.rows]
        both = zip(self.rows, now, strict=True)
        return [now_T if row.scored_T is None else row.scored_T for row, now_T in both]

    @cached_property
    def clipped(self) -> np.ndarray:
        """[N], the tokens of all rows: where the surrogate's clip takes the gradient away."""
        lengths = [row.num_tokens for row in self.rows]
        given = SurrogateInputs(
            logprobs=torch.from_numpy(np.concatenate(self.logprobs)),
            old_logprobs=torch.from_numpy(np.concatenate(self.old_logprobs)),
            advantages=torch.from_numpy(np.concatenate([row.advantages_T for row in self.rows])),
            row=torch.from_numpy(np.repeat(np.arange(len(lengths)), lengths)),
            num_rows=len(lengths),
            clip_low=self.update.clip_low,
            clip_high=self.update.clip_high,
        )
        found: np.ndarray = SURROGATES.load(self.update.surrogate)(given).clipped.numpy()
        return found

    def reference_logprobs(self) -> list[Floats]:
        """Per row [T], by the weights the run began with."""
        reader, first = self._reader, self.reference
        assert first is not None, f"kept for rules whose {REGULARISED} is above 0"

        def lent(policy: Policy, rows: Sequence[Row], temperature: float) -> ForwardOutputs:
            with torch.no_grad():
                return forward_with_weights(policy, first, rows, temperature)

        return score_logprobs(reader.policy, self.rows, reader.temperature, reader.micro, lent)

    def rng(self, purpose: str) -> np.random.Generator:
        """For a random choice in this step, the same in a resumed run."""
        return rng_for(self._reader.seed, purpose, self._reader.iteration, self.number)


@dataclass(frozen=True, eq=False)
class Bound:
    """A rule with its settings, for the steps of one iteration."""

    decide: Callable[..., Ruled]
    settings: Mapping[str, Any]
    reader: Reader
    update: UpdateConfig
    iterations: int
    reference: Mapping[str, Tensor] | None

    def at(self, number: int) -> Rule:
        def rule(rows: Sequence[Row], *, on_policy: bool) -> Ruled:
            step = Step(
                rows, self.reader, self.update, number, self.iterations, on_policy, self.reference
            )
            return self.decide(step, **self.settings)

        return rule


def bound(
    config: RunConfig, reader: Reader, reference: Mapping[str, Tensor] | None
) -> Bound | None:
    """The run's rule; None where it has none."""
    if config.credit.rule == OFF:
        return None
    decide, settings = _named(config.credit)
    return Bound(decide, settings, reader, config.update, config.loop.iterations, reference)


def check_rule(config: RunConfig) -> None:
    """Raise where credit.rule_settings are not settings of credit.rule."""
    decide, settings = _named(config.credit)
    decide(Step(()), **settings)


def reads_first_weights(options: CreditConfig) -> bool:
    _, settings = _named(options)
    return bool(settings.get(REGULARISED, 0.0) > 0)


def reference_of(policy: Policy, options: CreditConfig) -> dict[str, Tensor] | None:
    """A copy of the weights as they are, where the rule reads the run's first ones."""
    if not reads_first_weights(options):
        return None
    return {name: p.detach().clone() for name, p in policy.model.named_parameters()}


def off(step: Step) -> Ruled:
    return Ruled()


def _named(options: CreditConfig) -> tuple[Callable[..., Ruled], dict[str, Any]]:
    """The rule and all of its settings, those not given at their defaults."""
    decide = STEP_RULES.load(options.rule)
    defaults = {
        p.name: p.default
        for p in inspect.signature(decide).parameters.values()
        if p.kind is p.KEYWORD_ONLY
    }
    given = read_settings(options.rule, decide, options.rule_settings, "credit.rule_settings")
    return decide, defaults | given
