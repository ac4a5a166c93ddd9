"""A run file for TRL: what it makes of every option, and the arguments of its trainer.

Ours, on top of TRL: the prompts of an iteration, the optimizer (native AdamW or SGD with its linear
rise; TRL's own spares norms the weight decay and starts its rise at 0), the reward, the judging and
the run folder. TRL's: generation, log-probabilities, the loss and the loop of passes.

    per_device_train_batch_size * gradient_accumulation_steps * processes * batch.steps
        = sample.prompts * sample.group_size

Half precision is TRL's mixed precision over float32 weights, where the native engine keeps float32
masters beside bfloat16 weights: the same up to rounding.
"""

from __future__ import annotations

from typing import Any

from counterpoise.adapters.trl.host import BY_TEXT
from counterpoise.config import RunConfig
from counterpoise.engine.translate import Option, check, idle, only, ours, section, to
from counterpoise.variants import COMPOSERS_THAT_READ_TOKENS, TOKEN_WEIGHTS

TASK = ours("the task")
JUDGED = ours("judged by us")
FOLDER = ours("the run folder")
OPTIMIZER = ours("the optimizer is the native one")
ROWS = ("per_device_train_batch_size", "gradient_accumulation_steps")
LOSS = {"token_mean": "dapo", "sequence_mean": "grpo", "constant": "dr_grpo"}
LEVEL = {"grpo": "token", "gspo": "sequence"}
WARMUP = idle("only `poise warmup` reads it")

OPTIONS: dict[str, Option] = {
    "loop.iterations": to("max_steps"),
    "loop.seed": to("seed", "data_seed"),
    "loop.checkpoint_every": FOLDER,
    "loop.keep_checkpoints": FOLDER,
    "loop.threads": ours("threads of this process"),
    "model.name": ours("the model is loaded by us"),
    "model.device": to("use_cpu"),
    "model.dtype": to("bf16"),
    "model.template": ours(
        "TRL ends no response at a template's own tokens",
        values=("auto", "chat", "chat-boxed", "boxed"),
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
    "task.seed": TASK,
    "task.environment": only("none", why="nobody answers a response of TRL's sampler"),
    "task.turns": idle("only with task.environment"),
    "sample.prompts": to("per_device_train_batch_size"),
    "sample.group_size": to("num_generations"),
    "sample.max_new_tokens": to("max_completion_length"),
    "sample.max_prompt_tokens": ours("longer prompts are left out before TRL sees them"),
    "sample.temperature": to("temperature"),
    "sample.top_p": to("top_p"),
    "sample.top_k": to("top_k"),
    "sample.refills": only(0, why="TRL draws a generation of equal groups and uses it"),
    "sample.anchors": only(0, why="TRL draws a generation of equal groups, all after one prompt"),
    "sample.engine": only("native", why="TRL draws with its own sampler"),
    "sample.engine_memory": idle("only with sample.engine=vllm"),
    "verify.name": ours("the reward"),
    "verify.timeout_seconds": ours("the reward"),
    "verify.workers": ours("the reward"),
    "verify.also": only([], why="the adapter takes one reward of a rollout"),
    "verify.overlong_tokens": idle("only with verify.also"),
    "credit.name": to("credit"),
    "credit.weights": to(
        "credit_weights",
        values=tuple(name for name in TOKEN_WEIGHTS if name not in BY_TEXT),
        why="it reads texts, and TRL hands over tokens",
    ),
    "credit.settings": to("credit_settings"),
    "credit.mixture": idle("only with verify.also"),
    "credit.rule": only("off", why="TRL's loss takes nothing from a rule"),
    "credit.rule_settings": idle("only with credit.rule"),
    "balance.tau": to("tau"),
    "balance.unit": to("balance_unit"),
    "balance.target": to("balance_target"),
    "balance.max_age": to("max_age"),
    "batch.composer": to("composer"),
    "batch.steps": to("steps_per_generation"),
    "update.lr": OPTIMIZER,
    "update.optimizer": OPTIMIZER,
    "update.weight_decay": OPTIMIZER,
    "update.beta2": OPTIMIZER,
    "update.warmup_steps": OPTIMIZER,
    "update.max_grad_norm": to("max_grad_norm"),
    "update.surrogate": to(
        "importance_sampling_level",
        values=tuple(LEVEL),
        why="TRL's cispo has no lower clip, and it has no plain reinforce",
    ),
    "update.clip_low": to("epsilon"),
    "update.clip_high": to("epsilon_high"),
    "update.aggregate": to("loss_type", values=tuple(LOSS), why="TRL has no such average"),
    "update.old_logprobs": only("trainer", why="TRL scores rollouts by the trainer"),
    "update.trajectory": only("off", why="TRL's loss has its own ratio and clip"),
    "update.importance": only("off", why="TRL's sampler is its trainer: there is nothing to mend"),
    "update.importance_cap": idle("only with update.importance"),
    "update.micro_tokens": to(*ROWS),
    "update.capture": idle("speed of the native engine only"),
    "update.repeatable": only(False, why="TRL orders no sums"),
    "update.checkpointing": to("gradient_checkpointing"),
    "evaluate.prompts": JUDGED,
    "evaluate.samples": JUDGED,
    "evaluate.settings": JUDGED,
    "evaluate.every": JUDGED,
    **section("warmup", WARMUP),
    "monitor.every": ours("the microscope looks as in the native engine"),
    "monitor.tokens": ours("the microscope looks as in the native engine"),
    "monitor.watch": ours("the microscope looks as in the native engine"),
    "store.rollouts": FOLDER,
    "store.tokens": FOLDER,
    "store.model": FOLDER,
    "store.report": FOLDER,
    "track.to": FOLDER,
}

# What no option of a run says, and the native engine does: spelled out, whatever TRL's defaults.
FIXED: dict[str, Any] = {
    "beta": 0.0, "entropy_coef": 0.0, "num_iterations": 1, "scale_rewards": "group",
    "mask_truncated_completions": False, "top_entropy_quantile": 1.0, "repetition_penalty": 1.0,
    "min_p": None, "delta": None, "denominator": "step", "disable_dropout": True,
    "lr_scheduler_type": "constant", "warmup_steps": 0, "monitor_every": 0,
    "shuffle_dataset": False, "ignore_data_skip": True, "logging_strategy": "steps",
    "logging_steps": 1, "save_strategy": "no", "report_to": "none", "disable_tqdm": True,
}  # fmt: skip


def checked(config: RunConfig, processes: int = 1) -> None:
    """Stop, naming what TRL cannot honour."""
    rollouts, places = config.sample.prompts * config.sample.group_size, config.batch.steps
    odd = []
    if rollouts % (places * processes):
        over = f" on {processes} processes" if processes > 1 else ""
        odd = [
            f"sample.prompts={config.sample.prompts} x sample.group_size="
            f"{config.sample.group_size} in batch.steps={places}{over} (TRL cuts equal parts)"
        ]
    if config.batch.composer in COMPOSERS_THAT_READ_TOKENS:
        odd.append(
            f"batch.composer={config.batch.composer} (it compares tokens, and a plan has none)"
        )
    check(config, OPTIONS, "trl", odd)


def arguments(
    config: RunConfig, *, longest_prompt: int, half: bool, cpu: bool, processes: int = 1
) -> dict[str, Any]:
    """The arguments of `PoiseConfig`; `half` and `cpu` are what `auto` came to on this machine."""
    sample, update, steps = config.sample, config.update, config.batch.steps
    rows = sample.prompts * sample.group_size // (steps * processes)
    most = -(-max(config.target, sample.prompts * sample.group_size) // (steps * processes))
    length = min(longest_prompt, sample.max_prompt_tokens) + sample.max_new_tokens
    passes = passes_of(rows, most, max(1, update.micro_tokens // length))
    return {
        **FIXED,
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
        "max_refills": config.loop.iterations,
        "composer": config.batch.composer,
        "learning_rate": update.lr,  # as logged; the optimizer is handed over
        "max_grad_norm": update.max_grad_norm,
        "loss_type": LOSS[update.aggregate],
        "importance_sampling_level": LEVEL[update.surrogate],
        "epsilon": update.clip_low,
        "epsilon_high": update.clip_high,
        "gradient_checkpointing": update.checkpointing,
    }


def passes_of(rows: int, most: int, fits: int) -> int:
    """The fewest equal passes of a step's `rows` of which none is larger than fits; a balanced
    step may have `most`.

    Example:
        >>> passes_of(32, 32, 17), passes_of(32, 32, 100), passes_of(6, 6, 4)
        (2, 1, 2)
    """
    return next(n for n in range(1, rows + 1) if rows % n == 0 and (n == rows or most <= n * fits))


def shown(config: RunConfig) -> str:
    """The arguments as Python that could be copied; prompts are taken to be of full length."""
    checked(config)
    given = arguments(
        config,
        longest_prompt=config.sample.max_prompt_tokens,
        half=config.model.dtype == "bfloat16",
        cpu=config.model.device == "cpu",
    )
    lines = [f"    {name}={value!r}," for name, value in given.items()]
    return "\n".join(["PoiseConfig(", *lines, ")"])
