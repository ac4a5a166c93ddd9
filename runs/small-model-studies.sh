#!/usr/bin/env bash
# Claims 4 and 7 to 9 on the two models of 1.27 M parameters, at sizes that two CPU cores allow in an
# evening: four times the prompts that left claims 7 to 9 inconclusive, and other ones (seed 1).
#
#     poise warmup scratch-sizes-warmup --out out/sizes/1.3M
#     bash runs/small-model-studies.sh embedded out/small/embedded
#     bash runs/small-model-studies.sh out/sizes/1.3M out/small/no-slips-1.3M
#
# The rules are those of the studies, unchanged (`poise study` prints them). The sizes were fixed here
# before any of these runs. Known then: the same claims at 96 prompts of seed 0, all inconclusive but
# claim 9 on the model without slips, and claim 4 on the embedded model.
set -euo pipefail
model=$1 out=$2

study() { # NAMES, then sizes
  poise study "$1" --model "$model" --out "$out" --set loop.seed=1 "${@:2}"
}

study budget,composition --size prompts=384 --size cores=24
study repeated --size prompts=384 --size repeated=192
study masking --size prompts=64 --size candidates=1024 --size real=128 --size rows=32
