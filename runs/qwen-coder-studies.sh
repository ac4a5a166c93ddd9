#!/usr/bin/env bash
# The paper's claims about tokens, on a real model and real mathematics: Qwen2.5-Coder-0.5B-Instruct
# on GSM8K train. No warm-up and no planted mistakes; about 16 % of its responses are right at first.
#
#     bash runs/qwen-coder-studies.sh MODEL.gguf gsm8k_train.jsonl out/qwen-studies [MINUTES]
#
# The rules are those of the studies, unchanged (`poise study` prints them). Model, data, sizes and
# learning rate were fixed here before any of these studies ran on this model. Known then: one update
# in a first training run boosted 46 % of the tokens of positive and 45 % of those of negative
# rollouts, and runs/qwen-coder-aligned-pilot.toml, whose best rate for plain GRPO, 3e-6, is used here.
# Weights from a 4-bit GGUF keep its rounding: say so beside the results.
#
# It needs a GPU of 80 GB or more for itself: a training run of `flipping` in float32 takes 60 GB.
# With MINUTES the script stops after that long, and the same command continues it. The sizes are
# what about twenty minutes of an H200 allow, so small effects stay open.
set -euo pipefail
model=$1 data=$2 out=$3 minutes=${4:-1440}

study() { # NAMES, then sizes
  local minutes_left=$((minutes - SECONDS / 60))
  ((minutes_left > 0)) || return 0
  poise study "$1" --model "$model" --budget full --out "$out" --minutes "$minutes_left" \
    --set task.name=files --set task.path="$data" --set model.template=chat-boxed \
    --set sample.max_new_tokens=384 --set update.lr=3e-6 \
    --set store.model=false --set store.report=false --set loop.checkpoint_every=1000 "${@:2}"
}

# Held-out answers (docs/guide/report.md#trace): done, docs/data/qwen-coder-0.5B-trace.parquet. These
# sizes were fixed before its steps were measured; an earlier measurement at other sizes was stopped
# after seven steps and discarded.
study trace --size prompts=48 --size batches=8 --size answers=256

# Single updates: claims 1 to 5, 10 and 11.
study flipping,polarity,proxy --size prompts=48 --size batches=4 --size iterations=12
study coupling --size prompts=48 --size watched=4096
study variance --size prompts=160 --size direction_prompts=64 --size draws=32
study masking --size prompts=32 --size candidates=400 --size real=48 --size rows=24

# Token values, each the difference of two means over 32 continuations: claims 6 to 9 and 15 to 17.
study value,shared,repeated,composition,budget --size continuations=32 --size open=12 \
  --size closed=4 --size cell=200 --size batches=3 --size repeated=48 --size steps=8
