"""The batching rules side by side on the embedded model: none, QB, RB, QB+RB, by_sign.

Fixed before any run: the arms, the seeds 0, 1, 2, 60 iterations, everything else as in
runs/demo.toml. The metric is held-out success at temperature 1 after the last iteration, 256
problems x 4 samples, the same problems for all. An arm's interval is over its seeds (Student's t).

    python benchmarks/interventions.py                     15 runs, about an hour on two cores
    python benchmarks/interventions.py --jobs 15           where there are cores or a GPU to share
    python benchmarks/interventions.py --arms QB+RB        one arm

Runs go to --out and are taken up where they stopped, so the command can be repeated.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ARMS = {
    "none": ["batch.composer=shuffled", "balance.tau=0"],
    "QB": ["batch.composer=grouped", "balance.tau=0"],
    "RB": ["batch.composer=shuffled", "balance.tau=0.25"],
    "QB+RB": ["batch.composer=grouped", "balance.tau=0.25"],
    "by_sign": ["batch.composer=by_sign", "balance.tau=0"],
}
SEEDS = (0, 1, 2)
COMMON = [
    "loop.iterations=60", "evaluate.prompts=256", "evaluate.samples=4", "model.dtype=float32",
    "store.rollouts=false", "store.tokens=false", "loop.threads=1",
]  # fmt: skip
STUDENT_T = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}  # 97.5 % quantile by number of seeds


def run(arm: str, seed: int, out: Path) -> dict[str, Any]:
    """One training run in its own process; returns what the table needs."""
    folder = out / f"{arm}-{seed}"
    command = [sys.executable, __file__, "--one", arm, str(seed), "--out", str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    with (out / f"{arm}-{seed}.log").open("w") as log:
        code = subprocess.run(command, stdout=log, stderr=log, env=environment).returncode
    if code:
        raise SystemExit(f"{arm} seed {seed} failed: see {out / f'{arm}-{seed}.log'}")
    before, *_, after = _lines(folder / "evaluations.jsonl")
    metrics = _lines(folder / "metrics.jsonl")
    done = {
        "arm": arm,
        "seed": seed,
        "before": before["mean"],
        "after": after["mean"],
        "updates": sum(r["steps"] for r in metrics),
        "rollouts": sum(r["rollouts"] for r in metrics),
        "entropy": next(r["entropy"] for r in reversed(metrics) if r["entropy"] is not None),
    }
    print(f"{arm:>8} seed {seed}: {done['before']:.3f} -> {done['after']:.3f}", flush=True)
    return done


def train_one(arm: str, seed: int, out: Path) -> None:
    import torch

    from counterpoise.loop import train
    from counterpoise.runfile import load_config

    torch.set_num_threads(1)
    config = load_config("demo", [*COMMON, *ARMS[arm], f"loop.seed={seed}"])
    folder = out / f"{arm}-{seed}"
    train(config, folder, resume=(folder / "config.toml").exists())


def table(results: list[dict[str, Any]]) -> str:
    lines = [
        "| arm | before | after, mean of seeds [95 %] | gain | updates | per 1,000 rollouts |",
        "|---|---|---|---|---|---|",
    ]
    for arm in dict.fromkeys(r["arm"] for r in results):
        mine = [r for r in results if r["arm"] == arm]
        after = [100 * r["after"] for r in mine]
        gain = [100 * (r["after"] - r["before"]) for r in mine]
        per_thousand = _mean(g / (r["rollouts"] / 1000) for g, r in zip(gain, mine, strict=True))
        before, updates = _mean(100 * r["before"] for r in mine), _mean(r["updates"] for r in mine)
        lines.append(
            f"| {arm} | {before:.1f} | {_interval(after)} | {_interval(gain, '+')} | "
            f"{updates:.0f} | {per_thousand:+.1f} |"
        )
    return "\n".join(lines)


def _interval(values: list[float], sign: str = "") -> str:
    mean = statistics.mean(values)
    if len(values) < 2:
        return f"{mean:{sign}.1f}"
    half = STUDENT_T[len(values)] * statistics.stdev(values) / math.sqrt(len(values))
    return f"{mean:{sign}.1f} [{mean - half:{sign}.1f}, {mean + half:{sign}.1f}]"


def _mean(values: Any) -> float:
    return statistics.mean(values)


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--out", type=Path, default=Path("out/interventions"))
    parser.add_argument("--one", nargs=2, metavar=("ARM", "SEED"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.one:
        train_one(args.one[0], int(args.one[1]), args.out)
        return
    with ThreadPoolExecutor(args.jobs) as pool:
        jobs = [pool.submit(run, arm, seed, args.out) for arm in args.arms for seed in SEEDS]
        results = [job.result() for job in jobs]
    (args.out / "results.json").write_text(json.dumps(results, indent=1))
    print(table(results))


if __name__ == "__main__":
    main()
