"""Every option of a run, with its default and its reason, in one place.

A run is a TOML file of these sections; `load.py` reads and writes them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from counterpoise.config.option import option
from counterpoise.config.run_options import (
    EvaluateConfig,
    LoopConfig,
    MonitorConfig,
    StoreConfig,
    TrackConfig,
    WarmupConfig,
)
from counterpoise.config.stage_options import (
    BalanceConfig,
    BatchConfig,
    CreditConfig,
    ModelConfig,
    SampleConfig,
    TaskConfig,
    UpdateConfig,
    VerifyConfig,
)

__all__ = [
    "BalanceConfig", "BatchConfig", "CreditConfig", "EvaluateConfig", "LoopConfig", "ModelConfig",
    "MonitorConfig", "RunConfig", "SampleConfig", "StoreConfig", "TaskConfig", "TrackConfig",
    "UpdateConfig", "VerifyConfig", "WarmupConfig", "option",
]  # fmt: skip


@dataclass(frozen=True)
class RunConfig:
    """The whole run. `RunConfig()` is a valid one: the embedded model on word problems."""

    loop: LoopConfig = field(default_factory=LoopConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    task: TaskConfig = field(default_factory=TaskConfig)
    sample: SampleConfig = field(default_factory=SampleConfig)
    verify: VerifyConfig = field(default_factory=VerifyConfig)
    credit: CreditConfig = field(default_factory=CreditConfig)
    balance: BalanceConfig = field(default_factory=BalanceConfig)
    batch: BatchConfig = field(default_factory=BatchConfig)
    update: UpdateConfig = field(default_factory=UpdateConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    warmup: WarmupConfig = field(default_factory=WarmupConfig)
    monitor: MonitorConfig = field(default_factory=MonitorConfig)
    store: StoreConfig = field(default_factory=StoreConfig)
    track: TrackConfig = field(default_factory=TrackConfig)

    @property
    def balance_target(self) -> int:
        """Rollouts of an update batch under reward balance."""
        return self.balance.target or self.sample.prompts * self.sample.group_size

    @property
    def max_optimizer_steps(self) -> int:
        """The most optimizer steps that the run can take: the length of its schedule.

        Reward balance that waits, or batch.rows_per_step and rows without signal, make it fewer.
        """
        return self.loop.iterations * self.max_steps_per_iteration

    @property
    def max_steps_per_iteration(self) -> int:
        """batch.steps, or as many steps as batch.rows_per_step makes of a batch full of signal."""
        if not self.batch.rows_per_step:
            return self.batch.steps
        num_rollouts = self.sample.prompts * self.sample.group_size
        if self.balance.tau:
            return max(1, self.balance_target // self.batch.rows_per_step)
        # No more steps than groups: a composer may keep them whole.
        return max(1, min(num_rollouts // self.batch.rows_per_step, self.sample.prompts))

    @property
    def decays_over_run(self) -> bool:
        """Whether the learning rate, or the coefficient of a step rule, decays over the run.

        With another loop.iterations, the steps already taken would then have been different.
        """
        settings = [setting.partition("=") for setting in self.credit.rule_settings]
        rule_decays = self.credit.rule == "sdpg" and any(
            name.strip() == "decay" and int(value) > 0 for name, _, value in settings
        )
        return self.update.schedule != "constant" or rule_decays

    @property
    def kl_columns(self) -> tuple[str, ...]:
        """The data column that update.kl_settings names (column=...), if any.

        Each of its values has a KL coefficient of its own.
        """
        settings = [setting.partition("=") for setting in self.update.kl_settings]
        return tuple(value.strip() for name, _, value in settings if name.strip() == "column")

    @property
    def has_prompt_memory(self) -> bool:
        """Whether prompts are chosen by past success, which the run then remembers."""
        return self.sample.choose != "epochs"

    @property
    def steers_by_probes(self) -> bool:
        """Whether credit or the choice of prompts reads the steering half of the probes."""
        return "aligned" in (self.credit.weights, self.sample.choose)

    @property
    def drops_silent_rows(self) -> bool:
        """Whether rows without signal are left out of the batch."""
        is_balanced_by_advantage = self.balance.tau > 0 and self.balance.sign == "advantage"
        return is_balanced_by_advantage or self.batch.drop_silent
