"""Train one run file with two engines, native and TRL, and compare how they learn.

    python -m counterpoise.lab.experiments.engine_parity --trl .venvs/trl/bin/python --seeds 6

Every seed trains the embedded model with both engines: the same prompts in every iteration, the
same credit, balance, plan and optimizer, but other random numbers in the sampler. The table has
success on the prompts of each iteration and on held-out problems: the mean over seeds with its 95 %
interval (Student), and the difference of the engines, paired by seed. Runs that are already in the
folder --out are not trained again.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from counterpoise.statistics.student import SeedMean, student_mean
from counterpoise.store.finished import is_finished
from counterpoise.store.folder import RunFolder
from counterpoise.terminal import echo

ENGINES = ("native", "trl")
# Nothing but the numbers of the table is stored or monitored.
RUN_OPTIONS = (
    "evaluate.every=5", "monitor.every=0", "store.tokens=false", "store.rollouts=false",
    "store.report=false", "store.model=false", "loop.threads=1",
)  # fmt: skip
SuccessCurve = dict[str, float]  # row of the table -> success


def train_with_engine(engine: str, python: str, seed: int, iterations: int, out: Path) -> None:
    """Train one seed in a process of its own, unless `out` has the finished run."""
    if is_finished(out, iterations):
        return
    command = [python, "-m", "counterpoise.cli", "train", "demo", "--engine", engine]
    command += ["--out", str(out), "--set", f"loop.seed={seed}"]
    command += ["--set", f"loop.iterations={iterations}"]
    for option in RUN_OPTIONS:
        command += ["--set", option]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


def read_curve(out: Path) -> SuccessCurve:
    """Success on sampled and on held-out prompts, by iteration."""
    folder = RunFolder.open(out)
    sampled = {
        f"sampled {record['iteration']}": record["success"] for record in folder.read("metrics")
    }
    heldout = {
        f"held-out {record['iteration']}": record["mean"] for record in folder.read("evaluations")
    }
    return sampled | heldout


def format_mean(mean: SeedMean, signed: bool = False) -> str:
    """A share in percent with its interval, which a single seed has not: "46.3 [41.2, 51.4]"."""
    sign = "+" if signed else ""
    low, high = 100 * mean.low, 100 * mean.high
    interval = f" [{low:{sign}.1f}, {high:{sign}.1f}]" if mean.n > 1 else ""
    return f"{100 * mean.value:{sign}.1f}{interval}"


def comparison_table(curves: dict[str, list[SuccessCurve]]) -> str:
    """A Markdown table; column `in`: whether each engine's mean lies in the other's interval."""
    table_lines = ["| success, % | native | TRL | TRL - native | in |", "|---|---|---|---|---|"]
    for row_name in curves["native"][0]:
        native_values, trl_values = (
            [curve[row_name] for curve in curves[engine]] for engine in ENGINES
        )
        native, trl = student_mean(native_values), student_mean(trl_values)
        difference = student_mean(
            [
                trl_value - native_value
                for native_value, trl_value in zip(native_values, trl_values, strict=True)
            ]
        )
        each_in_other = (
            native.low <= trl.value <= native.high and trl.low <= native.value <= trl.high
        )
        cells = (
            row_name,
            format_mean(native),
            format_mean(trl),
            format_mean(difference, signed=True),
            "yes" if each_in_other else "no",
        )
        table_lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(table_lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trl", default=sys.executable, help="a Python that has TRL 1.16")
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("out/engines"))
    arguments = parser.parse_args()
    pythons = {"native": sys.executable, "trl": arguments.trl}
    curves: dict[str, list[SuccessCurve]] = {engine: [] for engine in ENGINES}
    for seed in range(arguments.seeds):
        for engine in ENGINES:
            run_folder = arguments.out / f"{engine}-{seed}"
            train_with_engine(engine, pythons[engine], seed, arguments.iterations, run_folder)
            curves[engine].append(read_curve(run_folder))
    echo(comparison_table(curves))


if __name__ == "__main__":
    main()
