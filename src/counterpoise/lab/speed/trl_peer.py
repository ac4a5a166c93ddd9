"""Time TRL's GRPOTrainer on the same workload.

The settings are the fastest sensible ones of its transformers backend: SDPA, no dropout, nothing
logged or saved, the loss in as few micro-batches as memory allows. One optimizer step per
generation, which is also its default. The update equals ours: token mean (`dapo`), clip 0.2 and
0.28, no KL, AdamW, gradients clipped to 1, a constant learning rate. Weights are bfloat16 on both
sides; ours keeps float32 masters on top, TRL does not.

TRL enables gradient checkpointing by default, which is leaner and slower: both are measured. TRL
steps inside `train`, so our engine takes its turns in a callback between the steps.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from counterpoise.config import UpdateConfig
from counterpoise.hosts.check_versions import installed_version
from counterpoise.hosts.trl.vllm_engine import close_engine
from counterpoise.lab.speed import workload
from counterpoise.lab.speed.clock import PeakMemory, Timing, release, synchronize
from counterpoise.lab.speed.iteration import IterationTimings
from counterpoise.lab.speed.workload import LEARNING_RATE, Workload
from counterpoise.model.load import Policy

NOT_INSTALLED = "not installed: pip install trl==1.16.0"
# Share of the device's memory that the activations of one micro-batch may take.
ACTIVATION_MEMORY_SHARE = 0.5


@dataclass(slots=True)
class TrlMeter:
    """Records times while TRL trains. `between` is called after every `block` measured steps."""

    device: torch.device
    peak: PeakMemory  # before the first interruption; later, memory is not TRL's alone
    warm_up: int
    repeats: int
    block: int
    between: Callable[[], None] | None
    step_seconds: list[float] = field(default_factory=list)
    sampling_seconds: list[float] = field(default_factory=list)
    prepare_seconds: list[float] = field(default_factory=list)  # sampling, rewards and advantages
    tokens: int = 0
    step_start: float = 0.0  # a step lasts from the end of the one before to its own end

    def now(self) -> float:
        synchronize(self.device)
        return time.perf_counter()

    def end_step(self) -> None:
        self.step_seconds.append(self.now() - self.step_start)
        measured = len(self.step_seconds) - self.warm_up
        # Later blocks share the device with our engine, so their peak is not TRL's.
        if measured <= self.block:
            self.peak.read()
        if self.between and measured % self.block == 0 and 0 < measured < self.repeats:
            self.between()
        self.step_start = self.now()

    def summarize(self, steps: int) -> IterationTimings:
        update = [
            total - prepared
            for total, prepared in zip(self.step_seconds, self.prepare_seconds, strict=True)
        ]
        stage_seconds = (self.step_seconds, self.sampling_seconds, update)
        total, sampling, updates = (
            Timing(tuple(values[self.warm_up :])) for values in stage_seconds
        )
        steps_each = steps // len(self.step_seconds)
        allocated, reserved = self.peak.allocated, self.peak.reserved
        return IterationTimings(
            total, sampling, updates, self.tokens, steps_each, allocated, reserved
        )


def trl_installed() -> bool:
    return installed_version("trl") is not None


def train_with_trl(
    workload_size: Workload,
    policy: Policy,
    *,
    repeats: int,
    warm_up: int,
    block: int = 3,
    between: Callable[[], None] | None = None,
    checkpointing: bool = False,
    **options: Any,
) -> IterationTimings:
    """Train `policy.model` with TRL for `warm_up + repeats` steps.

    A micro-batch that does not fit is halved, and the run starts again. `options` go to GRPOConfig.
    """
    # Checkpointing keeps few activations, so the whole batch is tried first.
    micro_batches = 1 if checkpointing else _micro_batches(workload_size, policy)
    while True:
        meter = TrlMeter(policy.device, PeakMemory(policy.device), warm_up, repeats, block, between)
        settings = _settings(workload_size, policy, micro_batches, warm_up + repeats)
        settings |= {"gradient_checkpointing": checkpointing} | options
        try:
            return _train(workload_size, policy, meter, settings)
        except torch.OutOfMemoryError:
            if micro_batches >= workload_size.prompts:
                raise
            micro_batches *= 2
        release(policy.device)


def _train(
    workload_size: Workload, policy: Policy, meter: TrlMeter, settings: dict[str, Any]
) -> IterationTimings:
    from transformers import PrinterCallback
    from trl import GRPOConfig

    texts = workload.make_texts(policy.tokenizer, workload_size.prompts) * settings["max_steps"]
    with tempfile.TemporaryDirectory(prefix="poise-trl-") as folder:
        # Our engine loads its policy inside the measured block. This one was loaded before, so its
        # weights are added (tied weights are one parameter).
        loaded = (*policy.model.parameters(), *policy.model.buffers())
        meter.peak.start(loaded_bytes=sum(tensor.nbytes for tensor in loaded))
        trainer = _trainer(policy, GRPOConfig(output_dir=folder, **settings), texts, meter)
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(_callback(meter))
        try:
            trainer.train()
        finally:
            if settings.get("use_vllm"):
                close_engine(trainer)
    return meter.summarize(trainer.state.global_step)


def _settings(
    workload_size: Workload, policy: Policy, micro_batches: int, steps: int
) -> dict[str, Any]:
    update = UpdateConfig()
    return {
        "max_steps": steps,
        "use_cpu": policy.device.type == "cpu",
        "bf16": policy.decoder.dtype == torch.bfloat16,
        "disable_dropout": True,
        "per_device_train_batch_size": workload_size.rollouts // micro_batches,
        "gradient_accumulation_steps": micro_batches,
        "num_generations": workload_size.group_size,
        "max_completion_length": workload_size.length,
        "generation_kwargs": {"min_new_tokens": workload_size.length},
        "temperature": 1.0,
        "beta": 0.0,
        "loss_type": "dapo",
        "scale_rewards": "group",
        "epsilon": update.clip_low,
        "epsilon_high": update.clip_high,
        "learning_rate": LEARNING_RATE,
        "lr_scheduler_type": "constant",
        "weight_decay": update.weight_decay,
        "max_grad_norm": update.max_grad_norm,
        "adam_beta2": update.beta2,
        "shuffle_dataset": False,
        "report_to": "none",
        "logging_strategy": "no",
        "save_strategy": "no",
        "disable_tqdm": True,
        "seed": 0,
    }


def _trainer(policy: Policy, config: Any, texts: Sequence[str], meter: TrlMeter) -> Any:
    """A GRPOTrainer that times its own sampling; rewards alternate within each group."""
    from datasets import Dataset
    from trl import GRPOTrainer

    # These two methods are private to TRL 1.16; the version is pinned in NOT_INSTALLED.
    class Timed(GRPOTrainer):
        def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
            start = meter.now()
            outputs = super()._generate_single_turn(*args, **kwargs)
            meter.sampling_seconds.append(meter.now() - start)
            meter.tokens = sum(map(len, outputs[0]))
            return outputs

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            start = meter.now()
            outputs = super()._generate_and_score_completions(inputs)
            meter.prepare_seconds.append(meter.now() - start)
            return outputs

    def reward(completions: Sequence[str], **_: Any) -> list[float]:
        return workload.alternating_rewards(len(completions))

    return Timed(
        model=policy.model,
        reward_funcs=reward,
        args=config,
        processing_class=policy.tokenizer,
        train_dataset=Dataset.from_dict({"prompt": list(texts)}),
    )


def _callback(meter: TrlMeter) -> Any:
    from transformers import TrainerCallback

    class Turns(TrainerCallback):
        def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
            meter.step_start = meter.now()

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            meter.end_step()

    return Turns()


def _micro_batches(workload_size: Workload, policy: Policy) -> int:
    """The fewest micro-batches that should fit in memory."""
    if policy.device.type == "cpu":
        return 1
    config = policy.decoder.config
    # Activations kept for the backward pass: about 14 D + 5 F numbers per token and layer.
    width = 14 * config.hidden_size + 5 * config.intermediate_size
    tokens = workload_size.rollouts * (workload.MAX_PROMPT_TOKENS + workload_size.length)
    needed_bytes = (
        tokens * config.num_hidden_layers * width * policy.decoder.unembedding.element_size()
    )
    available_bytes = (
        ACTIVATION_MEMORY_SHARE * torch.cuda.get_device_properties(policy.device).total_memory
    )
    return min(
        workload_size.prompts, 1 << max(0, math.ceil(math.log2(needed_bytes / available_bytes)))
    )
