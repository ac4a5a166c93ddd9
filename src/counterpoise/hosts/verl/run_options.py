"""verl's support of every option of a run file; command.py writes them as verl's own options.

verl samples with vLLM, trains with FSDP2 over float32 weights in bfloat16 passes, and scores
rollouts by the trainer. The adapter adds our credit, balance and plan, and the reward is ours.

With reward balance, verl samples within a step until a batch is balanced, so `loop.iterations`
counts updates in verl but sampling rounds in the native engine.
"""

from __future__ import annotations

from counterpoise.config import RunConfig
from counterpoise.credit.assign import UNIFORM
from counterpoise.hosts.translate_options import (
    OptionSupport,
    OptionTable,
    accept_only,
    check_support,
    handle_here,
    list_omissions,
    no_effect,
    not_written,
    pass_as,
    pass_except,
    whole_section,
)
from counterpoise.hosts.verl.weight_methods import REFUSED_WEIGHTS, balance_fault
from counterpoise.model.adapters import find_base
from counterpoise.model.shapes import SHAPE_PREFIX
from counterpoise.plugins import display_name, is_plugin
from counterpoise.variants import (
    COMPOSERS,
    COMPOSERS_THAT_READ_SIGNS,
    COMPOSERS_THAT_READ_TOKENS,
    VERIFIERS,
)
from counterpoise.verify.reward_signatures import TOKEN_IDS, TRAINER_STATE, reward_arguments

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
OPTIM, FSDP = f"{ACTOR}.optim", f"{ACTOR}.fsdp_config"
REWARD = "reward.custom_reward_function"
LOSS_MODES = {
    "grpo": "vanilla", "gspo": "gspo", "cispo": "cispo", "dppo": "dppo_tv", "reinforce": "gpg",
}  # fmt: skip
KL_TYPES = {"k1": "kl", "k2": "mse", "k3": "low_var_kl"}
LOSS_AGG_MODES = {
    "token_mean": "token-mean", "sequence_mean": "seq-mean-token-mean",
    "constant": "seq-mean-token-sum-norm",
}  # fmt: skip

TASK = handle_here("the data files")
WARMUP = no_effect("only `poise warmup` reads it")
PROBES = "verl does not measure what an update does to held-out answers"

# Every option of config/ needs an entry here; tests/hosts/test_translate_options.py checks it.
OPTIONS: dict[str, OptionSupport] = {
    "loop.iterations": pass_as("trainer.total_training_steps"),
    "loop.seed": pass_as("data.seed", f"{ROLLOUT}.seed", f"{FSDP}.seed", "+poise.seed"),
    "loop.checkpoint_every": pass_as("trainer.save_freq"),
    "loop.keep_checkpoints": pass_as("trainer.max_actor_ckpt_to_keep"),
    "loop.threads": accept_only(0, reason="verl sets its own threads"),
    "model.name": pass_as("actor_rollout_ref.model.path"),
    "model.device": accept_only("auto", "cuda", reason="verl trains on GPUs"),
    "model.dtype": pass_as(f"{ROLLOUT}.dtype", f"+{FSDP}.mixed_precision.param_dtype"),
    "model.path": no_effect("verl runs the model itself"),
    "model.lora_rank": accept_only(0, reason="LoRA trains with --engine native"),
    "model.lora_alpha": no_effect("only with model.lora_rank"),
    "model.lora_targets": no_effect("only with model.lora_rank"),
    "model.template": pass_as(
        "actor_rollout_ref.model.custom_chat_template",
        values=("auto", "chat", "chat-boxed", "boxed"),
        reason="verl does not stop a response at a template's own end tokens",
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
    "task.settings": TASK,
    "task.seed": TASK,
    "task.environment": accept_only("none", reason="verl's sampler does not reply to a response"),
    "task.turns": no_effect("only with task.environment"),
    "task.benchmarks": TASK,
    "sample.prompts": pass_as("data.train_batch_size", f"{ACTOR}.ppo_mini_batch_size"),
    "sample.group_size": pass_as(f"{ROLLOUT}.n"),
    "sample.choose": accept_only("epochs", reason="verl's sampler takes prompts in epochs"),
    "sample.memory_visits": no_effect("only with sample.choose"),
    "sample.retry_after": no_effect("only with sample.choose"),
    "sample.max_new_tokens": pass_as("data.max_response_length"),
    "sample.max_prompt_tokens": pass_as("data.max_prompt_length"),
    "sample.temperature": pass_as(f"{ROLLOUT}.temperature"),
    "sample.top_p": pass_as(f"{ROLLOUT}.top_p"),
    "sample.top_k": pass_as(f"{ROLLOUT}.top_k"),
    "sample.refills": accept_only(0, reason="verl trains on every batch as it was sampled"),
    "sample.anchors": accept_only(0, reason="verl samples a whole group after the same prompt"),
    "sample.engine": no_effect("verl samples with vLLM; the trainer scores the rollouts"),
    "sample.engine_memory": pass_as(f"{ROLLOUT}.gpu_memory_utilization"),
    "verify.name": pass_as(
        f"+{REWARD}.reward_kwargs.verifier",
        values=tuple(name for name in VERIFIERS.choices if name != "verifiers"),
        reason="verl's workers do not get the tasks of the package verifiers",
    ),
    "verify.timeout_seconds": pass_as(f"+{REWARD}.reward_kwargs.timeout_seconds"),
    "verify.reward_timeout_seconds": pass_as(f"+{REWARD}.reward_kwargs.reward_timeout_seconds"),
    "verify.workers": pass_as("reward.num_workers"),
    "verify.also": accept_only([], reason="the adapter takes one reward for each rollout"),
    "verify.overlong_tokens": no_effect("only with verify.also"),
    "credit.name": pass_as("algorithm.adv_estimator"),
    "credit.weights": pass_except("+poise.credit_weights", REFUSED_WEIGHTS),
    "credit.settings": pass_as("+poise.credit_settings"),
    "credit.mixture": no_effect("only with verify.also"),
    "credit.rule": accept_only(
        "off", reason="verl's own rules choose tokens in a micro-batch, ours in a step"
    ),
    "credit.rule_settings": no_effect("only with credit.rule"),
    "balance.tau": pass_as("+poise.tau"),
    "balance.unit": pass_as("+poise.unit"),
    "balance.sign": accept_only("advantage", reason="the adapter balances by advantages"),
    "balance.target": accept_only(
        0, reason="verl's update always has sample.prompts x sample.group_size rollouts"
    ),
    "balance.max_age": pass_as("+poise.max_age"),
    "batch.composer": pass_as(
        "+poise.composer",
        values=tuple(name for name in COMPOSERS if name not in COMPOSERS_THAT_READ_TOKENS),
        reason="verl's plans carry no tokens, and a user's function would see no advantages",
    ),
    "batch.steps": pass_as(f"{ACTOR}.ppo_mini_batch_size"),
    "batch.rows_per_step": accept_only(0, reason="verl cuts a batch into equal steps"),
    "batch.drop_silent": accept_only(False, reason="verl cuts a batch into equal steps"),
    "update.lr": pass_as(f"{OPTIM}.lr"),
    "update.optimizer": accept_only("adamw", reason="verl hands AdamW's options to any optimizer"),
    "update.weight_decay": pass_as(f"{OPTIM}.weight_decay"),
    "update.beta2": pass_as(f"{OPTIM}.betas"),
    "update.warmup_steps": accept_only(
        0, reason="verl's warmup starts at 0 and counts updates, not steps"
    ),
    "update.schedule": pass_as(
        f"{OPTIM}.lr_scheduler_type",
        values=("constant", "cosine"),
        reason="verl's FSDP engine has no linear schedule",
    ),
    "update.final_lr_share": pass_as(f"{OPTIM}.min_lr_ratio"),
    "update.max_grad_norm": pass_as(f"{OPTIM}.clip_grad", f"{ACTOR}.grad_clip"),
    "update.surrogate": pass_as(
        f"{ACTOR}.policy_loss.loss_mode",
        values=tuple(LOSS_MODES),
        reason="verl's losses with a ratio always clip or mask",
    ),
    "update.clip_low": pass_as(f"{ACTOR}.clip_ratio_low"),
    "update.clip_high": pass_as(f"{ACTOR}.clip_ratio_high"),
    "update.clip_dual": pass_as(f"{ACTOR}.clip_ratio_c"),
    "update.aggregate": pass_as(
        f"{ACTOR}.loss_agg_mode", values=tuple(LOSS_AGG_MODES), reason="verl has no such average"
    ),
    "update.mask_truncated": accept_only(False, reason="verl's loss has no such mask"),
    "update.kl": pass_as(
        f"{ACTOR}.use_kl_loss", f"{ACTOR}.kl_loss_coef", "algorithm.kl_ctrl.kl_coef"
    ),
    "update.kl_estimator": pass_as(f"{ACTOR}.kl_loss_type", "algorithm.kl_penalty"),
    "update.kl_in": pass_as("algorithm.use_kl_in_reward", "algorithm.kl_ctrl.kl_coef"),
    "update.entropy_bonus": pass_as(f"{ACTOR}.entropy_coeff"),
    "update.kl_control": accept_only("fixed", reason="verl's kl_loss_coef is one number"),
    "update.kl_settings": no_effect("only with update.kl_control"),
    "update.old_logprobs": pass_as("algorithm.rollout_correction.bypass_mode"),
    "update.trajectory": pass_as("+poise.trajectory"),
    "update.importance": pass_as("algorithm.rollout_correction.rollout_is"),
    "update.importance_cap": pass_as("algorithm.rollout_correction.rollout_is_threshold"),
    "update.importance_mode": accept_only(
        "truncate", reason="verl also leaves rejected tokens out of the average"
    ),
    "update.micro_tokens": pass_as(f"{ACTOR}.ppo_max_token_len_per_gpu"),
    "update.capture": no_effect("speed of the native engine only"),
    "update.repeatable": accept_only(False, reason="vLLM and NCCL do not fix the order of sums"),
    "update.checkpointing": pass_as("actor_rollout_ref.model.enable_gradient_checkpointing"),
    "evaluate.prompts": pass_as("data.val_max_samples", "trainer.test_freq"),
    "evaluate.samples": pass_as(f"{ROLLOUT}.val_kwargs.n"),
    "evaluate.settings": pass_as(
        f"{ROLLOUT}.val_kwargs.temperature", f"{ROLLOUT}.val_kwargs.top_p"
    ),
    "evaluate.every": pass_as("trainer.test_freq"),
    "evaluate.benchmarks": accept_only([], reason="only the native engine evaluates them"),
    "evaluate.data": no_effect("only with evaluate.benchmarks"),
    "evaluate.limit": no_effect("only with evaluate.benchmarks"),
    **whole_section("warmup", WARMUP),
    "monitor.every": pass_as("+poise.monitor_every"),
    "monitor.tokens": pass_as("+poise.monitor_tokens"),
    "monitor.watch": not_written(2, reason="no table of pushes"),
    "monitor.probe": accept_only(0, reason=PROBES),
    "monitor.probe_refresh": no_effect("no probes"),
    "monitor.probe_every": no_effect("no probes"),
    "monitor.probe_through": no_effect("no probes"),
    "monitor.probe_file": accept_only("", reason=PROBES),
    "store.rollouts": pass_as("trainer.rollout_data_dir"),
    "store.tokens": not_written(True, reason="no table of tokens"),
    "store.model": pass_as(f"{ACTOR}.checkpoint.save_contents"),
    "store.report": not_written(
        True, reason="no report of its own: `poise import` its rollouts first"
    ),
    "track.to": pass_as("trainer.logger"),
}


def _loss_faults(config: RunConfig) -> list[str]:
    """Options of the loss and the schedule that verl honours only without certain others."""
    update, steps = config.update, config.batch.steps
    faults = []
    if update.schedule != "constant" and steps > 1:
        faults.append(
            f"update.schedule={update.schedule} with batch.steps={steps} (verl changes the rate "
            "once per update, not at every step)"
        )
    if update.clip_dual and update.surrogate != "grpo":
        faults.append(
            f"update.clip_dual={update.clip_dual:g} with update.surrogate={update.surrogate} "
            "(there verl has no dual clip)"
        )
    reads_signs = config.batch.composer in COMPOSERS_THAT_READ_SIGNS
    if update.kl_in_reward and (config.balance.tau or reads_signs):
        composer = config.batch.composer if reads_signs else "by_sign"
        faults.append(
            f"update.kl_in=reward with balance.tau or batch.composer={composer} (they see rewards "
            "before verl subtracts the KL)"
        )
    return faults


def _weights_faults(config: RunConfig) -> list[str]:
    """Token weights that verl honours only without certain other options."""
    method = config.credit.weights
    shown = f"credit.weights={display_name(method)}"
    if method == UNIFORM or method in REFUSED_WEIGHTS:
        return []
    faults = []
    if config.update.old_logprobs == "sampler":
        faults.append(f"{shown} with update.old_logprobs=sampler (they read verl's scoring pass)")
    if config.balance.tau and (fault := balance_fault(method)):
        faults.append(f"{shown} with balance.tau={config.balance.tau:g} ({fault})")
    return faults


def _reward_faults(config: RunConfig) -> list[str]:
    """What a user's reward function needs and verl's workers do not hand over."""
    if not is_plugin(config.verify.name):
        return []
    arguments = reward_arguments(config.verify.name)
    return [
        f"verify.name={display_name(config.verify.name)} (it needs {source}, which verl's workers "
        "do not have: give the parameter a default)"
        for name, source in arguments.keywords.items()
        if source in (TOKEN_IDS, TRAINER_STATE)
        and arguments.is_builtin_source(source)
        and name not in arguments.optional
    ]


def check_options(config: RunConfig, table: OptionTable = OPTIONS) -> list[str]:
    """Raise unless verl can honour every option; return what it leaves out, a line each."""
    faults = []
    # verl's mini-batch size is a number of prompts, the same for every step.
    if config.sample.prompts % config.batch.steps:
        faults.append(
            f"sample.prompts={config.sample.prompts} in batch.steps={config.batch.steps} "
            "(verl needs equal parts)"
        )
    faults += [*_loss_faults(config), *_weights_faults(config), *_reward_faults(config)]
    if len(config.evaluate.settings) > 1:
        faults.append(
            f"evaluate.settings={config.evaluate.settings} (verl evaluates in one way only)"
        )
    if config.model.name == "scratch" or config.model.name.startswith(SHAPE_PREFIX):
        faults.append(f"model.name={config.model.name} (verl loads a folder or a hub id)")
    if find_base(config.model.name):
        faults.append(f"model.name={config.model.name} (an adapter trains with --engine native)")
    check_support(config, table, "verl", faults)
    remarks = [f"verl has {omission}" for omission in list_omissions(config, table)]
    if config.balance.tau:
        remarks.append(
            f"loop.iterations={config.loop.iterations} counts updates, not sampling rounds"
        )
    return remarks
