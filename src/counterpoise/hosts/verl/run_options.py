"""What verl makes of every option of a run file; command.py writes it down as verl's own.

verl draws with vLLM, trains with FSDP2 over float32 weights in bfloat16 passes, and scores rollouts
by the trainer. Ours, through the adapter: credit, balance, plan; and the reward.

With reward balance one verl step samples until a batch is balanced, so `loop.iterations` counts
updates there, and sampling rounds in the native engine.
"""

from __future__ import annotations

from counterpoise.config import RunConfig
from counterpoise.hosts.translate_options import (
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
from counterpoise.model.shapes import SHAPE_PREFIX
from counterpoise.variants import COMPOSERS, COMPOSERS_THAT_READ_TOKENS

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
OPTIM, FSDP = f"{ACTOR}.optim", f"{ACTOR}.fsdp_config"
REWARD = "reward.custom_reward_function"
LOSS = {"grpo": "vanilla", "gspo": "gspo", "cispo": "cispo"}
AVERAGE = {
    "token_mean": "token-mean", "sequence_mean": "seq-mean-token-mean",
    "constant": "seq-mean-token-sum-norm",
}  # fmt: skip

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
    "batch.composer": to(
        "+poise.composer",
        values=tuple(name for name in COMPOSERS if name not in COMPOSERS_THAT_READ_TOKENS),
        why="a plan has no tokens there, and a function of yours would see no advantages",
    ),
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
    "track.to": to("trainer.logger"),
}


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
    if config.model.name == "scratch" or config.model.name.startswith(SHAPE_PREFIX):
        more.append(f"model.name={config.model.name} (verl loads a folder or a hub id)")
    check(config, table, "verl", more)
    told = [f"verl has {note}" for note in notes(config, table)]
    if config.balance.tau:
        told.append(f"loop.iterations={config.loop.iterations} counts updates, not sampling rounds")
    return told
