"""TRL's GRPOTrainer and ours, the sampler and the update against their floors: one run, one GPU.

    python benchmarks/gpu.py                                  # about four minutes on an H200
    python benchmarks/gpu.py --parts growth --minutes 5       # 128 to 4,096 rollouts, to 1.7 B
    python benchmarks/gpu.py --parts growth --growth length=2048,size      # the dear points alone
    python benchmarks/gpu.py --model smollm2 --parts agreement
    python benchmarks/gpu.py --profile sampler                # its kernels, by time

peer       a whole iteration of TRL 1.16 and of ours, 64 x 8 x 128 tokens, bfloat16
sampler    ours, transformers' generate, and bytes over the measured copy rate
update     ours, a padded one, and FLOP over the measured matrix rate; SmolLM2-135M, Qwen3-1.7B
agreement  log-probabilities of sampler and trainer; a gradient against float32
monitor    what the online monitor adds to an iteration
growth     with rollouts, response length and model size

Without a GPU it measures what `poise bench` does: the embedded model on the CPU. What was
measured: docs/results/speed.md; the arithmetic of the floors: lab/speed/floors.py.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from counterpoise.errors import PoiseError
from counterpoise.lab.speed.run import DEFAULT_PARTS, BenchOptions, run
from counterpoise.lab.speed.tables import make_console
from counterpoise.variants import SPEED_MEASUREMENTS


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--parts", default=",".join(DEFAULT_PARTS), help=f"of {', '.join(SPEED_MEASUREMENTS)}"
    )
    parser.add_argument("--model", default="", help="default: shape:smollm2-135m (random weights)")
    parser.add_argument(
        "--minutes", type=float, help="parts and growth points after it are skipped"
    )
    parser.add_argument("--json", type=Path, default=Path("out/bench.json"))
    parser.add_argument("--profile", default="", help="list a part's kernels instead")
    parser.add_argument("--set", dest="sets", action="append", default=[], help="update.x=y")
    parser.add_argument(
        "--growth", default="", help="of rollouts, length and size, or points of them: length=2048"
    )
    args = parser.parse_args()
    options = BenchOptions(
        parts=args.parts.split(","), model=args.model, minutes=args.minutes, out=args.json,
        profile=args.profile, sets=args.sets, growth=[p for p in args.growth.split(",") if p],
    )  # fmt: skip
    try:
        run(options, make_console())
    except PoiseError as fault:
        sys.exit(f"bench: {fault}")


if __name__ == "__main__":
    main()
