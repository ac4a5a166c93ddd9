"""Rules of an optimizer step: what a method sees of the step, and how a run binds one.

A rule is a function `rule(step, *, settings) -> Ruled` (`update/rules/rule.py`): factors on token
advantages, a term that is added to the loss, or both. It sees a `OptimizerStepView`: the rows with signal of one
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
from counterpoise.credit.assign import parse_settings
from counterpoise.credit.view import CreditView, PolicyReader
from counterpoise.model.load import Policy
from counterpoise.model.scoring import ForwardOutputs, score_logprobs
from counterpoise.model.swapped_weights import forward_with_weights
from counterpoise.seeds import rng_for
from counterpoise.types import Floats, Row
from counterpoise.update.rules.rule import RuleEffect, StepRule
from counterpoise.update.surrogates import SurrogateInputs
from counterpoise.variants import STEP_RULES, SURROGATES

OFF = "off"
REFERENCE_SETTING = "alpha"  # a rule with this setting above 0 reads the weights the run began with


@dataclass(frozen=True, eq=False)
class OptimizerStepView(CreditView):
    """A view of one optimizer step, by the weights as it finds them.

    Example:
        def rule(step: Step, *, share: float = 0.1) -> Ruled:
            edges = np.quantile(np.concatenate(step.entropies), 1 - share)
            return Ruled(factors=[(H_T < edge).astype(np.float32) for H_T in step.entropies])
    """

    update: UpdateConfig = field(default_factory=UpdateConfig)
    step_index: int = 0  # among the iteration's steps
    iterations: int = 1  # of the whole run
    on_policy: bool = False  # rows without scores were sampled by these very weights
    reference_weights: Mapping[str, Tensor] | None = None  # the first weights, by parameter name

    @cached_property
    def logprobs(self) -> list[Floats]:
        """Per row [T]; hidden states, which are large, are not kept for it."""
        at = self._reader
        return score_logprobs(at.policy, self.rows, at.temperature, at.micro_batch, at.passes.read)

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
        reader, first = self._reader, self.reference_weights
        assert first is not None, f"kept for rules whose {REFERENCE_SETTING} is above 0"

        def lent(policy: Policy, rows: Sequence[Row], temperature: float) -> ForwardOutputs:
            with torch.no_grad():
                return forward_with_weights(policy, first, rows, temperature)

        return score_logprobs(
            reader.policy, self.rows, reader.temperature, reader.micro_batch, lent
        )

    def rng(self, purpose: str) -> np.random.Generator:
        """For a random choice in this step, the same in a resumed run."""
        return rng_for(self._reader.seed, purpose, self._reader.iteration, self.step_index)


@dataclass(frozen=True, eq=False)
class BoundRule:
    """A rule with its settings, for the steps of one iteration."""

    decide: Callable[..., RuleEffect]
    settings: Mapping[str, Any]
    reader: PolicyReader
    update: UpdateConfig
    iterations: int
    reference_weights: Mapping[str, Tensor] | None

    def for_step(self, number: int) -> StepRule:
        def rule(rows: Sequence[Row], *, on_policy: bool) -> RuleEffect:
            step = OptimizerStepView(
                rows,
                self.reader,
                self.update,
                number,
                self.iterations,
                on_policy,
                self.reference_weights,
            )
            return self.decide(step, **self.settings)

        return rule


def bind_rule(
    config: RunConfig, reader: PolicyReader, reference: Mapping[str, Tensor] | None
) -> BoundRule | None:
    """The run's rule; None where it has none."""
    if config.credit.rule == OFF:
        return None
    decide, settings = _load_rule(config.credit)
    return BoundRule(decide, settings, reader, config.update, config.loop.iterations, reference)


def check_rule(config: RunConfig) -> None:
    """Raise where credit.rule_settings are not settings of credit.rule."""
    decide, settings = _load_rule(config.credit)
    decide(OptimizerStepView(()), **settings)


def reads_initial_weights(options: CreditConfig) -> bool:
    _, settings = _load_rule(options)
    return bool(settings.get(REFERENCE_SETTING, 0.0) > 0)


def copy_initial_weights(policy: Policy, options: CreditConfig) -> dict[str, Tensor] | None:
    """A copy of the weights as they are, where the rule reads the run's first ones."""
    if not reads_initial_weights(options):
        return None
    return {name: p.detach().clone() for name, p in policy.model.named_parameters()}


def off(step: OptimizerStepView) -> RuleEffect:
    return RuleEffect()


def _load_rule(options: CreditConfig) -> tuple[Callable[..., RuleEffect], dict[str, Any]]:
    """The rule and all of its settings, those not given at their defaults."""
    decide = STEP_RULES.load(options.rule)
    defaults = {
        p.name: p.default
        for p in inspect.signature(decide).parameters.values()
        if p.kind is p.KEYWORD_ONLY
    }
    given = parse_settings(options.rule, decide, options.rule_settings, "credit.rule_settings")
    return decide, defaults | given
