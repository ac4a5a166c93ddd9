"""A run file for verl: what it makes of every option, and the command for a cluster.

verl draws with vLLM, trains with FSDP2 over float32 weights in bfloat16 passes, and scores rollouts
by the trainer. Ours, through the adapter: credit, balance, plan; and the reward. Three of verl's
defaults would change the gradient and are set: weight decay 0.01, the dual clip at a ratio of 3 (a
bound that is never met turns it off), and symmetric clipping.

With reward balance one verl step samples until a batch is balanced, so `loop.iterations` counts
updates there, and sampling rounds in the native engine.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

from counterpoise.config import RunConfig
from counterpoise.engine import scale
from counterpoise.engine.translate import (
    Option,
    Table,
    check,
    idle,
    lacks,
    notes,
    only,
    ours,
    section,
    to,
)
from counterpoise.estimate import shape_of
from counterpoise.evaluate.settings import settings_of
from counterpoise.policy.load import find_folder
from counterpoise.policy.shapes import PREFIX
from counterpoise.policy.templates import AUTO, TEMPLATES

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
OPTIM, FSDP = f"{ACTOR}.optim", f"{ACTOR}.fsdp_config"
REWARD = "reward.custom_reward_function"
LOSS = {"grpo": "vanilla", "gspo": "gspo", "cispo": "cispo"}
AVERAGE = {
    "token_mean": "token-mean", "sequence_mean": "seq-mean-token-mean",
    "constant": "seq-mean-token-sum-norm",
}  # fmt: skip
NEVER = 1e9  # a bound that is not met
PER_NODE = 8

TASK = ours("the data files")
WARMUP = idle("only `poise warmup` reads it")

OPTIONS: dict[str, Option] = {
    "loop.iterations": to("trainer.total_training_steps"),
    "loop.seed": to("data.seed", f"{ROLLOUT}.seed", f"{FSDP}.seed", "+poise.seed"),
    "loop.checkpoint_every": to("trainer.save_freq"),
    "loop.keep_checkpoints": to("trainer.max_actor_ckpt_to_keep"),
    "loop.threads": only(0, why="verl sets its own threads"),
    "model.name": to("actor_rollout_ref.model.path"),
    "model.device": only("auto", "cuda", why="verl trains on GPUs"),
    "model.dtype": to(f"{ROLLOUT}.dtype", f"+{FSDP}.mixed_precision.param_dtype"),
    "model.template": to(
        "actor_rollout_ref.model.custom_chat_template",
        values=("auto", "chat", "chat-boxed", "boxed"),
        why="verl ends no response at a template's own tokens",
    ),
    "task.name": TASK,
    "task.levels": TASK,
    "task.slips": TASK,
    "task.size": TASK,
    "task.heldout": TASK,
    "task.path": TASK,
    "task.heldout_path": TASK,
    "task.train_split": TASK,
    "task.heldout_split": TASK,
    "task.problem_field": TASK,
    "task.answer_field": TASK,
    "task.id_field": TASK,
    "task.solution_field": TASK,
    "task.generic_field": TASK,
    "task.dataset": TASK,
    "task.seed": TASK,
    "task.environment": only("none", why="nobody answers a response of verl's sampler"),
    "task.turns": idle("only with task.environment"),
    "task.benchmarks": TASK,
    "sample.prompts": to("data.train_batch_size", f"{ACTOR}.ppo_mini_batch_size"),
    "sample.group_size": to(f"{ROLLOUT}.n"),
    "sample.max_new_tokens": to("data.max_response_length"),
    "sample.max_prompt_tokens": to("data.max_prompt_length"),
    "sample.temperature": to(f"{ROLLOUT}.temperature"),
    "sample.top_p": to(f"{ROLLOUT}.top_p"),
    "sample.top_k": to(f"{ROLLOUT}.top_k"),
    "sample.refills": only(0, why="verl draws a batch of equal groups and uses it"),
    "sample.anchors": only(0, why="verl draws a batch of equal groups, all after one prompt"),
    "sample.engine": idle("verl draws with vLLM; the trainer scores what it drew"),
    "sample.engine_memory": to(f"{ROLLOUT}.gpu_memory_utilization"),
    "verify.name": to(f"+{REWARD}.reward_kwargs.verifier"),
    "verify.timeout_seconds": to(f"+{REWARD}.reward_kwargs.timeout_seconds"),
    "verify.workers": to("reward.num_workers"),
    "verify.also": only([], why="the adapter takes one reward of a rollout"),
    "verify.overlong_tokens": idle("only with verify.also"),
    "credit.name": to("algorithm.adv_estimator"),
    "credit.weights": only("uniform", why="the adapter gives advantages to whole rollouts"),
    "credit.settings": idle("only with other credit.weights"),
    "credit.mixture": idle("only with verify.also"),
    "credit.rule": only("off", why="verl's own choose tokens in a micro-batch, ours in a step"),
    "credit.rule_settings": idle("only with credit.rule"),
    "balance.tau": to("+poise.tau"),
    "balance.unit": to("+poise.unit"),
    "balance.target": only(0, why="an update of verl's has sample.prompts x sample.group_size"),
    "balance.max_age": to("+poise.max_age"),
    "batch.composer": to("+poise.composer"),
    "batch.steps": to(f"{ACTOR}.ppo_mini_batch_size"),
    "update.lr": to(f"{OPTIM}.lr"),
    "update.optimizer": only("adamw", why="verl hands AdamW's options to any optimizer"),
    "update.weight_decay": to(f"{OPTIM}.weight_decay"),
    "update.beta2": to(f"{OPTIM}.betas"),
    "update.warmup_steps": only(0, why="verl's rise starts at 0 and counts updates, not steps"),
    "update.max_grad_norm": to(f"{OPTIM}.clip_grad", f"{ACTOR}.grad_clip"),
    "update.surrogate": to(
        f"{ACTOR}.policy_loss.loss_mode", values=tuple(LOSS), why="verl's is always a clipped one"
    ),
    "update.clip_low": to(f"{ACTOR}.clip_ratio_low"),
    "update.clip_high": to(f"{ACTOR}.clip_ratio_high"),
    "update.aggregate": to(
        f"{ACTOR}.loss_agg_mode", values=tuple(AVERAGE), why="verl has no such average"
    ),
    "update.old_logprobs": to("algorithm.rollout_correction.bypass_mode"),
    "update.trajectory": only("off", why="verl's loss has its own ratio and clip"),
    "update.importance": to("algorithm.rollout_correction.rollout_is"),
    "update.importance_cap": to("algorithm.rollout_correction.rollout_is_threshold"),
    "update.micro_tokens": to(f"{ACTOR}.ppo_max_token_len_per_gpu"),
    "update.capture": idle("speed of the native engine only"),
    "update.repeatable": only(False, why="vLLM and NCCL order their own sums"),
    "update.checkpointing": to("actor_rollout_ref.model.enable_gradient_checkpointing"),
    "evaluate.prompts": to("data.val_max_samples", "trainer.test_freq"),
    "evaluate.samples": to(f"{ROLLOUT}.val_kwargs.n"),
    "evaluate.settings": to(f"{ROLLOUT}.val_kwargs.temperature", f"{ROLLOUT}.val_kwargs.top_p"),
    "evaluate.every": to("trainer.test_freq"),
    **section("warmup", WARMUP),
    "monitor.every": to("+poise.monitor_every"),
    "monitor.tokens": lacks(16384, why="it reads the log-probabilities that verl has"),
    "monitor.watch": lacks(2, why="no table of pushes"),
    "store.rollouts": to("trainer.rollout_data_dir"),
    "store.tokens": lacks(True, why="no table of tokens"),
    "store.model": to(f"{ACTOR}.checkpoint.save_contents"),
    "store.report": lacks(True, why="no report of its own: `poise import` its rollouts first"),
}

FIXED: dict[str, Any] = {
    "trainer.use_v1": True, "trainer.v1.trainer_mode": "sync", "trainer.total_epochs": 1000000,
    "trainer.logger": ["console", "file"], "trainer.project_name": "counterpoise",
    "trainer.critic_warmup": 0, "data.shuffle": True, "data.filter_overlong_prompts": True,
    "data.truncation": "error", "algorithm.use_kl_in_reward": False,
    "actor_rollout_ref.model.use_remove_padding": True, f"{ACTOR}.strategy": "fsdp2",
    f"{ACTOR}.use_kl_loss": False, f"{ACTOR}.entropy_coeff": 0, f"{ACTOR}.ppo_epochs": 1,
    f"{ACTOR}.shuffle": False, f"{ACTOR}.use_dynamic_bsz": True, f"{ACTOR}.clip_ratio_c": NEVER,
    f"{FSDP}.model_dtype": "fp32", f"{OPTIM}.lr_scheduler_type": "constant",
    f"{OPTIM}.lr_warmup_steps": 0, f"{ROLLOUT}.name": "vllm",
    f"{ROLLOUT}.tensor_model_parallel_size": 1, f"{ROLLOUT}.val_kwargs.do_sample": True,
    f"{REWARD}.path": "pkg://counterpoise.engine.verl_reward", f"{REWARD}.name": "compute_score",
}  # fmt: skip


def checked(config: RunConfig, table: Table = OPTIONS) -> list[str]:
    """Stop, naming what verl cannot honour; else what it does without, a line each."""
    more = []
    if config.sample.prompts % config.batch.steps:
        more.append(
            f"sample.prompts={config.sample.prompts} in batch.steps={config.batch.steps} "
            "(verl cuts equal parts)"
        )
    if len(config.evaluate.settings) > 1:
        more.append(f"evaluate.settings={config.evaluate.settings} (verl judges one way)")
    if config.model.name == "scratch" or config.model.name.startswith(PREFIX):
        more.append(f"model.name={config.model.name} (verl loads a folder or a hub id)")
    check(config, table, "verl", more)
    told = [f"verl has {note}" for note in notes(config, table)]
    if config.balance.tau:
        told.append(f"loop.iterations={config.loop.iterations} counts updates, not sampling rounds")
    return told


def settings(config: RunConfig, out: Path) -> dict[str, Any]:
    """verl's options for this run, FIXED ones first."""
    return {
        **FIXED,
        **_schedule(config, out),
        **_sampling(config),
        **_update(config),
        **_batches(config),
    }


def _schedule(config: RunConfig, out: Path) -> dict[str, Any]:
    """How long, what is read and written, and the judging."""
    judged, kept = config.evaluate, ["model", "optimizer", "extra"]
    found: dict[str, Any] = {
        "trainer.experiment_name": out.name,
        "trainer.total_training_steps": config.loop.iterations,
        "trainer.default_local_dir": str(out / "checkpoints"),
        "trainer.save_freq": config.loop.checkpoint_every,
        "trainer.max_actor_ckpt_to_keep": config.loop.keep_checkpoints,
        "trainer.test_freq": (judged.every or config.loop.iterations) if judged.prompts else -1,
        "trainer.val_before_train": bool(judged.prompts),
        "data.train_files": str(out / "train.parquet"),
        "data.val_files": str(out / "heldout.parquet"),
        "data.val_max_samples": judged.prompts or 1,
        "data.seed": config.loop.seed,
        f"{ACTOR}.checkpoint.save_contents": kept + ["hf_model"] * config.store.model,
        "reward.num_workers": config.verify.workers,
        f"+{REWARD}.reward_kwargs.verifier": config.verify.name,
        f"+{REWARD}.reward_kwargs.timeout_seconds": config.verify.timeout_seconds,
        "actor_rollout_ref.model.path": find_folder(config.model.name),
    }
    if not TEMPLATES[asked(config)].chat:  # the data files hold the whole prompt
        found["actor_rollout_ref.model.custom_chat_template"] = "{{ messages[0]['content'] }}"
    if config.store.rollouts:
        found["trainer.rollout_data_dir"] = str(out / "rollouts")
    return found


def _sampling(config: RunConfig) -> dict[str, Any]:
    sample, judged = config.sample, config.evaluate
    (way,) = settings_of(judged.settings, sample)
    return {
        "data.max_prompt_length": sample.max_prompt_tokens,
        "data.max_response_length": sample.max_new_tokens,
        f"{ROLLOUT}.dtype": "float32" if config.model.dtype == "float32" else "bfloat16",
        f"{ROLLOUT}.n": sample.group_size,
        f"{ROLLOUT}.temperature": sample.temperature,
        f"{ROLLOUT}.top_p": sample.top_p,
        f"{ROLLOUT}.top_k": sample.top_k or -1,
        f"{ROLLOUT}.seed": config.loop.seed,
        f"{ROLLOUT}.gpu_memory_utilization": sample.engine_memory,
        f"{ROLLOUT}.val_kwargs.n": judged.samples,
        f"{ROLLOUT}.val_kwargs.temperature": way.temperature,
        f"{ROLLOUT}.val_kwargs.top_p": way.top_p,
    }


def _update(config: RunConfig) -> dict[str, Any]:
    update, single = config.update, config.model.dtype == "float32"
    weights = None if update.importance == "off" else update.importance
    return {
        "actor_rollout_ref.model.enable_gradient_checkpointing": update.checkpointing,
        f"+{FSDP}.mixed_precision.param_dtype": "fp32" if single else "bf16",
        f"{FSDP}.seed": config.loop.seed,
        f"{ACTOR}.ppo_max_token_len_per_gpu": scale.pass_tokens(config),
        f"{ACTOR}.policy_loss.loss_mode": LOSS[update.surrogate],
        f"{ACTOR}.loss_agg_mode": AVERAGE[update.aggregate],
        f"{ACTOR}.loss_scale_factor": config.sample.max_new_tokens,
        f"{ACTOR}.clip_ratio_low": update.clip_low,
        f"{ACTOR}.clip_ratio_high": update.clip_high,
        f"{ACTOR}.grad_clip": update.max_grad_norm or NEVER,
        f"{OPTIM}.clip_grad": update.max_grad_norm or NEVER,
        f"{OPTIM}.lr": update.lr,
        f"{OPTIM}.betas": [0.9, update.beta2],
        f"{OPTIM}.weight_decay": update.weight_decay,
        "algorithm.rollout_correction.bypass_mode": update.old_logprobs == "sampler",
        "algorithm.rollout_correction.rollout_is": weights,
        "algorithm.rollout_correction.rollout_is_threshold": update.importance_cap,
    }


def _batches(config: RunConfig) -> dict[str, Any]:
    """Credit, balance and plan: the adapter's."""
    return {
        "data.train_batch_size": config.sample.prompts,
        f"{ACTOR}.ppo_mini_batch_size": config.sample.prompts // config.batch.steps,
        "algorithm.adv_estimator": f"poise_{config.credit.name}",
        "+poise.composer": config.batch.composer,
        "+poise.tau": config.balance.tau,
        "+poise.unit": config.balance.unit,
        "+poise.max_age": config.balance.max_age,
        "+poise.max_refills": config.loop.iterations,
        "+poise.monitor_every": config.monitor.every,
        "+poise.seed": config.loop.seed,
    }


def machines(config: RunConfig) -> dict[str, int]:
    """GPUs by `scale.py`, 80 GB each: whole nodes of eight, or a part of one."""
    shape = shape_of(config.model.name)
    gpus = scale.gpus_for(config, shape) if shape else PER_NODE
    gpus = gpus or max(scale.SIZES)
    return {
        "trainer.n_gpus_per_node": min(gpus, PER_NODE),
        "trainer.nnodes": -(-gpus // PER_NODE),
    }


def command(config: RunConfig, out: Path, *, resume: bool = False) -> list[str]:
    """The words of the command; all but the launcher are verl's options."""
    given = {
        **settings(config, out),
        **machines(config),
        "trainer.resume_mode": "auto" if resume else "disable",
    }
    words = [f"{name}={_hydra(value)}" for name, value in given.items()]
    return ["python", "-m", "verl.trainer.main_ppo", *words]


def shown(config: RunConfig, out: Path | None) -> str:
    """The command over many lines, with what verl does without."""
    told = checked(config)
    if fewer := _fewer(config):
        told.append(f"with --set update.checkpointing=true {fewer} GPUs of 80 GB would do")
    if out is None:
        told.append("DIR stands for the run's folder: give --out, and its data files are written")
    head, *rest = _chunks(command(config, out or Path("DIR")))
    lines = [f"# {line}" for line in told]
    return "\n".join([*lines, " \\\n  ".join([head, *rest])])


def _fewer(config: RunConfig) -> int:
    """GPUs with checkpointing, where that is fewer than without; else 0."""
    shape = shape_of(config.model.name)
    if shape is None or config.update.checkpointing:
        return 0
    lean = replace(config, update=replace(config.update, checkpointing=True))
    fewer, now = scale.gpus_for(lean, shape), scale.gpus_for(config, shape)
    return fewer if fewer and (fewer < now or not now) else 0


def asked(config: RunConfig) -> str:
    """The template's name; verl has a chat template or does not start."""
    return "chat" if config.model.template == AUTO else config.model.template


def _chunks(words: list[str]) -> list[str]:
    return [" ".join(words[:3]), *(shlex.quote(word) for word in words[3:])]


def _hydra(value: Any) -> str:
    """A value as Hydra's command line reads it."""
    if isinstance(value, str):
        plain = all(character.isalnum() or character in "_-./:" for character in value)
        return value if plain else json.dumps(value)
    if isinstance(value, list):
        return "[" + ",".join(_hydra(item) for item in value) + "]"
    return "null" if value is None else str(value)
