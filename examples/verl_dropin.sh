#!/usr/bin/env bash
# verl's GRPO with planned batches: an ordinary verl command, and the four lines of `ours`.
#
#     TRAIN=train.parquet VAL=test.parquet examples/verl_dropin.sh      # one machine with 8 GPUs
#     ... examples/verl_dropin.sh trainer.nnodes=2                      # arguments are passed on
#
# A batch is 512 prompts with 8 rollouts each; four optimizer steps share it. Plain verl distributes
# the rollouts by length, which splits most groups. Here every group stays whole, and an update waits
# until the rarer sign has at least a quarter of its rollouts. `ours=()` is the plain run.
set -euo pipefail

ours=(
  algorithm.adv_estimator=poise_grpo   # GRPO's formula, computed by us; RB needs it
  +poise.composer=grouped              # QB
  +poise.tau=0.25                      # RB
  +poise.unit=rollout
)

exec "${PYTHON:-python}" -m verl.trainer.main_ppo \
  algorithm.adv_estimator=grpo \
  algorithm.use_kl_in_reward=False \
  data.train_files="${TRAIN:-train.parquet}" \
  data.val_files="${VAL:-test.parquet}" \
  data.train_batch_size=512 \
  data.max_prompt_length=1024 \
  data.max_response_length=4096 \
  actor_rollout_ref.model.path="${MODEL:-Qwen/Qwen3-1.7B-Base}" \
  actor_rollout_ref.actor.optim.lr=1e-6 \
  actor_rollout_ref.actor.ppo_mini_batch_size=128 \
  actor_rollout_ref.actor.use_dynamic_bsz=True \
  actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16384 \
  actor_rollout_ref.actor.clip_ratio_high=0.28 \
  actor_rollout_ref.actor.use_kl_loss=False \
  actor_rollout_ref.actor.entropy_coeff=0 \
  actor_rollout_ref.rollout.name=vllm \
  actor_rollout_ref.rollout.n=8 \
  actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True \
  trainer.n_gpus_per_node=8 \
  trainer.nnodes=1 \
  trainer.logger='["console"]' \
  "${ours[@]}" "$@"
