"""Turn a run file into the command for a cluster: verl's own options, and the number of GPUs.

Three of verl's defaults would change the gradient and are overridden: weight decay 0.01, the dual
clip at a ratio of 3 (turned off by a bound that is never reached), and symmetric clipping.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

from counterpoise.config import RunConfig, UpdateConfig
from counterpoise.config.evaluation_settings import parse_settings
from counterpoise.hosts import cluster_size
from counterpoise.hosts.verl.run_options import (
    ACTOR,
    FSDP,
    KL_TYPES,
    LOSS_AGG_MODES,
    LOSS_MODES,
    OPTIM,
    REWARD,
    ROLLOUT,
    check_options,
)
from counterpoise.model.decoder_shape import find_shape
from counterpoise.model.load import find_model_folder
from counterpoise.model.templates import AUTO, TEMPLATES

UNREACHED_BOUND = 1e9  # a bound that turns a limit off
# Texts that Hydra reads as they are: it takes others for numbers or for its own syntax.
PLAIN_TEXT = re.compile(r"(?:[A-Za-z_/]|\.\.?/)[A-Za-z0-9_./:-]*")
HYDRA_WORDS = ("true", "false", "null", "nan", "inf")
BACKSLASHES_BEFORE_QUOTE = re.compile(r'(\\+)(?="|\Z)')
GPUS_PER_NODE = 8

# The native engine has no options for these; they are set so that verl's defaults do not matter.
# total_epochs is never reached: total_training_steps ends the run.
FIXED_SETTINGS: dict[str, Any] = {
    "trainer.use_v1": True, "trainer.v1.trainer_mode": "sync", "trainer.total_epochs": 1000000,
    "trainer.project_name": "counterpoise", "trainer.critic_warmup": 0, "data.shuffle": True,
    "data.filter_overlong_prompts": True,
    "data.truncation": "error",
    "actor_rollout_ref.model.use_remove_padding": True, f"{ACTOR}.strategy": "fsdp2",
    f"{ACTOR}.ppo_epochs": 1, "algorithm.kl_ctrl.type": "fixed",
    f"{ACTOR}.shuffle": False, f"{ACTOR}.use_dynamic_bsz": True,
    f"{FSDP}.model_dtype": "fp32",
    f"{OPTIM}.lr_warmup_steps": 0, f"{ROLLOUT}.name": "vllm",
    f"{ROLLOUT}.tensor_model_parallel_size": 1, f"{ROLLOUT}.val_kwargs.do_sample": True,
    f"{REWARD}.path": "pkg://counterpoise.hosts.verl.reward", f"{REWARD}.name": "compute_score",
}  # fmt: skip


def verl_settings(config: RunConfig, out: Path) -> dict[str, Any]:
    """verl's options for this run: the fixed ones, then the run's own."""
    return {
        **FIXED_SETTINGS,
        **_schedule(config, out),
        **_sampling(config),
        **_update(config),
        **_batching(config),
    }


def _schedule(config: RunConfig, out: Path) -> dict[str, Any]:
    """Length of the run, files that are read and written, and evaluation."""
    evaluation, checkpoint = config.evaluate, ["model", "optimizer", "extra"]
    schedule: dict[str, Any] = {
        "trainer.experiment_name": out.name,
        "trainer.logger": ["console", "file", *config.track.to],
        "trainer.total_training_steps": config.loop.iterations,
        "trainer.default_local_dir": str(out / "checkpoints"),
        "trainer.save_freq": config.loop.checkpoint_every,
        "trainer.max_actor_ckpt_to_keep": config.loop.keep_checkpoints,
        "trainer.test_freq": (
            (evaluation.every or config.loop.iterations) if evaluation.prompts else -1
        ),
        "trainer.val_before_train": bool(evaluation.prompts),
        "data.train_files": str(out / "train.parquet"),
        "data.val_files": str(out / "heldout.parquet"),
        "data.val_max_samples": evaluation.prompts or 1,
        "data.seed": config.loop.seed,
        f"{ACTOR}.checkpoint.save_contents": checkpoint + ["hf_model"] * config.store.model,
        "reward.num_workers": config.verify.workers,
        f"+{REWARD}.reward_kwargs.verifier": config.verify.name,
        f"+{REWARD}.reward_kwargs.timeout_seconds": config.verify.timeout_seconds,
        f"+{REWARD}.reward_kwargs.reward_timeout_seconds": config.verify.reward_timeout_seconds,
        "actor_rollout_ref.model.path": find_model_folder(config.model.name),
    }
    # Data files for a template without chat hold the whole prompt: verl must not wrap it again.
    if not TEMPLATES[template_name(config)].chat:
        schedule["actor_rollout_ref.model.custom_chat_template"] = "{{ messages[0]['content'] }}"
    if config.store.rollouts:
        schedule["trainer.rollout_data_dir"] = str(out / "rollouts")
    return schedule


def _sampling(config: RunConfig) -> dict[str, Any]:
    sample, evaluation = config.sample, config.evaluate
    # check_options has refused more than one.
    (evaluation_setting,) = parse_settings(evaluation.settings, sample)
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
        f"{ROLLOUT}.val_kwargs.n": evaluation.samples,
        f"{ROLLOUT}.val_kwargs.temperature": evaluation_setting.temperature,
        f"{ROLLOUT}.val_kwargs.top_p": evaluation_setting.top_p,
        f"{ROLLOUT}.val_kwargs.top_k": evaluation_setting.apply_to(sample).top_k or -1,
    }


def _update(config: RunConfig) -> dict[str, Any]:
    update, float32 = config.update, config.model.dtype == "float32"
    importance = None if update.importance == "off" else update.importance
    return {
        "actor_rollout_ref.model.enable_gradient_checkpointing": update.checkpointing,
        f"+{FSDP}.mixed_precision.param_dtype": "fp32" if float32 else "bf16",
        f"{FSDP}.seed": config.loop.seed,
        f"{ACTOR}.ppo_max_token_len_per_gpu": cluster_size.tokens_per_pass(config),
        f"{ACTOR}.policy_loss.loss_mode": LOSS_MODES[update.surrogate],
        f"{ACTOR}.loss_agg_mode": LOSS_AGG_MODES[update.aggregate],
        f"{ACTOR}.loss_scale_factor": config.sample.max_new_tokens,
        f"{ACTOR}.clip_ratio_low": update.clip_low,
        f"{ACTOR}.clip_ratio_high": update.clip_high,
        f"{ACTOR}.clip_ratio_c": update.clip_dual or UNREACHED_BOUND,
        f"{ACTOR}.entropy_coeff": update.entropy_bonus,
        **_kl(update),
        f"{ACTOR}.grad_clip": update.max_grad_norm or UNREACHED_BOUND,
        f"{OPTIM}.clip_grad": update.max_grad_norm or UNREACHED_BOUND,
        f"{OPTIM}.lr": update.lr,
        f"{OPTIM}.betas": [0.9, update.beta2],
        f"{OPTIM}.weight_decay": update.weight_decay,
        f"{OPTIM}.lr_scheduler_type": update.schedule,
        f"{OPTIM}.min_lr_ratio": update.final_lr_share,
        "algorithm.rollout_correction.bypass_mode": update.old_logprobs == "sampler",
        "algorithm.rollout_correction.rollout_is": importance,
        "algorithm.rollout_correction.rollout_is_threshold": update.importance_cap,
    }


def _kl(update: UpdateConfig) -> dict[str, Any]:
    """The KL from the initial policy; verl has one coefficient in the loss, one in the reward."""
    coefficient = (
        "algorithm.kl_ctrl.kl_coef" if update.kl_in == "reward" else f"{ACTOR}.kl_loss_coef"
    )
    return {
        f"{ACTOR}.use_kl_loss": update.kl_in_loss,
        f"{ACTOR}.kl_loss_type": KL_TYPES[update.kl_estimator],
        "algorithm.use_kl_in_reward": update.kl_in_reward,
        "algorithm.kl_penalty": KL_TYPES[update.kl_estimator],
        coefficient: update.kl,
    }


def _batching(config: RunConfig) -> dict[str, Any]:
    """Credit, balance and plan, which the adapter does."""
    return {
        "data.train_batch_size": config.sample.prompts,
        f"{ACTOR}.ppo_mini_batch_size": config.sample.prompts // config.batch.steps,
        "algorithm.adv_estimator": f"poise_{config.credit.name}",
        "+poise.credit_weights": config.credit.weights,
        "+poise.credit_settings": list(config.credit.settings),
        "+poise.trajectory": config.update.trajectory,
        "+poise.composer": config.batch.composer,
        "+poise.tau": config.balance.tau,
        "+poise.unit": config.balance.unit,
        "+poise.max_age": config.balance.max_age,
        "+poise.max_refills": config.loop.iterations,
        "+poise.monitor_every": config.monitor.every,
        "+poise.monitor_tokens": config.monitor.tokens,
        "+poise.seed": config.loop.seed,
    }


def gpu_settings(config: RunConfig) -> dict[str, int]:
    """The number of GPUs of 80 GB by `cluster_size.py`: whole nodes of eight, or part of one."""
    shape = find_shape(config.model.name)
    gpus = cluster_size.fewest_gpus(config, shape) if shape else GPUS_PER_NODE
    # 0: no number of GPUs is enough by the estimate; the most is the best guess.
    gpus = gpus or max(cluster_size.GPU_COUNTS)
    return {
        "trainer.n_gpus_per_node": min(gpus, GPUS_PER_NODE),
        "trainer.nnodes": -(-gpus // GPUS_PER_NODE),
    }


def build_command(config: RunConfig, out: Path, *, resume: bool = False) -> list[str]:
    """The command as a list: the launcher, then verl's options."""
    settings = {
        **verl_settings(config, out),
        **gpu_settings(config),
        "trainer.resume_mode": "auto" if resume else "disable",
    }
    options = [f"{name}={_hydra_value(value)}" for name, value in settings.items()]
    return ["python", "-m", "verl.trainer.main_ppo", *options]


def format_command(config: RunConfig, out: Path | None) -> str:
    """The command over many lines, with remarks on what verl leaves out."""
    remarks = check_options(config)
    if fewer_gpus := _gpus_with_checkpointing(config):
        remarks.append(
            f"with --set update.checkpointing=true {fewer_gpus} GPUs of 80 GB would be enough"
        )
    if "tensorboard" in config.track.to:
        remarks.append("event files go to TENSORBOARD_DIR: set it to DIR/tensorboard")
    if out is None:
        remarks.append(
            "DIR stands for the run's folder: give --out, and its data files are written"
        )
    launcher, *options = _quote_words(build_command(config, out or Path("DIR")))
    comments = [f"# {remark}" for remark in remarks]
    return "\n".join([*comments, " \\\n  ".join([launcher, *options])])


def _gpus_with_checkpointing(config: RunConfig) -> int:
    """The number of GPUs with checkpointing, if smaller than without; else 0."""
    shape = find_shape(config.model.name)
    if shape is None or config.update.checkpointing:
        return 0
    checkpointed_config = replace(config, update=replace(config.update, checkpointing=True))
    fewest_with = cluster_size.fewest_gpus(checkpointed_config, shape)
    fewest_without = cluster_size.fewest_gpus(config, shape)  # 0: no number of GPUs is enough
    return (
        fewest_with if fewest_with and (fewest_with < fewest_without or not fewest_without) else 0
    )


def template_name(config: RunConfig) -> str:
    """The template's name; `auto` is chat, since verl does not start without a chat template."""
    return "chat" if config.model.template == AUTO else config.model.template


def _quote_words(words: list[str]) -> list[str]:
    return [" ".join(words[:3]), *(shlex.quote(word) for word in words[3:])]


def _hydra_value(value: Any) -> str:
    r"""A value as Hydra's command line reads it.

    Example:
        >>> _hydra_value("out/run"), _hydra_value("7"), _hydra_value("a b"), _hydra_value([0.9, 1])
        ('out/run', '"7"', '"a b"', '[0.9,1]')
    """
    if isinstance(value, str):
        if PLAIN_TEXT.fullmatch(value) and value.lower() not in HYDRA_WORDS:
            return value
        # In quotes every character stands for itself, except a quote and backslashes before one.
        text = BACKSLASHES_BEFORE_QUOTE.sub(r"\1\1", value).replace('"', '\\"')
        return f'"{text}"'
    if isinstance(value, list):
        return "[" + ",".join(_hydra_value(item) for item in value) + "]"
    return "null" if value is None else str(value)
