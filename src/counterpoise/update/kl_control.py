"""Control of the KL's coefficient: one for each channel of prompts, moved towards a target KL.

    kl_g <- kl_g (1 + s clip(K_g / target_g - 1, -0.2, 0.2) min(1, n_g / horizon))

after each iteration, where

    g      a channel: all prompts, those with the same value in a column, or a single prompt
    n_g    its responses in the batch
    K_g    their mean KL per token, by the policy that sampled them (`update.kl_estimator`)
    H_g    their mean -log pi_ref per token, a moving average with weight 0.05: the complexity of g
    Hbar   the same over all channels, with weight 0.01

    adaptive               s = 1     target_g = target, one channel              arXiv:1909.08593
    complexity             s = 1     target_g = target clip((H_g / Hbar)^1.5, 0.5, 2)
    complexity_released    s = -1    target_g = target clip((Hbar / H_g)^1.5, 0.5, 2)

Both forms of complexity are CRPO's, arXiv:2605.25511. K_g and H_g are means over responses of each
response's mean over its tokens. Optimizer steps that were skipped are left out.

The coefficients of an iteration are those before its own update, and update.kl is the first one. A
hard prompt, at which the reference itself is unsure, may move further. `complexity` is what the
comments of CRPO's code say. `complexity_released` is what it computes: a hard channel has the lower
target, and a KL above its target lowers the coefficient. A hard channel is held less tightly in
both, but the released form amplifies a KL that grows.

target = 0.1, horizon = 5000 and the weights of the averages are CRPO's. Its channels are seven
clusters of roles. Here the setting `column` names a column of the problems, each of whose values is
a channel; without it, each prompt is a channel. The limit of 1 on n_g / horizon is ours: with more
than 5 horizon responses a coefficient could become negative.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from counterpoise.config import RunConfig, UpdateConfig
from counterpoise.credit.assign import parse_settings
from counterpoise.errors import PoiseError
from counterpoise.types import Prompt, Row, StepResult
from counterpoise.update.kl_penalty import estimate_kl
from counterpoise.variants import KL_CONTROLS

LARGEST_ERROR = 0.2  # of K_g / target_g - 1
CHANNEL_WEIGHT, OVERALL_WEIGHT = 0.05, 0.01  # of a new value in a moving average
COMPLEXITY_POWER = 1.5
SCALE_LIMITS = (0.5, 2.0)
SMALLEST_ENTROPY = 1e-6


def keep_fixed(initial: float) -> None:
    """update.kl for the whole run."""


class AdaptiveControl:
    """One coefficient for all prompts, moved towards a target KL."""

    def __init__(self, initial: float, *, target: float = 0.1, horizon: int = 5000) -> None:
        if target <= 0 or horizon < 1:
            raise PoiseError("update.kl_settings: target must be above 0 and horizon at least 1")
        self.initial, self.target, self.horizon = initial, target, horizon
        self.coefficients: dict[str, float] = {}
        self.entropies: dict[str, float] = {}
        self.overall_entropy: float | None = None

    def set_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Tell it the problems of the run, before the first update."""

    def channel_of(self, prompt_id: str) -> str:
        return ""

    def coefficient(self, prompt_id: str) -> float:
        """kl_g of the prompt's channel."""
        return self.coefficients.get(self.channel_of(prompt_id), self.initial)

    def update(self, batch: Sequence[Row], results: Sequence[StepResult], estimator: str) -> None:
        """Adjust the coefficients to the KL of the rows that an iteration's steps trained."""
        readings: dict[str, list[tuple[float, float]]] = {}
        for result in results:
            if result.skipped:
                continue  # it may hold a nan, from which a coefficient would never recover
            for row_index, old_logprobs_T in zip(result.rows, result.old_logprobs, strict=True):
                row = batch[row_index]
                reference_T = row.reference_logprobs_T
                assert reference_T is not None, "the KL in the loss needs the reference"
                kl = float(estimate_kl(estimator, old_logprobs_T, reference_T).mean())
                entropy = -float(reference_T.mean(dtype=np.float64))
                channel = self.channel_of(row.content.prompt_id)
                readings.setdefault(channel, []).append((kl, entropy))
        # Sorted, because the overall average depends on the order.
        for channel in sorted(readings):
            kl, entropy = np.mean(readings[channel], axis=0).tolist()
            self._average_entropy(channel, entropy)
            error = kl / (self.target * self._target_scale(channel)) - 1
            error = min(max(error, -LARGEST_ERROR), LARGEST_ERROR)
            # No more than one horizon counts, or the coefficient could become negative.
            horizon_share = min(1.0, len(readings[channel]) / self.horizon)
            factor = 1 + self._direction * error * horizon_share
            self.coefficients[channel] = self.coefficients.get(channel, self.initial) * factor

    _direction = 1

    def _target_scale(self, channel: str) -> float:
        """target_g / target."""
        return 1.0

    def _average_entropy(self, channel: str, entropy: float) -> None:
        average = self.entropies.get(channel, entropy)
        self.entropies[channel] = average + CHANNEL_WEIGHT * (entropy - average)
        overall = entropy if self.overall_entropy is None else self.overall_entropy
        self.overall_entropy = overall + OVERALL_WEIGHT * (entropy - overall)

    def to_state(self) -> dict[str, Any]:
        """What a checkpoint holds of it."""
        return {
            "coefficients": self.coefficients,
            "entropies": self.entropies,
            "overall_entropy": self.overall_entropy,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Set it to what `to_state` returned."""
        self.coefficients = dict(state["coefficients"])
        self.entropies = dict(state["entropies"])
        self.overall_entropy = state["overall_entropy"]


class ComplexityControl(AdaptiveControl):
    """CRPO as described: a coefficient for each channel, with a target that grows with H_g."""

    def __init__(
        self, initial: float, *, target: float = 0.1, horizon: int = 5000, column: str = ""
    ) -> None:
        super().__init__(initial, target=target, horizon=horizon)
        self._column = column
        self._channels: dict[str, str] = {}  # by prompt id

    def set_prompts(self, prompts: Sequence[Prompt]) -> None:
        if not self._column:
            return
        if without := next((p for p in prompts if p.columns.get(self._column) is None), None):
            raise PoiseError(
                f"update.kl_settings: problem '{without.id}' has no column '{self._column}': name "
                "another one, or leave column out, and each prompt has a coefficient of its own"
            )
        self._channels = {prompt.id: str(prompt.columns[self._column]) for prompt in prompts}

    def channel_of(self, prompt_id: str) -> str:
        return self._channels[prompt_id] if self._column else prompt_id

    def _target_scale(self, channel: str) -> float:
        assert self.overall_entropy is not None
        return self._scale(self.entropies[channel], self.overall_entropy)

    @staticmethod
    def _scale(entropy: float, overall: float) -> float:
        ratio = (entropy + SMALLEST_ENTROPY) / (overall + SMALLEST_ENTROPY)
        return float(np.clip(ratio**COMPLEXITY_POWER, *SCALE_LIMITS))


class ReleasedComplexityControl(ComplexityControl):
    """CRPO as released: the target falls with H_g, and the controller has the opposite sign."""

    _direction = -1

    @staticmethod
    def _scale(entropy: float, overall: float) -> float:
        ratio = overall / (entropy + SMALLEST_ENTROPY)
        return float(np.clip(ratio**COMPLEXITY_POWER, *SCALE_LIMITS))


def make_kl_control(options: UpdateConfig) -> AdaptiveControl | None:
    """The control of the run's KL; None if its coefficient is fixed."""
    make_control = KL_CONTROLS.load(options.kl_control)
    settings = parse_settings(
        options.kl_control, make_control, options.kl_settings, "update.kl_settings"
    )
    control: AdaptiveControl | None = make_control(options.kl, **settings)
    return control


def check_kl_control(config: RunConfig) -> None:
    """Raise where update.kl_settings are not settings of update.kl_control."""
    make_kl_control(config.update)


def with_kl_coefficients(batch: Sequence[Row], control: AdaptiveControl | None) -> list[Row]:
    """The batch with the coefficient of each row's KL; as it is without a control."""
    if control is None:
        return list(batch)
    return [
        replace(row, kl_coefficient=control.coefficient(row.content.prompt_id)) for row in batch
    ]
