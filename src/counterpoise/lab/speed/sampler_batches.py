"""Time the native sampler against transformers' `generate` over batch sizes, in one run.

Two workloads for every batch size:
    equal   both decode exactly --length tokens for every row, end tokens ignored
    real    both stop at the end token; only tokens up to it count

The two take turns, --rounds times each, and their medians are compared: on a noisy machine the
ratio is what matters. `poise bench --parts sampler` also compares with the machine's limits, and
runs on a GPU.

    python -m counterpoise.lab.speed.sampler_batches
    python -m counterpoise.lab.speed.sampler_batches --batches 16x8 --rounds 9 --json sampler.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from counterpoise.config import ModelConfig
from counterpoise.lab.speed.sampler import sample_native, sample_transformers
from counterpoise.model.load import load_policy
from counterpoise.task.word_problems import make_problem
from counterpoise.terminal import echo

BATCHES = ["1x1", "2x1", "1x8", "4x8", "16x8", "32x8", "64x8"]


def measure_speed(work: Callable[[], int]) -> float:
    """Tokens per second of one call."""
    start_time = time.perf_counter()
    tokens = work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return tokens / (time.perf_counter() - start_time)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--batches", nargs="+", default=BATCHES, help="PROMPTSxRESPONSES")
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    policy = load_policy(ModelConfig(name=args.model, dtype="float32"))
    endless = replace(policy, end_tokens=(-1,))
    echo(
        f"{policy.num_parameters / 1e6:.1f} M parameters on {policy.device}, "
        f"{torch.get_num_threads()} threads"
    )
    echo(f"{'batch':>8} {'work':>6} {'native tok/s':>13} {'generate tok/s':>15} {'ratio':>6}")
    rows = []
    for batch in args.batches:
        P, G = map(int, batch.split("x"))
        prompts = [policy.encode(make_problem("heldout", i, (3,)).problem) for i in range(P)]
        for equal in (True, False):
            length = args.length if equal else 112
            native = partial(sample_native, endless if equal else policy, prompts, G, length)
            generate = partial(sample_transformers, policy, prompts, G, length, full_length=equal)
            native_speeds, generate_speeds = [], []
            for turn in range(args.rounds + 1):
                speeds = measure_speed(native), measure_speed(generate)
                if turn:  # the first turn warms up
                    native_speeds.append(speeds[0])
                    generate_speeds.append(speeds[1])
            own_speed = statistics.median(native_speeds)
            peer_speed = statistics.median(generate_speeds)
            work = "equal" if equal else "real"
            rows.append(
                {
                    "batch": batch,
                    "work": work,
                    "native": own_speed,
                    "generate": peer_speed,
                    "ratio": own_speed / peer_speed,
                }
            )
            echo(
                f"{batch:>8} {work:>6} {own_speed:13,.0f} {peer_speed:15,.0f} "
                f"{own_speed / peer_speed:6.2f}"
            )
    echo(f"smallest ratio: {min(row['ratio'] for row in rows):.2f}")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
