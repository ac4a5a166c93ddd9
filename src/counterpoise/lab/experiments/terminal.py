"""`poise experiment` at the terminal: progress of all runs, then the verdict."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table

from counterpoise.config.load import find_run
from counterpoise.errors import PoiseError, counted, unknown
from counterpoise.lab.experiments.design import RunKey
from counterpoise.lab.experiments.dry_run import describe_plan
from counterpoise.lab.experiments.experiment_file import Experiment, read_experiment
from counterpoise.lab.experiments.processes import FleetProgress, number_of_jobs
from counterpoise.lab.experiments.run import ExperimentRunner
from counterpoise.terminal import TerminalConsole, one_line

LINE_INTERVAL_SECONDS = 20.0  # seconds between lines where nothing can be drawn in place


@dataclass(frozen=True, slots=True)
class RunSelection:
    """Which runs of the experiment to train now; None: all."""

    seeds: str | None = None  # "0:4": the first four
    rates: str | None = None  # "1e-5,4e-5"
    arms: str | None = None  # "shuffled,QB"

    def select(self, experiment: Experiment) -> list[RunKey]:
        design = experiment.design
        seeds = _slice(self.seeds, list(design.seeds))
        rates = [_rate(text, design.rates) for text in _listed(self.rates)] or list(design.rates)
        arms = _listed(self.arms) or list(design.arms)
        for arm in arms:
            if arm not in design.arms:
                raise unknown("arm", arm, design.arms)
        chosen = set(seeds), set(rates), set(arms)
        return [
            key
            for key in design.run_keys()
            if key.seed in chosen[0] and key.rate in chosen[1] and key.arm in chosen[2]
        ]


def run_experiment(
    file: str,
    out: Path | None,
    selection: RunSelection,
    *,
    jobs: int | None,
    minutes: float | None,
    model: str | None,
    dry_run: bool,
) -> None:
    experiment = read_experiment(file, model)
    keys = selection.select(experiment)
    console = TerminalConsole()
    jobs = number_of_jobs() if jobs is None else jobs
    if dry_run:
        told = describe_plan(experiment, keys, out, jobs, minutes)
        console.print(told, highlight=False, markup=False, soft_wrap=True)
        return
    if out is None:
        raise PoiseError("--out is missing: the folder to make the experiment in")
    bench = ExperimentRunner.open(experiment, find_run(file), out)
    known = sum(key in bench.runs for key in keys)
    console.print(f"{experiment.name}: {counted(len(keys), 'run')}, {known} known", highlight=False)
    try:
        with _Display(console) as display:
            bench.train(keys, jobs, display.tell, minutes)
    except KeyboardInterrupt:
        console.print("stopped; the same command goes on", highlight=False)
        _conclude(bench, keys, console)
        raise
    _conclude(bench, keys, console)
    if bench.new_failures:
        failed = f"{counted(len(bench.new_failures), 'run')} failed"
        untried = sum(key not in bench.runs and key not in bench.failures for key in keys)
        if untried and minutes is None:
            failed += f" before any ended, {untried} left untried"
        raise PoiseError(f"{failed}; the same command tries again")


def _conclude(bench: ExperimentRunner, keys: Sequence[RunKey], console: Console) -> None:
    for key in bench.new_failures:
        said = f"{key.name} failed: {bench.failures[key]}"
        console.print(one_line(said), style="red", markup=False, highlight=False, soft_wrap=True)
    bench.save_curves()
    ended = sum(key in bench.runs for key in keys)
    console.print(f"{ended} of {len(keys)} runs are finished", highlight=False)
    if bench.runs or bench.failures:
        console.print(bench.conclude(), markup=False, highlight=False, soft_wrap=True)
        try:
            for path in bench.draw_figures() if bench.runs else ():
                console.print(str(path), markup=False, highlight=False, soft_wrap=True)
        except ModuleNotFoundError as fault:
            console.print(
                f"no figures: {fault.name} is not installed here; give this command "
                f"{bench.out / 'curves.parquet'} as a piece where it is",
                markup=False, highlight=False, soft_wrap=True,
            )  # fmt: skip
        console.print(f"tables {bench.out / 'results.md'}", markup=False, highlight=False)


class _Display:
    """A table in place on a terminal; elsewhere a line now and then."""

    def __init__(self, console: Console) -> None:
        self.console, self.last = console, -LINE_INTERVAL_SECONDS
        self.live = Live(console=console, transient=True, refresh_per_second=2)

    def __enter__(self) -> _Display:
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self.console.is_terminal:
            self.live.stop()

    def tell(self, standing: FleetProgress) -> None:
        left = standing.seconds_left
        head = f"{standing}, {100 * standing.done_share:.0f} %"
        head += f", {left / 60:.0f} min left" if left is not None else ""
        if self.console.is_terminal:
            table = Table(head, "iterations", box=None, header_style="bold", pad_edge=False)
            for name, behind in standing.running.items():
                table.add_row(name, str(behind))
            self.live.update(table)
        elif time.monotonic() - self.last > LINE_INTERVAL_SECONDS:
            self.last = time.monotonic()
            running = ", ".join(f"{name} {behind}" for name, behind in standing.running.items())
            line = f"{head}  [{running}]"
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)


def _listed(text: str | None) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()] if text else []


def _rate(text: str, rates: Sequence[float]) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = -1.0
    if rate not in rates:
        known = ", ".join(f"{each:g}" for each in rates)
        raise PoiseError(f"--rates {text} is not a rate of the experiment: {known}")
    return rate


def _slice(text: str | None, seeds: list[int]) -> list[int]:
    if text is None:
        return seeds
    first, colon, last = text.partition(":")
    if not colon or not all(part.isdigit() or not part for part in (first, last)):
        raise PoiseError(f"--seeds {text}: write A:B, such as 0:4 for the first four")
    chosen = seeds[int(first or 0) : int(last) if last else None]
    if not chosen:
        raise PoiseError(f"--seeds {text} names none of the experiment's {len(seeds)} seeds")
    return chosen
