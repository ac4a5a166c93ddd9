"""Find options by the words that people use for them: `poise options lr`, `--set loop.lr=1e-5`.

synonym   TRL, verl or common usage has this word for it
name      the option or its section has the word in its name
text      its explanation or its choices mention the word
spelling  nothing has the word, but a name or synonym is spelled like it
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches

Option = tuple[str, str, str]  # section.option, default, explanation

# Words of TRL's GRPOConfig, of verl's configuration and of the field -> our options, best first.
SYNONYMS: dict[str, tuple[str, ...]] = {
    # length of a run
    "epochs": ("loop.iterations",),
    "num_train_epochs": ("loop.iterations",),
    "total_epochs": ("loop.iterations",),
    "max_steps": ("loop.iterations",),
    "total_training_steps": ("loop.iterations",),
    "training_steps": ("loop.iterations",),
    "save_steps": ("loop.checkpoint_every",),
    "save_freq": ("loop.checkpoint_every",),
    "save_total_limit": ("loop.keep_checkpoints",),
    "max_actor_ckpt_to_keep": ("loop.keep_checkpoints",),
    # model and data
    "model": ("model.name",),
    "model_name_or_path": ("model.name",),
    "model_path": ("model.name",),
    "checkpoint": ("model.name", "loop.checkpoint_every"),
    "bf16": ("model.dtype",),
    "fp16": ("model.dtype",),
    "precision": ("model.dtype",),
    "torch_dtype": ("model.dtype",),
    "gpu": ("model.device",),
    "chat_template": ("model.template",),
    "dataset": ("task.path", "task.name", "task.dataset"),
    "dataset_name": ("task.path", "task.name"),
    "data": ("task.path", "task.name"),
    "train_files": ("task.path",),
    "val_files": ("task.heldout_path",),
    "prompt_key": ("task.problem_field",),
    "messages": ("task.problem_field",),
    "ground_truth": ("task.answer_field",),
    "parquet": ("task.path", "task.name"),
    "multi_turn": ("task.environment", "task.turns"),
    # sampling
    "num_generations": ("sample.group_size",),
    "generations": ("sample.group_size",),
    "n": ("sample.group_size",),
    "rollout_n": ("sample.group_size",),
    "max_completion_length": ("sample.max_new_tokens",),
    "max_response_length": ("sample.max_new_tokens",),
    "response_length": ("sample.max_new_tokens",),
    "max_tokens": ("sample.max_new_tokens",),
    "max_length": ("sample.max_new_tokens", "sample.max_prompt_tokens"),
    "max_prompt_length": ("sample.max_prompt_tokens",),
    "prompt_length": ("sample.max_prompt_tokens",),
    "use_vllm": ("sample.engine",),
    "vllm_mode": ("sample.engine",),
    "vllm_gpu_memory_utilization": ("sample.engine_memory",),
    "gpu_memory_utilization": ("sample.engine_memory",),
    "dynamic_sampling": ("sample.refills",),
    "filter_groups": ("sample.refills",),
    # rewards and advantages
    "reward": ("verify.name", "verify.also", "credit.mixture"),
    "reward_funcs": ("verify.name", "verify.also"),
    "reward_function": ("verify.name", "verify.also"),
    "custom_reward_function": ("verify.name", "verify.also"),
    "reward_weights": ("verify.also", "credit.mixture"),
    "mask_truncated_completions": ("update.mask_truncated",),
    "overlong_filtering": ("update.mask_truncated",),
    "overlong_buffer": ("verify.also", "verify.overlong_tokens"),
    "advantage": ("credit.name", "credit.weights"),
    "adv_estimator": ("credit.name",),
    "scale_rewards": ("credit.name",),
    "norm_adv_by_std_in_grpo": ("credit.name",),
    "entropy": ("update.entropy_bonus", "credit.weights", "credit.rule"),
    "entropy_coef": ("update.entropy_bonus",),
    "entropy_coeff": ("update.entropy_bonus",),
    # the batch: TRL and verl count rows, we count prompts, optimizer steps and tokens of a pass
    "batch_size": ("sample.prompts", "batch.steps", "update.micro_tokens"),
    "train_batch_size": ("sample.prompts", "batch.steps"),
    "generation_batch_size": ("sample.prompts", "batch.steps"),
    "per_device_train_batch_size": ("update.micro_tokens", "batch.steps"),
    "gradient_accumulation_steps": ("batch.steps", "update.micro_tokens"),
    "steps_per_generation": ("batch.steps",),
    "num_iterations": ("batch.steps",),
    "ppo_epochs": ("batch.steps",),
    "mini_batch_size": ("batch.steps",),
    "ppo_mini_batch_size": ("batch.steps",),
    "micro_batch_size": ("update.micro_tokens",),
    "ppo_micro_batch_size_per_gpu": ("update.micro_tokens",),
    "ppo_max_token_len_per_gpu": ("update.micro_tokens",),
    "shuffle": ("sample.choose", "batch.composer"),
    "shuffle_dataset": ("sample.choose", "batch.composer"),
    # loss and optimizer
    "learning_rate": ("update.lr", "warmup.lr"),
    "lr_scheduler_type": ("update.schedule", "update.warmup_steps"),
    "min_lr_ratio": ("update.final_lr_share",),
    "warmup_ratio": ("update.warmup_steps",),
    "lr_warmup_steps": ("update.warmup_steps",),
    "adam_beta2": ("update.beta2",),
    "betas": ("update.beta2",),
    "optim": ("update.optimizer",),
    "grad_clip": ("update.max_grad_norm",),
    "clip_grad": ("update.max_grad_norm",),
    "gradient_checkpointing": ("update.checkpointing",),
    "enable_gradient_checkpointing": ("update.checkpointing",),
    "loss": ("update.surrogate", "update.aggregate"),
    "loss_type": ("update.surrogate", "update.aggregate"),
    "policy_loss": ("update.surrogate",),
    "loss_mode": ("update.surrogate",),
    "loss_agg_mode": ("update.aggregate",),
    "importance_sampling_level": ("update.surrogate",),
    "epsilon": ("update.clip_low", "update.clip_high"),
    "epsilon_low": ("update.clip_low",),
    "epsilon_high": ("update.clip_high",),
    "clip_ratio": ("update.clip_low", "update.clip_high"),
    "clip_ratio_low": ("update.clip_low",),
    "clip_ratio_high": ("update.clip_high",),
    "clip_ratio_c": ("update.clip_dual",),
    "delta": ("update.clip_dual",),
    "cliprange": ("update.clip_low", "update.clip_high"),
    "vllm_importance_sampling_correction": ("update.importance",),
    "vllm_importance_sampling_cap": ("update.importance_cap",),
    "tis": ("update.importance", "update.importance_cap"),
    "rollout_is": ("update.importance",),
    "rollout_rs": ("update.importance_mode",),
    "vllm_importance_sampling_mode": ("update.importance", "update.importance_mode"),
    "kl": ("update.kl", "update.kl_estimator", "update.kl_in"),
    "beta": ("update.kl", "update.kl_estimator", "update.kl_in"),
    "kl_coef": ("update.kl", "update.kl_estimator", "update.kl_in"),
    "kl_loss": ("update.kl", "update.kl_estimator", "update.kl_in"),
    "kl_loss_coef": ("update.kl", "update.kl_estimator", "update.kl_in"),
    "use_kl_loss": ("update.kl_in", "update.kl"),
    "use_kl_in_reward": ("update.kl_in", "update.kl"),
    "kl_loss_type": ("update.kl_estimator",),
    "kl_penalty": ("update.kl_estimator", "update.kl_in"),
    "kl_ctrl": ("update.kl_control", "update.kl_settings"),
    "target_kl": ("update.kl_control", "update.kl_settings"),
    "ref_model": ("update.kl",),
    # evaluation and logging
    "eval_steps": ("evaluate.every",),
    "eval_strategy": ("evaluate.every",),
    "test_freq": ("evaluate.every",),
    "report_to": ("track.to",),
    "logger": ("track.to",),
    "logging": ("track.to",),
}
# Words whose options are not quite what TRL or verl mean by them.
REMARKS = {
    ("shuffle", "shuffle_dataset"): (
        "Prompts come in shuffled epochs (sample.choose=epochs); batch.composer=shuffled shuffles "
        "the rollouts of a batch among its steps."
    ),
    ("beta", "ref_model"): (
        "The reference of the KL is the initial policy (TRL's beta is update.kl); the step rules "
        "kl_cov and sdpg have a KL term of their own."
    ),
    ("num_iterations", "ppo_epochs"): (
        "Every rollout is used in one optimizer step; batch.steps is the number of steps."
    ),
}


def search_options(query: str, options: Sequence[Option]) -> list[Option]:
    """The options that a word or phrase may mean, best matches first."""
    word = _normalize(query)
    by_name = [option for option in options if word in option[0]]
    # A section or a full name is an exact request: explanations that mention it are noise.
    if any(option[0] == word or option[0].startswith(f"{word.rstrip('.')}.") for option in options):
        return by_name
    # Synonyms before names: `dataset` is task.path for most people, task.dataset only for a few.
    ranked_options = [
        option for name in SYNONYMS.get(word, ()) for option in options if option[0] == name
    ]
    ranked_options += [option for option in options if option[0].endswith(f".{word}")]
    ranked_options += by_name
    ranked_options += [option for option in options if _mentions(option[2], word)]
    if not ranked_options:
        similar = get_close_matches(word, _known_words(options), n=1, cutoff=0.6)
        return search_options(similar[0], options) if similar else []
    return list(dict.fromkeys(ranked_options))


def find_remark(query: str) -> str:
    """What to know about a word that means something else in TRL or verl; "" if nothing."""
    word = _normalize(query)
    return next((remark for words, remark in REMARKS.items() if word in words), "")


def suggest_option(name: str, options: Sequence[Option], *, exact: bool = False) -> str | None:
    """The option that an unknown name most likely means, in any section.

    With `exact` only another section's option of that name or a synonym, no similar spelling.

    Example:
        >>> suggest_option("loop.learning_rate", [("update.lr", "1e-6", "learning rate")])
        'update.lr'
    """
    option_names = [option[0] for option in options]
    section, _, word = _normalize(name).rpartition(".")
    matches = [option_name for option_name in SYNONYMS.get(word, ()) if option_name in option_names]
    matches += [option_name for option_name in option_names if option_name.endswith(f".{word}")]
    if matches or exact:
        return matches[0] if matches else None
    # A misspelled name more likely belongs to the section it was written in.
    words_in_section = [
        option_name.rpartition(".")[2]
        for option_name in option_names
        if option_name.startswith(f"{section}.")
    ]
    similar = get_close_matches(word, words_in_section, n=1, cutoff=0.7)
    if similar:
        return f"{section}.{similar[0]}"
    similar = get_close_matches(word, _known_words(options), n=1, cutoff=0.75)
    return suggest_option(similar[0], options) if similar else None


def _normalize(query: str) -> str:
    return re.sub(r"[\s-]+", "_", query.strip().lstrip("-").lower())


def _known_words(options: Sequence[Option]) -> list[str]:
    return [*(option[0].rpartition(".")[2] for option in options), *SYNONYMS]


def _mentions(explanation: str, word: str) -> bool:
    """Whether every part of the word begins a word of the explanation."""
    # A single letter would match nearly every explanation.
    word_parts = [word_part for word_part in word.split("_") if len(word_part) > 1]
    return bool(word_parts) and all(
        re.search(rf"(?<![a-z]){re.escape(word_part)}", explanation.lower())
        for word_part in word_parts
    )
