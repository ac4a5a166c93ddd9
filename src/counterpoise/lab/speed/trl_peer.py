"""TRL's GRPOTrainer on the same work: the one file that knows it.

Settings are the fastest sensible ones of its transformers backend: SDPA, no dropout, nothing logged
or saved, the loss in as few micro-batches as memory allows. One optimizer step per generation,
which is also its default. The update is ours: token mean (`dapo`), clip 0.2 and 0.28, no KL, AdamW,
gradients clipped to 1, a constant learning rate. Weights are bfloat16 on both sides; ours keeps
float32 masters on top, TRL does not.

TRL comes with gradient checkpointing on, which is leaner and slower: both are measured. It steps
inside `train`, so ours takes its turns in a callback between the steps.
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
from counterpoise.lab.speed import workload
from counterpoise.lab.speed.clock import PeakMemory, Timing, release, synchronize
from counterpoise.lab.speed.iteration import IterationTimings
from counterpoise.lab.speed.machine_sizes import package_version
from counterpoise.lab.speed.workload import LEARNING_RATE, Workload
from counterpoise.model.load import Policy

NOT_INSTALLED = "not installed: pip install trl==1.16.0"
ACTIVATION_MEMORY_SHARE = (
    0.5  # of the device's memory that the activations of one micro-batch may take
)


@dataclass(slots=True)
class TrlMeter:
    """Fills up while TRL trains. `between` is called after every `block` measured steps."""

    device: torch.device
    peak: PeakMemory  # of the steps before the first interruption: afterwards memory is not TRL's alone
    warm_up: int
    repeats: int
    block: int
    between: Callable[[], None] | None
    step_seconds: list[float] = field(default_factory=list)
    sampling_seconds: list[float] = field(default_factory=list)
    prepare_seconds: list[float] = field(default_factory=list)  # sampling, rewards and advantages
    tokens: int = 0
    step_start: float = 0.0  # the clock runs from the end of one step to the end of the next

    def now(self) -> float:
        synchronize(self.device)
        return time.perf_counter()

    def end_step(self) -> None:
        self.step_seconds.append(self.now() - self.step_start)
        measured = len(self.step_seconds) - self.warm_up
        if measured <= self.block:
            self.peak.read()
        if self.between and measured % self.block == 0 and 0 < measured < self.repeats:
            self.between()
        self.step_start = self.now()

    def summarize(self, steps: int) -> IterationTimings:
        update = [
            whole - ready
            for whole, ready in zip(self.step_seconds, self.prepare_seconds, strict=True)
        ]
        parts = (self.step_seconds, self.sampling_seconds, update)
        whole, sampling, updates = (Timing(tuple(values[self.warm_up :])) for values in parts)
        each = steps // len(self.step_seconds)
        allocated, reserved = self.peak.allocated, self.peak.reserved
        return IterationTimings(whole, sampling, updates, self.tokens, each, allocated, reserved)


def trl_installed() -> bool:
    return package_version("trl") is not None


def train_with_trl(
    job: Workload,
    policy: Policy,
    *,
    repeats: int,
    warm_up: int,
    block: int = 3,
    between: Callable[[], None] | None = None,
    checkpointing: bool = False,
    **options: Any,
) -> IterationTimings:
    """Train `policy.model` by TRL for `warm_up + repeats` steps.

    A micro-batch that does not fit is halved, and the run starts again.
    """
    micro_batches = 1 if checkpointing else _micro_batches(job, policy)
    while True:
        meter = TrlMeter(policy.device, PeakMemory(policy.device), warm_up, repeats, block, between)
        settings = _settings(job, policy, micro_batches, warm_up + repeats)
        settings |= {"gradient_checkpointing": checkpointing} | options
        try:
            return _train(job, policy, meter, settings)
        except torch.OutOfMemoryError:
            if micro_batches >= job.prompts:
                raise
            micro_batches *= 2
        release(policy.device)


def _train(
    job: Workload, policy: Policy, meter: TrlMeter, settings: dict[str, Any]
) -> IterationTimings:
    from transformers import PrinterCallback
    from trl import GRPOConfig

    texts = workload.make_texts(policy.tokenizer, job.prompts) * settings["max_steps"]
    with tempfile.TemporaryDirectory(prefix="poise-trl-") as folder:
        meter.peak.start()
        trainer = _trainer(policy, GRPOConfig(output_dir=folder, **settings), texts, meter)
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(_callback(meter))
        trainer.train()
    return meter.summarize(trainer.state.global_step)


def _settings(job: Workload, policy: Policy, micro_batches: int, steps: int) -> dict[str, Any]:
    ours = UpdateConfig()
    return {
        "max_steps": steps, "use_cpu": policy.device.type == "cpu",
        "bf16": policy.decoder.dtype == torch.bfloat16, "disable_dropout": True,
        "per_device_train_batch_size": job.rollouts // micro_batches,
        "gradient_accumulation_steps": micro_batches, "num_generations": job.group_size,
        "max_completion_length": job.length, "generation_kwargs": {"min_new_tokens": job.length},
        "temperature": 1.0, "beta": 0.0, "loss_type": "dapo", "scale_rewards": "group",
        "epsilon": ours.clip_low, "epsilon_high": ours.clip_high, "learning_rate": LEARNING_RATE,
        "lr_scheduler_type": "constant", "weight_decay": ours.weight_decay,
        "max_grad_norm": ours.max_grad_norm, "adam_beta2": ours.beta2,
        "shuffle_dataset": False, "report_to": "none", "logging_strategy": "no",
        "save_strategy": "no", "disable_tqdm": True, "seed": 0,
    }  # fmt: skip


def _trainer(policy: Policy, config: Any, texts: Sequence[str], meter: TrlMeter) -> Any:
    """A GRPOTrainer that times its own sampling; the reward is `work.alternate`."""
    from datasets import Dataset
    from trl import GRPOTrainer

    class Timed(GRPOTrainer):
        def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
            start = meter.now()
            drawn = super()._generate_single_turn(*args, **kwargs)
            meter.sampling_seconds.append(meter.now() - start)
            meter.tokens = sum(map(len, drawn[0]))
            return drawn

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            start = meter.now()
            made = super()._generate_and_score_completions(inputs)
            meter.prepare_seconds.append(meter.now() - start)
            return made

    def reward(completions: Sequence[str], **_: Any) -> list[float]:
        return workload.alternating_rewards(len(completions))

    return Timed(
        model=policy.model, reward_funcs=reward, args=config, processing_class=policy.tokenizer,
        train_dataset=Dataset.from_dict({"prompt": list(texts)}),
    )  # fmt: skip


def _callback(meter: TrlMeter) -> Any:
    from transformers import TrainerCallback

    class Turns(TrainerCallback):
        def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
            meter.step_start = meter.now()

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            meter.end_step()

    return Turns()


def _micro_batches(job: Workload, policy: Policy) -> int:
    """So few that their activations should fit: about 14 D + 5 F numbers a token and layer."""
    if policy.device.type == "cpu":
        return 1
    config = policy.decoder.config
    width = 14 * config.hidden_size + 5 * config.intermediate_size
    tokens = job.rollouts * (workload.MAX_PROMPT_TOKENS + job.length)
    needed = tokens * config.num_hidden_layers * width * policy.decoder.unembedding.element_size()
    room = ACTIVATION_MEMORY_SHARE * torch.cuda.get_device_properties(policy.device).total_memory
    return min(job.prompts, 1 << max(0, math.ceil(math.log2(needed / room))))
