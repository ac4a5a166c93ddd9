"""Translate a run file for TRL: its support of every option, and its trainer's arguments.

Handled by us: the prompts of an iteration, the optimizer (native AdamW or SGD with its schedule;
TRL's own exempts norms from weight decay and starts its warmup at 0), the reward, the evaluation
and the run folder. Left to TRL: generation, log-probabilities, the loss and the loop over passes.

    per_device_train_batch_size * gradient_accumulation_steps * processes * batch.steps
        = sample.prompts * sample.group_size

Half precision is TRL's mixed precision over float32 weights. The native engine keeps float32 master
weights next to bfloat16 ones: the same up to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from counterpoise.config import RunConfig
from counterpoise.credit.plugin_weights import find_text_input
from counterpoise.hosts.translate_options import (
    OptionSupport,
    accept_only,
    check_support,
    handle_here,
    no_effect,
    pass_as,
    whole_section,
)
from counterpoise.hosts.trl.vllm_engine import (
    MOST_ROLLOUTS,
    cuts_the_distribution,
    sampler_arguments,
)
from counterpoise.model.adapters import find_base
from counterpoise.model.shapes import SHAPE_PREFIX
from counterpoise.plugins import display_name, is_plugin
from counterpoise.variants import (
    COMPOSERS_THAT_READ_TOKENS,
    TOKEN_WEIGHTS,
    WEIGHTS_THAT_READ_TEXTS,
)

TASK = handle_here("the task")
EVALUATION = handle_here("evaluated by us")
RUN_FOLDER = handle_here("the run folder")
PROBES = handle_here("held-out answers are followed as in the native engine")
OPTIMIZER = handle_here("the optimizer is the native one")
ROW_ARGUMENTS = ("per_device_train_batch_size", "gradient_accumulation_steps")
LOSS_TYPES = {"token_mean": "dapo", "sequence_mean": "grpo", "constant": "dr_grpo"}
IMPORTANCE_LEVELS = {"grpo": "token", "gspo": "sequence"}
WARMUP = no_effect("only `poise warmup` reads it")

# Every option of config/ needs an entry here; tests/hosts/test_translate_options.py checks it.
OPTIONS: dict[str, OptionSupport] = {
    "loop.iterations": pass_as("max_steps"),
    "loop.seed": pass_as("seed", "data_seed"),
    "loop.checkpoint_every": RUN_FOLDER,
    "loop.keep_checkpoints": RUN_FOLDER,
    "loop.threads": handle_here("threads of this process"),
    "model.name": handle_here("the model is loaded by us"),
    "model.device": pass_as("use_cpu"),
    "model.dtype": pass_as("bf16"),
    "model.path": no_effect("TRL runs the model itself"),
    "model.lora_rank": accept_only(0, reason="LoRA trains with --engine native"),
    "model.lora_alpha": no_effect("only with model.lora_rank"),
    "model.lora_targets": no_effect("only with model.lora_rank"),
    "model.template": handle_here(
        "prompts are rendered as in the native engine",
        values=("auto", "chat", "chat-boxed", "boxed"),
        refused_because="TRL does not stop a response at a template's own end tokens",
    ),
    "task.name": TASK,
    "task.levels": TASK,
    "task.slips": TASK,
    "task.size": TASK,
    "task.heldout": TASK,
    "task.path": TASK,
    "task.heldout_path": TASK,
    "task.benchmarks": TASK,
    "task.train_split": TASK,
    "task.heldout_split": TASK,
    "task.problem_field": TASK,
    "task.answer_field": TASK,
    "task.id_field": TASK,
    "task.solution_field": TASK,
    "task.generic_field": TASK,
    "task.dataset": TASK,
    "task.settings": TASK,
    "task.seed": TASK,
    "task.environment": accept_only("none", reason="TRL's sampler does not reply to a response"),
    "task.turns": no_effect("only with task.environment"),
    "sample.prompts": pass_as("per_device_train_batch_size"),
    "sample.group_size": pass_as("num_generations"),
    "sample.choose": accept_only("epochs", reason="the adapter takes prompts in epochs"),
    "sample.memory_visits": no_effect("only with sample.choose"),
    "sample.retry_after": no_effect("only with sample.choose"),
    "sample.max_new_tokens": pass_as("max_completion_length"),
    "sample.max_prompt_tokens": handle_here("longer prompts are left out before TRL sees them"),
    "sample.temperature": pass_as("temperature"),
    "sample.top_p": pass_as("top_p"),
    "sample.top_k": pass_as("top_k"),
    "sample.refills": accept_only(0, reason="TRL trains on every generation as it was sampled"),
    "sample.anchors": accept_only(0, reason="TRL samples a whole group after the same prompt"),
    "sample.engine": pass_as("use_vllm"),
    "sample.engine_memory": pass_as("vllm_gpu_memory_utilization"),
    "verify.name": handle_here("the reward"),
    "verify.timeout_seconds": handle_here("the reward"),
    "verify.reward_timeout_seconds": handle_here("the reward"),
    "verify.workers": handle_here("the reward"),
    "verify.also": accept_only([], reason="the adapter takes one reward for each rollout"),
    "verify.overlong_tokens": no_effect("only with verify.also"),
    "credit.name": pass_as("credit"),
    "credit.weights": pass_as(
        "credit_weights",
        values=tuple(name for name in TOKEN_WEIGHTS.choices if name not in WEIGHTS_THAT_READ_TEXTS),
        reason="it reads texts, and TRL hands over tokens of its batch",
    ),
    "credit.settings": pass_as("credit_settings"),
    "credit.mixture": no_effect("only with verify.also"),
    "credit.rule": accept_only("off", reason="TRL's loss cannot apply a rule"),
    "credit.rule_settings": no_effect("only with credit.rule"),
    "balance.tau": pass_as("tau"),
    "balance.unit": pass_as("balance_unit"),
    "balance.sign": accept_only(
        "advantage", reason="the rows that TRL's plans carry have no rewards"
    ),
    "balance.target": pass_as("balance_target"),
    "balance.max_age": pass_as("max_age"),
    "batch.composer": pass_as("composer"),
    "batch.steps": pass_as("steps_per_generation"),
    "batch.rows_per_step": accept_only(0, reason="TRL cuts a generation into equal steps"),
    "batch.drop_silent": accept_only(False, reason="TRL cuts a generation into equal steps"),
    "update.lr": OPTIMIZER,
    "update.optimizer": OPTIMIZER,
    "update.weight_decay": OPTIMIZER,
    "update.beta2": OPTIMIZER,
    "update.warmup_steps": OPTIMIZER,
    "update.schedule": OPTIMIZER,
    "update.final_lr_share": OPTIMIZER,
    "update.max_grad_norm": pass_as("max_grad_norm"),
    "update.surrogate": pass_as(
        "importance_sampling_level",
        values=tuple(IMPORTANCE_LEVELS),
        reason="TRL's cispo has no lower clip, and it has no plain reinforce, dppo or drpo",
    ),
    "update.clip_low": pass_as("epsilon"),
    "update.clip_high": pass_as("epsilon_high"),
    "update.clip_dual": pass_as("delta"),
    "update.aggregate": pass_as(
        "loss_type", values=tuple(LOSS_TYPES), reason="TRL has no such average"
    ),
    "update.mask_truncated": accept_only(
        False, reason="TRL does not score a masked response, and the run folder stores its scores"
    ),
    "update.kl": pass_as("beta"),
    "update.kl_estimator": accept_only("k3", reason="TRL's KL is k3"),
    "update.kl_in": accept_only("loss", reason="TRL's KL is in the loss"),
    "update.kl_control": accept_only("fixed", reason="TRL's beta is one number"),
    "update.kl_settings": no_effect("only with update.kl_control"),
    "update.entropy_bonus": accept_only(
        0.0, reason="TRL averages the entropy over a pass, not over the step"
    ),
    "update.old_logprobs": accept_only("trainer", reason="TRL scores rollouts by the trainer"),
    "update.trajectory": accept_only("off", reason="TRL's loss has its own ratio and clip"),
    "update.importance": pass_as(
        "vllm_importance_sampling_correction", "vllm_importance_sampling_mode"
    ),
    "update.importance_cap": pass_as("vllm_importance_sampling_clip_max"),
    "update.importance_mode": pass_as("vllm_importance_sampling_mode"),
    "update.micro_tokens": pass_as(*ROW_ARGUMENTS),
    "update.capture": no_effect("speed of the native engine only"),
    "update.repeatable": accept_only(False, reason="TRL does not fix the order of sums"),
    "update.checkpointing": pass_as("gradient_checkpointing"),
    "evaluate.prompts": EVALUATION,
    "evaluate.samples": EVALUATION,
    "evaluate.settings": EVALUATION,
    "evaluate.every": EVALUATION,
    "evaluate.benchmarks": accept_only([], reason="only the native engine evaluates them"),
    "evaluate.data": no_effect("only with evaluate.benchmarks"),
    "evaluate.limit": no_effect("only with evaluate.benchmarks"),
    **whole_section("warmup", WARMUP),
    "monitor.every": handle_here("the microscope measures as in the native engine"),
    "monitor.tokens": handle_here("the microscope measures as in the native engine"),
    "monitor.watch": handle_here("the microscope measures as in the native engine"),
    "monitor.probe": PROBES,
    "monitor.probe_refresh": PROBES,
    "monitor.probe_every": PROBES,
    "monitor.probe_through": accept_only(
        "output_layer", reason="only the native engine reads other layers"
    ),
    "monitor.probe_file": PROBES,
    "store.rollouts": RUN_FOLDER,
    "store.tokens": RUN_FOLDER,
    "store.model": RUN_FOLDER,
    "store.report": RUN_FOLDER,
    "track.to": RUN_FOLDER,
}

# What the native engine does without an option for it: set explicitly, whatever TRL's defaults are.
FIXED_ARGUMENTS: dict[str, Any] = {
    "entropy_coef": 0.0, "num_iterations": 1, "scale_rewards": "group",
    "use_bias_correction_kl": False, "mask_truncated_completions": False,
    "top_entropy_quantile": 1.0, "repetition_penalty": 1.0, "min_p": None,
    "denominator": "step", "disable_dropout": True, "lr_scheduler_type": "constant",
    "warmup_steps": 0, "monitor_every": 0, "shuffle_dataset": False, "ignore_data_skip": True,
    "logging_strategy": "steps", "logging_steps": 1, "save_strategy": "no",
    "report_to": "none", "disable_tqdm": True,
}  # fmt: skip


def check_options(config: RunConfig, processes: int = 1) -> None:
    """Raise unless TRL can honour every option; the message names those it cannot."""
    rollouts, steps = config.sample.prompts * config.sample.group_size, config.batch.steps
    faults = []
    if rollouts % (steps * processes):
        where = f" on {processes} processes" if processes > 1 else ""
        faults = [
            f"sample.prompts={config.sample.prompts} x sample.group_size="
            f"{config.sample.group_size} in batch.steps={steps}{where} (TRL needs equal parts)"
        ]
    if config.batch.composer in COMPOSERS_THAT_READ_TOKENS:
        faults.append(
            f"batch.composer={config.batch.composer} (it compares tokens, TRL's plans have none)"
        )
    if config.update.kl and config.model.name.startswith(SHAPE_PREFIX):
        faults.append(
            f"update.kl={config.update.kl:g} with model.name={config.model.name} (TRL loads its "
            "reference from a folder or a hub id)"
        )
    if find_base(config.model.name):
        faults.append(f"model.name={config.model.name} (an adapter trains with --engine native)")
    if config.sample.engine == "vllm" and config.model.dtype == "float32":
        faults.append("model.dtype=float32 with sample.engine=vllm (it samples in half precision)")
    if config.sample.engine == "vllm" and rollouts > MOST_ROLLOUTS * processes:
        faults.append(
            f"sample.prompts={config.sample.prompts} x sample.group_size="
            f"{config.sample.group_size} with sample.engine=vllm (more than {MOST_ROLLOUTS:,} "
            "rollouts of a process)"
        )
    faults += _importance_faults(config)
    weights = config.credit.weights
    if is_plugin(weights) and (text_input := find_text_input(weights)):
        faults.append(
            f"credit.weights={display_name(weights)} (it reads {text_input}, and TRL hands over "
            "tokens)"
        )
    check_support(config, OPTIONS, "trl", faults)


def _importance_faults(config: RunConfig) -> list[str]:
    """TRL corrects for vLLM alone, by log-probabilities after a top-p or top-k cut."""
    setting = f"update.importance={config.update.importance}"
    if config.update.importance == "off":
        return []
    if config.sample.engine != "vllm":
        return [
            f"{setting} (TRL's transformers sampler is the trainer: there is nothing to correct)"
        ]
    if cuts_the_distribution(config.sample.top_p, config.sample.top_k):
        return [
            f"{setting} with sample.top_p={config.sample.top_p:g} and sample.top_k="
            f"{config.sample.top_k} (vLLM gives TRL log-probabilities of the cut distribution)"
        ]
    return []


def trainer_arguments(
    config: RunConfig,
    *,
    longest_prompt: int,
    half: bool,
    cpu: bool,
    processes: int = 1,
    end_tokens: Sequence[int] = (),
) -> dict[str, Any]:
    """The arguments of `PoiseConfig`; `half` and `cpu` are what `auto` means on this machine.

    `end_tokens` of the model end a response of vLLM.
    """
    sample, update, steps = config.sample, config.update, config.batch.steps
    rows = sample.prompts * sample.group_size // (steps * processes)
    # A balanced batch may be larger than a generation, and its passes must fit into memory too.
    most_rows = -(
        -max(config.balance_target, sample.prompts * sample.group_size) // (steps * processes)
    )
    length = min(longest_prompt, sample.max_prompt_tokens) + sample.max_new_tokens
    passes = fewest_passes(rows, most_rows, max(1, update.micro_tokens // length))
    return {
        **FIXED_ARGUMENTS,
        "max_steps": config.loop.iterations * steps,
        "seed": config.loop.seed,
        "data_seed": config.loop.seed,
        "use_cpu": cpu,
        "bf16": half,
        "per_device_train_batch_size": rows // passes,
        "gradient_accumulation_steps": passes,
        "steps_per_generation": steps * passes,
        "num_generations": sample.group_size,
        "max_completion_length": sample.max_new_tokens,
        "temperature": sample.temperature,
        "top_p": sample.top_p,
        "top_k": sample.top_k,
        "credit": config.credit.name,
        "credit_weights": config.credit.weights,
        "credit_settings": list(config.credit.settings),
        "tau": config.balance.tau,
        "balance_unit": config.balance.unit,
        "balance_target": config.balance.target,
        "max_age": config.balance.max_age,
        "max_refills": config.loop.iterations,  # never reached: the run ends before
        "composer": config.batch.composer,
        "learning_rate": update.lr,  # for TRL's log only: the optimizer is ours
        "max_grad_norm": update.max_grad_norm,
        "loss_type": LOSS_TYPES[update.aggregate],
        "importance_sampling_level": IMPORTANCE_LEVELS[update.surrogate],
        "epsilon": update.clip_low,
        "epsilon_high": update.clip_high,
        "delta": update.clip_dual or None,
        "beta": update.kl,
        "gradient_checkpointing": update.checkpointing,
        **sampler_arguments(config, length, end_tokens),
    }


def fewest_passes(rows: int, most_rows: int, rows_that_fit: int) -> int:
    """The fewest equal passes over a step's `rows` such that each fits into memory.

    A balanced step may have up to `most_rows`.

    Example:
        >>> fewest_passes(32, 32, 17), fewest_passes(32, 32, 100), fewest_passes(6, 6, 4)
        (2, 1, 2)
    """
    return next(
        passes
        for passes in range(1, rows + 1)
        if rows % passes == 0 and (passes == rows or most_rows <= passes * rows_that_fit)
    )


def format_arguments(config: RunConfig) -> str:
    """The arguments as Python code to copy, for prompts of full length."""
    check_options(config)
    device, dtype = config.model.device, config.model.dtype
    arguments = trainer_arguments(
        config,
        longest_prompt=config.sample.max_prompt_tokens,
        half=dtype == "bfloat16" or (dtype == "auto" and device != "cpu"),
        cpu=device == "cpu",
    )
    texts = {name: repr(value) for name, value in arguments.items()}
    # Where the machine decides, as in choose_device and choose_dtype, so does the code.
    if device == "auto":
        texts["use_cpu"] = "not torch.cuda.is_available()"
        texts["bf16"] = "torch.cuda.is_available()" if dtype == "auto" else texts["bf16"]
    lines = [f"    {name}={text}," for name, text in texts.items()]
    return "\n".join(["PoiseConfig(", *lines, ")"])
