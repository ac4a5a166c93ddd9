"""Rules of an optimizer step: what a rule can see of the step, and how a run binds one.

A rule is a function of a step that returns a `RuleEffect` (`update/rules/rule.py`): factors on
token advantages, a term that is added to the loss, or both. Its keyword-only parameters are
settings. It sees an `OptimizerStepView`: the rows with signal of one optimizer step, and the
log-probabilities, entropies and hidden states of their tokens under the current weights. The view
covers the whole step, however it is cut into micro-batches. Called without rows, a rule only checks
its settings and returns `RuleEffect()`.
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
from counterpoise.credit.hints import TEACHER_SETTING
from counterpoise.credit.view import CreditView, PolicyReader
from counterpoise.errors import PoiseError
from counterpoise.plugins import is_plugin
from counterpoise.seeds import rng_for
from counterpoise.types import Floats, Row
from counterpoise.update.reference import score_reference
from counterpoise.update.rules.rule import RuleEffect, StepRule
from counterpoise.update.surrogates import SurrogateInputs
from counterpoise.variants import STEP_RULES, SURROGATES, TOKEN_WEIGHTS

OFF = "off"
REFERENCE_SETTING = "alpha"  # a rule with this setting above 0 reads the initial weights


@dataclass(frozen=True, eq=False)
class OptimizerStepView(CreditView):
    """What a rule sees of one optimizer step, computed with the weights before the step.

    Example:
        def rule(step: OptimizerStepView, *, share: float = 0.1) -> RuleEffect:
            threshold = np.quantile(np.concatenate(step.entropies), 1 - share)
            kept = [(H_T < threshold).astype(np.float32) for H_T in step.entropies]
            return RuleEffect(factors=kept)
    """

    update: UpdateConfig = field(default_factory=UpdateConfig)
    step_index: int = 0  # within the iteration
    iterations: int = 1  # of the whole run
    on_policy: bool = False  # rows without trainer_logprobs_T were sampled by the current weights
    reference_weights: Mapping[str, Tensor] | None = None  # the initial weights, by parameter name

    @cached_property
    def logprobs(self) -> list[Floats]:
        """Per row [T]; read without keeping the hidden states, which are large."""
        return self._reader.logprobs(self.rows)

    @cached_property
    def old_logprobs(self) -> list[Floats]:
        """Per row [T]: log-probabilities by the policy that sampled it."""
        # For rows without trainer_logprobs_T: if the current weights sampled them, their
        # log-probabilities now; otherwise those that the sampler reported.
        fallback_logprobs = (
            self.logprobs if self.on_policy else [row.old_logprobs for row in self.rows]
        )
        pairs = zip(self.rows, fallback_logprobs, strict=True)
        return [
            fallback_T if row.trainer_logprobs_T is None else row.trainer_logprobs_T
            for row, fallback_T in pairs
        ]

    @cached_property
    def clipped(self) -> np.ndarray:
        """[N] over the tokens of all rows: where the surrogate's clip removes the gradient."""
        lengths = [row.num_tokens for row in self.rows]
        # The surrogate itself decides what is clipped, so this cannot drift from the loss.
        inputs = SurrogateInputs(
            logprobs=torch.from_numpy(np.concatenate(self.logprobs)),
            old_logprobs=torch.from_numpy(np.concatenate(self.old_logprobs)),
            advantages=torch.from_numpy(np.concatenate([row.advantages_T for row in self.rows])),
            row=torch.from_numpy(np.repeat(np.arange(len(lengths)), lengths)),
            num_rows=len(lengths),
            clip_low=self.update.clip_low,
            clip_high=self.update.clip_high,
            clip_dual=self.update.clip_dual,
        )
        is_clipped: np.ndarray = SURROGATES.load(self.update.surrogate)(inputs).clipped.numpy()
        return is_clipped

    def split_by_row(self, values_N: np.ndarray) -> list[np.ndarray]:
        """Split values of all tokens, flat as in `clipped`, into one array [T] per row."""
        return np.split(values_N, np.cumsum([row.num_tokens for row in self.rows])[:-1])

    def reference_logprobs(self) -> list[Floats]:
        """Per row [T]: log-probabilities by the weights at the start of the run."""
        initial_weights = self.reference_weights
        assert initial_weights is not None, (
            f"the initial weights are kept only if the rule's {REFERENCE_SETTING} is above 0"
        )
        return score_reference(self._reader, initial_weights, self.rows)

    def rng(self, purpose: str) -> np.random.Generator:
        """A generator for a random choice in this step, the same in a resumed run."""
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

    def for_step(self, step_index: int) -> StepRule:
        """The rule for one step of the iteration."""

        def rule(rows: Sequence[Row], *, on_policy: bool) -> RuleEffect:
            step = OptimizerStepView(
                rows,
                self.reader,
                update=self.update,
                step_index=step_index,
                iterations=self.iterations,
                on_policy=on_policy,
                reference_weights=self.reference_weights,
            )
            return self.decide(step, **self.settings)

        return rule


def bind_rule(
    config: RunConfig, reader: PolicyReader, reference: Mapping[str, Tensor] | None
) -> BoundRule | None:
    """The run's rule; None if it has none."""
    if config.credit.rule == OFF:
        return None
    decide, settings = _load_rule(config.credit)
    return BoundRule(decide, settings, reader, config.update, config.loop.iterations, reference)


def check_rule(config: RunConfig) -> None:
    """Raise unless credit.rule_settings are valid settings of credit.rule."""
    decide, settings = _load_rule(config.credit)
    decide(OptimizerStepView(()), **settings)
    teacher_interval(config.credit)


def reads_initial_weights(options: CreditConfig) -> bool:
    """Whether the rule needs the weights at the start of the run."""
    # A plugin cannot read the initial weights; a setting of its own may still be called alpha.
    if is_plugin(options.rule):
        return False
    _, settings = _load_rule(options)
    return bool(settings.get(REFERENCE_SETTING, 0.0) > 0)


def teacher_interval(options: CreditConfig) -> int:
    """The teacher becomes a new copy of the policy every so many iterations; 0: no copy is made.

    Without a copy, methods that have a teacher use the current policy. Token weights and a rule
    share one teacher.
    """
    settings_by_method = []
    if not is_plugin(options.weights):
        weigh_tokens = TOKEN_WEIGHTS.load(options.weights)
        overrides = parse_settings(options.weights, weigh_tokens, options.settings)
        settings_by_method.append(_keyword_defaults(weigh_tokens) | overrides)
    if not is_plugin(options.rule):
        settings_by_method.append(_load_rule(options)[1])
    # Most methods have no teacher, and so no such setting.
    intervals: set[int] = {
        settings[TEACHER_SETTING] for settings in settings_by_method if TEACHER_SETTING in settings
    }
    if len(intervals) > 1:
        raise PoiseError(
            f"credit.settings and credit.rule_settings have {TEACHER_SETTING} of "
            f"{' and '.join(map(str, sorted(intervals)))}: there is one teacher, give both the same"
        )
    return intervals.pop() if intervals else 0


def off(step: OptimizerStepView) -> RuleEffect:
    """No rule: the step stays as it is."""
    return RuleEffect()


def _load_rule(options: CreditConfig) -> tuple[Callable[..., RuleEffect], dict[str, Any]]:
    """The rule and all of its settings, including defaults."""
    decide = STEP_RULES.load(options.rule)
    overrides = parse_settings(options.rule, decide, options.rule_settings, "credit.rule_settings")
    return decide, _keyword_defaults(decide) | overrides


def _keyword_defaults(method: Callable[..., Any]) -> dict[str, Any]:
    return {
        parameter.name: parameter.default
        for parameter in inspect.signature(method).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
