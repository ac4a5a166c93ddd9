"""TRL's options and ours in one dataclass; a combination we cannot honour stops before training."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from trl import GRPOConfig

from counterpoise.config.check_variants import (
    EngineWords,
    composer_fault,
    credit_fault,
    group_fault,
)
from counterpoise.credit.assign import UNIFORM, parse_settings
from counterpoise.credit.plugin_weights import find_text_input
from counterpoise.errors import PoiseError, check_choice
from counterpoise.plugins import display_name, is_plugin
from counterpoise.variants import (
    ADVANTAGES,
    BALANCE_UNITS,
    COMPOSERS,
    TOKEN_WEIGHTS,
    WEIGHTS_THAT_READ_TEXTS,
)

TRL_CREDIT = "trl"  # keep the advantages TRL computed
# Losses that TRL divides by the batch's `num_items_in_batch`.
TOKEN_AVERAGED_LOSSES = ("dapo", "cispo", "vespo")
WORDS = EngineWords(
    composer="composer='{}'",
    token_weights="credit_weights='{}'",
    credit="credit='{}'",
    no_balance="tau=0",
    one_step="set steps_per_generation to gradient_accumulation_steps",
    two_steps="raise steps_per_generation to twice gradient_accumulation_steps",
    fewer_steps="lower steps_per_generation",
    prompts="per_device_train_batch_size",
    balance_target="balance_target",
    steps="optimizer steps",
    trainer="TRL",
)


def _option(default: Any, doc: str) -> Any:
    return field(default=default, metadata={"help": doc})


@dataclass
class PoiseConfig(GRPOConfig):
    """TRL's GRPOConfig with the options of PoiseGRPOTrainer.

    Example:
        PoiseConfig(output_dir="out", steps_per_generation=4, gradient_accumulation_steps=1,
                    num_generations=8, composer="grouped", tau=0.25)
    """

    composer: str = _option("grouped", "which rollouts share an optimizer step; 'grouped' is QB")
    tau: float = _option(0.0, "RB: update only on batches with min(N+, N-) >= tau |B|; 0 is off")
    balance_unit: str = _option(
        "rollout", "RB: 'rollout' drops surplus inside groups, 'group' chooses whole groups"
    )
    balance_target: int = _option(0, "RB: rollouts of an update; 0 is as many as a generation has")
    max_age: int = _option(4, "RB: generations that a rollout may wait for its batch")
    max_refills: int = _option(
        8, "RB: further generations before an update; the run stops if none makes a balanced batch"
    )
    credit: str = _option(
        "grpo", "rewards of a group -> advantages: one of ours by name, or 'trl' for TRL's own"
    )
    credit_weights: str = _option(UNIFORM, "token weights on top of the advantage")
    credit_settings: list[str] = field(
        default_factory=list,
        metadata={
            "help": "settings of the token weights, each 'name=value'; see "
            "docs/reference/credit-methods.md"
        },
    )
    denominator: str = _option(
        "step",
        "what the loss is averaged over: 'step' (the optimizer step's own tokens or rows) or 'trl'",
    )
    monitor_every: int = _option(
        0, "optimizer steps between measurements of the microscope, logged under poise/; 0 is off"
    )
    probe: int = _option(
        0,
        "held-out answers to follow for `poise trace`: right (reward above 0) and wrong responses "
        "of the model to the first problems of eval_dataset; 0: none, or all those of probe_file",
    )
    probe_every: int = _option(
        0,
        "generations between two measurements of the held-out answers; 0: so many that the answers "
        "take at most about a tenth of the run's time",
    )
    probe_refresh: int = _option(
        20, "generations until held-out answers are drawn anew, as the model changes; 0: never"
    )
    probe_file: str = _option(
        "", "follow these answers instead: lines with prompt, response, reward, prompt_id"
    )
    run_folder: str = _option(
        "",
        "folder for plans, rollouts and the microscope's measurements, which `poise report` and "
        "`poise look` read; '' writes none",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        COMPOSERS.load(self.composer)
        check_choice("balance unit", self.balance_unit, BALANCE_UNITS)
        check_choice("credit", self.credit, (*ADVANTAGES, TRL_CREDIT))
        TOKEN_WEIGHTS.load(self.credit_weights)
        check_choice("denominator", self.denominator, ("step", "trl"))
        # Each returns what is wrong as one line, or "".
        for find_fault in (
            self._size_fault,
            self._credit_fault,
            self._weights_fault,
            self._denominator_fault,
            self._probe_fault,
        ):
            if fault := find_fault():
                raise PoiseError(fault)

    @property
    def optimizer_steps(self) -> int:
        """Optimizer steps of one generation."""
        steps: int = self.steps_per_generation // self.gradient_accumulation_steps
        return steps

    @property
    def follows_probes(self) -> bool:
        return bool(self.probe or self.probe_file)

    @property
    def monitor_option(self) -> str:
        """The option that asks for the monitor; "" where none does."""
        return "monitor_every" if self.monitor_every else "probe" if self.follows_probes else ""

    def _probe_fault(self) -> str:
        if min(self.probe, self.probe_every, self.probe_refresh) < 0:
            return "probe, probe_every and probe_refresh cannot be negative"
        if self.follows_probes and not self.run_folder:
            return "probe writes to run_folder: set it, or set probe=0 and probe_file=''"
        return ""

    def _size_fault(self) -> str:
        passes, accumulated = self.steps_per_generation, self.gradient_accumulation_steps
        if passes % accumulated:
            return (
                f"steps_per_generation={passes} is not a multiple of gradient_accumulation_steps="
                f"{accumulated}: an optimizer step would span two generations"
            )
        G, steps = self.num_generations, self.optimizer_steps
        num_groups, target = self.generation_batch_size // G, self.balance_target
        if fault := composer_fault(self.composer, steps, WORDS) or group_fault(
            self.composer, steps, num_groups, G, max(0, target) if self.tau else 0, WORDS
        ):
            return fault
        if min(self.balance_target, self.max_refills, self.max_age, self.monitor_every) < 0:
            return "balance_target, max_age, max_refills and monitor_every cannot be negative"
        if not 0 <= self.tau <= 0.5:
            return f"tau={self.tau} is not a share of the rarer sign: choose one from 0 to 0.5"
        if self.run_folder and self.num_iterations > 1:
            return (
                "run_folder records one update of each rollout, and num_iterations="
                f"{self.num_iterations} makes several: set run_folder='' or num_iterations=1"
            )
        return ""

    def _credit_fault(self) -> str:
        if fault := credit_fault(self.credit, self.credit_weights, self.tau > 0, WORDS):
            return fault
        if self.credit == TRL_CREDIT:
            return ""
        # TRL's options below change how TRL computes advantages, which our credit replaces.
        if self.scale_rewards != "group":
            return (
                f"scale_rewards='{self.scale_rewards}' belongs to TRL's advantages: set "
                "credit='trl', or credit='dr_grpo' for no scaling"
            )
        if self.multi_objective_aggregation != "sum_then_normalize":
            return "multi_objective_aggregation belongs to TRL's advantages: set credit='trl'"
        return ""

    def _weights_fault(self) -> str:
        name = self.credit_weights
        parse_settings(name, TOKEN_WEIGHTS.load(name), self.credit_settings, "credit_settings")
        if name == UNIFORM:
            return ""
        if self.credit == TRL_CREDIT:
            return (
                "credit='trl' takes no credit_weights: set credit to one of Counterpoise's, such "
                "as 'grpo', or credit_weights='uniform'"
            )
        if is_plugin(name) and (text_input := find_text_input(name)):
            return (
                f"credit_weights='{display_name(name)}' reads {text_input}, and TRL hands over "
                "tokens: use the parameter `pieces` instead"
            )
        if name in WEIGHTS_THAT_READ_TEXTS:
            return (
                f"credit_weights='{name}' reads texts or generic responses, and TRL hands over "
                "tokens: choose another"
            )
        # Weights are computed for every token; TRL would mask some of them out afterwards.
        if self.mask_truncated_completions:
            return (
                f"credit_weights='{name}' weighs every rollout, truncated ones too: set "
                "mask_truncated_completions=False"
            )
        return ""

    def _denominator_fault(self) -> str:
        # TRL averages the bonus by pass, so scaling the pass's loss would scale the bonus wrongly.
        has_entropy_bonus = self.entropy_coef != 0.0 or self.use_adaptive_entropy
        if (
            self.denominator == "step"
            and has_entropy_bonus
            and self.loss_type not in TOKEN_AVERAGED_LOSSES
        ):
            return (
                f"with loss_type='{self.loss_type}' TRL averages the entropy bonus by pass, which "
                "denominator='step' cannot correct: set denominator='trl' or loss_type='dapo'"
            )
        # TRL averages these losses by pass, and the passes of a plan differ in size.
        passes = self.gradient_accumulation_steps * self.world_size
        averages_passes = self.denominator == "trl" and self.loss_type != "dapo" and passes > 1
        if self.monitor_option and averages_passes:
            return (
                f"{self.monitor_option} cannot reproduce how denominator='trl' with "
                f"loss_type='{self.loss_type}' averages over several passes: set "
                "denominator='step' or loss_type='dapo'"
            )
        return ""
