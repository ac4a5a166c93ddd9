"""A run file as the command for a cluster: the values of verl's own options, and how many GPUs.

Three of verl's defaults would change the gradient and are set: weight decay 0.01, the dual clip at
a ratio of 3 (a bound that is never met turns it off), and symmetric clipping.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

from counterpoise.config import RunConfig
from counterpoise.config.evaluation_settings import settings_of
from counterpoise.hosts import cluster_size
from counterpoise.hosts.verl.run_options import (
    ACTOR,
    AVERAGE,
    FSDP,
    LOSS,
    OPTIM,
    REWARD,
    ROLLOUT,
    checked,
)
from counterpoise.model.load import find_model_folder
from counterpoise.model.templates import AUTO, TEMPLATES
from counterpoise.run.estimate import shape_of

NEVER = 1e9  # a bound that is not met
PER_NODE = 8

FIXED: dict[str, Any] = {
    "trainer.use_v1": True, "trainer.v1.trainer_mode": "sync", "trainer.total_epochs": 1000000,
    "trainer.project_name": "counterpoise", "trainer.critic_warmup": 0, "data.shuffle": True,
    "data.filter_overlong_prompts": True,
    "data.truncation": "error", "algorithm.use_kl_in_reward": False,
    "actor_rollout_ref.model.use_remove_padding": True, f"{ACTOR}.strategy": "fsdp2",
    f"{ACTOR}.use_kl_loss": False, f"{ACTOR}.entropy_coeff": 0, f"{ACTOR}.ppo_epochs": 1,
    f"{ACTOR}.shuffle": False, f"{ACTOR}.use_dynamic_bsz": True, f"{ACTOR}.clip_ratio_c": NEVER,
    f"{FSDP}.model_dtype": "fp32", f"{OPTIM}.lr_scheduler_type": "constant",
    f"{OPTIM}.lr_warmup_steps": 0, f"{ROLLOUT}.name": "vllm",
    f"{ROLLOUT}.tensor_model_parallel_size": 1, f"{ROLLOUT}.val_kwargs.do_sample": True,
    f"{REWARD}.path": "pkg://counterpoise.hosts.verl.reward", f"{REWARD}.name": "compute_score",
}  # fmt: skip


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
        "trainer.logger": ["console", "file", *config.track.to],
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
        "actor_rollout_ref.model.path": find_model_folder(config.model.name),
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
        f"{ACTOR}.ppo_max_token_len_per_gpu": cluster_size.pass_tokens(config),
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
    """GPUs by `cluster_size.py`, 80 GB each: whole nodes of eight, or a part of one."""
    shape = shape_of(config.model.name)
    gpus = cluster_size.gpus_for(config, shape) if shape else PER_NODE
    gpus = gpus or max(cluster_size.SIZES)
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
    if "tensorboard" in config.track.to:
        told.append("event files go to TENSORBOARD_DIR: set it to DIR/tensorboard")
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
    fewer, now = cluster_size.gpus_for(lean, shape), cluster_size.gpus_for(config, shape)
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
