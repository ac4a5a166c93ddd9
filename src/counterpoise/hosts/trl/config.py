"""TRL's options and ours, in one dataclass. What cannot be honoured stops before training."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from trl import GRPOConfig

from counterpoise.credit.assign import UNIFORM, parse_settings
from counterpoise.errors import PoiseError, unknown
from counterpoise.hosts.trl.host import BY_TEXT
from counterpoise.variants import (
    ADVANTAGES,
    BALANCE_UNITS,
    COMPOSERS,
    COMPOSERS_THAT_READ_TOKENS,
    TOKEN_WEIGHTS,
)

OWN_CREDIT = "trl"  # keep the advantages TRL computed
BY_TOKENS = ("dapo", "cispo", "vespo")  # losses that take their denominator from the batch


def _option(default: Any, doc: str) -> Any:
    return field(default=default, metadata={"help": doc})


@dataclass
class PoiseConfig(GRPOConfig):
    """
    Example:
        PoiseConfig(output_dir="out", steps_per_generation=4, gradient_accumulation_steps=1,
                    num_generations=8, composer="grouped", tau=0.25)
    """

    composer: str = _option("grouped", "which rollouts share an optimizer step; 'grouped' is QB")
    tau: float = _option(0.0, "RB: update only on batches with min(N+, N-) >= tau |B|; 0 is off")
    balance_unit: str = _option(
        "rollout", "RB: 'rollout' drops surplus inside groups, 'group' chooses whole groups"
    )
    balance_target: int = _option(0, "RB: rollouts of an update; 0 is those of a generation")
    max_age: int = _option(4, "RB: generations a rollout may wait for its batch")
    max_refills: int = _option(
        8, "RB: further generations before an update; the run stops when they do not balance it"
    )
    credit: str = _option(
        "grpo", "rewards of a group -> advantages: a name of ours, or 'trl' for TRL's own"
    )
    credit_weights: str = _option(UNIFORM, "token weights on top of the advantage")
    credit_settings: list[str] = field(
        default_factory=list,
        metadata={"help": "of the token weights, each 'name=value'; docs/credit.md lists them"},
    )
    denominator: str = _option(
        "step",
        "what the loss is averaged over: 'step' (the optimizer step's own tokens or rows) or 'trl'",
    )
    monitor_every: int = _option(
        0, "optimizer steps between looks of the microscope, logged under poise/; 0 is off"
    )
    run_folder: str = _option(
        "",
        "where plans, rollouts and what the microscope saw are kept, for `poise report` and "
        "`poise look`; '' is nowhere",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        COMPOSERS.load(self.composer)
        _known("balance unit", self.balance_unit, BALANCE_UNITS)
        _known("credit", self.credit, (*ADVANTAGES, OWN_CREDIT))
        _known("token weights", self.credit_weights, TOKEN_WEIGHTS)
        _known("denominator", self.denominator, ("step", "trl"))
        for check in (self._sizes, self._credit, self._weights, self._average):
            if reason := check():
                raise PoiseError(reason)

    @property
    def optimizer_steps(self) -> int:
        """Optimizer steps that one generation is planned into."""
        steps: int = self.steps_per_generation // self.gradient_accumulation_steps
        return steps

    def _sizes(self) -> str:
        passes, together = self.steps_per_generation, self.gradient_accumulation_steps
        if passes % together:
            return (
                f"steps_per_generation={passes} is no multiple of gradient_accumulation_steps="
                f"{together}: an optimizer step would span two generations"
            )
        G, steps = self.num_generations, self.optimizer_steps
        groups = self.generation_batch_size // G
        if self.tau and self.balance_target:
            groups = min(groups, -(-self.balance_target // G))
        if self.composer == "grouped" and groups < steps:
            return (
                f"{groups} groups cannot fill {steps} optimizer steps whole: "
                "lower steps_per_generation or raise per_device_train_batch_size"
            )
        if self.composer in COMPOSERS_THAT_READ_TOKENS:
            return f"composer='{self.composer}' compares tokens, and a plan has none: use 'grouped'"
        if self.composer == "whole" and steps > 1:
            return (
                "composer='whole' makes one step: set steps_per_generation as low as "
                "gradient_accumulation_steps"
            )
        if min(self.balance_target, self.max_refills, self.max_age, self.monitor_every) < 0:
            return "balance_target, max_age, max_refills and monitor_every cannot be negative"
        if not 0 <= self.tau <= 0.5:
            return f"tau={self.tau} is no share of the rarer sign: choose one from 0 to 0.5"
        if self.run_folder and self.num_iterations > 1:
            return (
                "run_folder keeps one update of a rollout, and num_iterations="
                f"{self.num_iterations} makes several: set run_folder='' or num_iterations=1"
            )
        return ""

    def _credit(self) -> str:
        if self.tau and self.credit == "positive_only":
            return "credit='positive_only' has no negative rollouts to balance: set tau=0"
        if self.credit == OWN_CREDIT:
            return ""
        if self.scale_rewards != "group":
            return (
                f"scale_rewards='{self.scale_rewards}' belongs to TRL's advantages: set "
                "credit='trl', or credit='dr_grpo' for no scaling"
            )
        if self.multi_objective_aggregation != "sum_then_normalize":
            return "multi_objective_aggregation belongs to TRL's advantages: set credit='trl'"
        return ""

    def _weights(self) -> str:
        name = self.credit_weights
        parse_settings(name, TOKEN_WEIGHTS.load(name), self.credit_settings, "credit_settings")
        if name == UNIFORM:
            return ""
        if self.credit == OWN_CREDIT:
            return "credit='trl' takes no credit_weights: choose a credit of ours"
        if name in BY_TEXT:
            return f"credit_weights='{name}' reads texts, and TRL hands over tokens: choose another"
        if self.mask_truncated_completions:
            return (
                f"credit_weights='{name}' weighs every rollout, truncated ones too: set "
                "mask_truncated_completions=False"
            )
        return ""

    def _average(self) -> str:
        bonus = self.entropy_coef != 0.0 or self.use_adaptive_entropy
        if self.denominator == "step" and bonus and self.loss_type not in BY_TOKENS:
            return (
                f"an entropy bonus with loss_type='{self.loss_type}' has TRL's own average: set "
                "denominator='trl' or loss_type='dapo'"
            )
        return ""


def _known(kind: str, name: str, choices: Iterable[str]) -> None:
    if name not in (choices := tuple(choices)):
        raise unknown(kind, name, choices)
