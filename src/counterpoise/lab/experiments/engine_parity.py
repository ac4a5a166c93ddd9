"""Train one run file with several engines, and compare how they learn and how long they take.

    python -m counterpoise.lab.experiments.engine_parity --python trl=.venvs/trl/bin/python
    python -m counterpoise.lab.experiments.engine_parity qwen-coder-engines --seeds 3 \
        --arm native --arm "vllm=trl sample.engine=vllm" \
        --arm "vllm-shuffled=trl sample.engine=vllm batch.composer=shuffled"

Every seed trains the run once for each arm: the same prompts in every iteration, the same credit,
balance, plan and optimizer, but other random numbers in the sampler. The tables have the seconds of
an iteration (the median over all seeds from the third iteration on; the first two load and compile)
and success on sampled and held-out prompts: means over seeds with their 95 % intervals (Student),
and the difference of an arm from the first one, paired by seed.

Finished runs in --out are not trained again, and interrupted ones go on; so with --minutes the
comparison can be made in pieces. OUT/engines.json holds the curves of all finished runs.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from counterpoise.config.load import find_run_file, load_config
from counterpoise.errors import PoiseError, unknown_name
from counterpoise.files import atomic_write
from counterpoise.statistics.student import SeedMean, student_mean
from counterpoise.store.finished import is_finished
from counterpoise.store.folder import RunFolder, is_run
from counterpoise.terminal import echo

ENGINES = ("native", "trl")  # verl's runs do not store what the tables need
# Nothing but the numbers of the tables is stored or monitored.
RUN_OPTIONS = (
    "monitor.every=0", "store.tokens=false", "store.rollouts=false", "store.report=false",
    "store.model=false", "loop.threads=1",
)  # fmt: skip
DEMO_OPTIONS = ("loop.iterations=10", "evaluate.every=5")
WARM_UP_ITERATIONS = 2
RECORD_FILE = "engines.json"
SuccessCurve = dict[str, float]  # row of the table -> success


class Arm(NamedTuple):
    """An engine with options of its own.

    Example: Arm("vllm", "trl", ("sample.engine=vllm",))
    """

    name: str
    engine: str
    options: tuple[str, ...] = ()


class TrainedRun(NamedTuple):
    """What the tables need of a finished run."""

    arm: str
    seed: int
    curve: SuccessCurve
    iteration_seconds: list[float]


def parse_arm(text: str) -> Arm:
    """
    Example:
        >>> parse_arm("trl"), parse_arm("vllm=trl sample.engine=vllm")
        (Arm(name='trl', engine='trl', options=()), Arm(name='vllm', engine='trl', \
options=('sample.engine=vllm',)))
    """
    head, *options = shlex.split(text)
    name, sign, engine = head.partition("=")
    engine = engine if sign else name
    if engine not in ENGINES:
        raise unknown_name("engine", engine, ENGINES)
    return Arm(name, engine, tuple(options))


class EngineComparison:
    """The runs of several arms on the same seeds, in one folder.

    Example:
        comparison = EngineComparison("demo", [Arm("native", "native"), Arm("trl", "trl")],
                                      range(6), Path("out/engines"))
        comparison.train(minutes=25)
        echo(comparison.tables())
    """

    def __init__(
        self,
        run: str,
        arms: Sequence[Arm],
        seeds: Sequence[int],
        out: Path,
        *,
        options: Sequence[str] = (),
        pythons: Mapping[str, str] | None = None,
    ) -> None:
        self.run, self.arms, self.seeds, self.out = run, arms, seeds, out
        self.options = (*RUN_OPTIONS, *options)
        self.pythons = pythons or {}
        names = [arm.name for arm in arms]
        if len(set(names)) < len(names):
            raise PoiseError("two arms have the same name: write NAME=ENGINE OPTION...")
        # Found now, rather than when the first run of an arm starts.
        find_run_file(run)
        self.iterations = {
            arm.name: load_config(run, [*self.options, *arm.options]).loop.iterations
            for arm in arms
        }

    def train(self, minutes: float | None = None) -> None:
        """Train what is not finished, seed by seed; begin no run after `minutes`."""
        start_time = time.monotonic()
        for seed in self.seeds:
            for arm in self.arms:
                if minutes is not None and time.monotonic() - start_time > 60 * minutes:
                    return
                if not self._is_finished(arm, seed):
                    echo(f"{arm.name}, seed {seed}")
                    self._train_one(arm, seed)

    def finished_runs(self) -> list[TrainedRun]:
        """The finished runs, by arm and seed."""
        return [
            read_run(self._folder(arm, seed), arm.name, seed)
            for arm in self.arms
            for seed in self.seeds
            if self._is_finished(arm, seed)
        ]

    def save(self, runs: Sequence[TrainedRun]) -> None:
        """Write the record file."""
        content = {
            "run": self.run,
            "options": self.options,
            "arms": [arm._asdict() for arm in self.arms],
            "runs": [trained._asdict() for trained in runs],
        }
        with atomic_write(self.out / RECORD_FILE) as temporary:
            temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")

    def _folder(self, arm: Arm, seed: int) -> Path:
        return self.out / f"{arm.name}-{seed}"

    def _is_finished(self, arm: Arm, seed: int) -> bool:
        return is_finished(self._folder(arm, seed), self.iterations[arm.name])

    def _train_one(self, arm: Arm, seed: int) -> None:
        """Train in a process of its own: two engines do not share one well."""
        folder = self._folder(arm, seed)
        python = self.pythons.get(arm.engine, sys.executable)
        command = [python, "-m", "counterpoise.cli", "train", "--out", str(folder)]
        if is_run(folder):
            command.append("--resume")
        else:
            sets = (*self.options, *arm.options, f"loop.seed={seed}")
            command += [self.run, "--engine", arm.engine, *(f"--set={option}" for option in sets)]
        status = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}).returncode
        if status:
            raise PoiseError(f"{folder}: the run ended with exit code {status}; see above")


def read_run(path: Path, arm: str, seed: int) -> TrainedRun:
    """The curve of a finished run: success on sampled and on held-out prompts, by iteration."""
    folder = RunFolder.open(path)
    metrics = folder.read("metrics")
    sampled = {f"sampled {record['iteration']}": record["success"] for record in metrics}
    heldout = {
        f"held-out {record['iteration']}": record["mean"] for record in folder.read("evaluations")
    }
    return TrainedRun(
        arm, seed, sampled | heldout, [record["iteration_seconds"] for record in metrics]
    )


# -- tables --------------------------------------------------------------------------------------


def summary_table(runs: Sequence[TrainedRun]) -> str:
    """A row for every arm: seconds of an iteration, held-out success, difference from the first."""
    arms = list(dict.fromkeys(trained.arm for trained in runs))
    lines = [
        f"| arm | seeds | seconds an iteration | held-out success, % | minus {arms[0]} |",
        "|---|---|---|---|---|",
    ]
    for arm in arms:
        arm_runs = [trained for trained in runs if trained.arm == arm]
        seconds = [
            value
            for trained in arm_runs
            for value in trained.iteration_seconds[WARM_UP_ITERATIONS:]
        ]
        last_row = _heldout_rows(arm_runs)[-1]
        cells = (
            arm,
            str(len(arm_runs)),
            f"{statistics.median(seconds):.2f}" if seconds else "",
            format_mean(student_mean([trained.curve[last_row] for trained in arm_runs])),
            "" if arm == arms[0] else format_mean(_difference(runs, arms[0], arm, last_row), True),
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def curve_table(runs: Sequence[TrainedRun], first: str, other: str) -> str:
    """A row for every point of the curves; column `in`: each mean lies in the other's interval."""
    lines = [
        f"| success, % | {first} | {other} | {other} - {first} | in |",
        "|---|---|---|---|---|",
    ]
    curves = {
        arm: [trained.curve for trained in runs if trained.arm == arm] for arm in (first, other)
    }
    for row_name in curves[first][0]:
        first_mean, other_mean = (
            student_mean([curve[row_name] for curve in curves[arm]]) for arm in (first, other)
        )
        each_in_other = (
            first_mean.low <= other_mean.value <= first_mean.high
            and other_mean.low <= first_mean.value <= other_mean.high
        )
        cells = (
            row_name,
            format_mean(first_mean),
            format_mean(other_mean),
            format_mean(_difference(runs, first, other, row_name), signed=True),
            "yes" if each_in_other else "no",
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _heldout_rows(runs: Sequence[TrainedRun]) -> list[str]:
    return [row_name for row_name in runs[0].curve if row_name.startswith("held-out")]


def _difference(runs: Sequence[TrainedRun], first: str, other: str, row_name: str) -> SeedMean:
    """`other` minus `first` over the seeds that both have."""
    values = {
        arm: {trained.seed: trained.curve[row_name] for trained in runs if trained.arm == arm}
        for arm in (first, other)
    }
    common = sorted(values[first].keys() & values[other].keys())
    return student_mean([values[other][seed] - values[first][seed] for seed in common])


def format_mean(mean: SeedMean, signed: bool = False) -> str:
    """A share in percent with its interval, which a single seed has not: "46.3 [41.2, 51.4]"."""
    sign = "+" if signed else ""
    low, high = 100 * mean.low, 100 * mean.high
    interval = f" [{low:{sign}.1f}, {high:{sign}.1f}]" if mean.n > 1 else ""
    return f"{100 * mean.value:{sign}.1f}{interval}"


# -- the command ---------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", nargs="?", default="demo", help="a run file or preset")
    parser.add_argument(
        "--arm", action="append", help="ENGINE, or NAME=ENGINE OPTION...; default: native and trl"
    )
    parser.add_argument(
        "--python", action="append", default=[], help="ENGINE=PATH: the Python that has the engine"
    )
    parser.add_argument("--set", action="append", default=[], help="section.option=value, of all")
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--minutes", type=float, help="begin no run after so long")
    parser.add_argument("--out", type=Path, default=Path("out/engines"))
    given: Any = parser.parse_args(arguments)
    options = [*(DEMO_OPTIONS if given.run == "demo" else ()), *given.set]
    try:
        comparison = EngineComparison(
            given.run,
            [parse_arm(text) for text in given.arm or ENGINES],
            range(given.seeds),
            given.out,
            options=options,
            pythons=dict(pair.split("=", 1) for pair in given.python),
        )
        comparison.train(given.minutes)
        runs = comparison.finished_runs()
    except PoiseError as fault:
        echo(f"poise: {fault}")
        return 2
    if not runs:
        echo("no run is finished yet: repeat the command")
        return 0
    comparison.save(runs)
    echo(summary_table(runs))
    first, *others = dict.fromkeys(trained.arm for trained in runs)
    for other in others:
        echo("\n" + curve_table(runs, first, other))
    return 0


if __name__ == "__main__":
    sys.exit(main())
