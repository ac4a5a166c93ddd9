"""`poise experiment` on the terminal: live progress of all runs, then the verdict."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table

from counterpoise.config.load import find_run_file
from counterpoise.errors import PoiseError, format_count, unknown_name
from counterpoise.lab.experiments.design import RunKey
from counterpoise.lab.experiments.dry_run import describe_plan
from counterpoise.lab.experiments.experiment_file import Experiment
from counterpoise.lab.experiments.pieces import CURVES_FILE
from counterpoise.lab.experiments.pilot_rates import explain_missing_rates
from counterpoise.lab.experiments.processes import FleetProgress, number_of_jobs
from counterpoise.lab.experiments.run import ExperimentRunner
from counterpoise.lab.experiments.shell_commands import evaluation_command
from counterpoise.report.charts.vega import explain_missing_package
from counterpoise.store.folder import is_run
from counterpoise.terminal import TerminalConsole, one_line

LINE_INTERVAL_SECONDS = 20.0  # between progress lines, where the output is not a terminal


@dataclass(frozen=True, slots=True)
class RunSelection:
    """The runs of the experiment to train now, as given on the command line; None: all."""

    seeds: str | None = None  # "0:4": the first four
    rates: str | None = None  # "1e-5,4e-5"
    arms: str | None = None  # "shuffled,QB"

    def select(self, experiment: Experiment) -> list[RunKey]:
        """The selected runs in the order of the experiment."""
        design = experiment.design
        seeds = set(_slice_seeds(self.seeds, list(design.seeds)))
        rates = {_parse_rate(rate_text, design.rates) for rate_text in _split_list(self.rates)}
        arms = _split_list(self.arms) or list(design.arms)
        for arm in arms:
            if arm not in design.arms:
                raise unknown_name("arm", arm, design.arms)
        return [
            run_key
            for run_key in design.run_keys()
            if run_key.seed in seeds
            and (not rates or run_key.rate in rates)
            and run_key.arm in arms
        ]


def run_experiment(
    file: str,
    experiment: Experiment,
    out: Path | None,
    selection: RunSelection,
    *,
    jobs: int | None,
    minutes: float | None,
    dry_run: bool,
) -> None:
    """Run `poise experiment`: train the selected runs, or describe the plan with `dry_run`.

    `experiment` was read from `file`.
    """
    run_keys = selection.select(experiment)
    console = TerminalConsole()
    jobs = number_of_jobs() if jobs is None else jobs
    if dry_run:
        plan_text = describe_plan(experiment, run_keys, out, jobs, minutes)
        console.print(plan_text, highlight=False, markup=False, soft_wrap=True)
        return
    if out is None:
        raise PoiseError("--out is missing: name the folder for the experiment")
    runner = ExperimentRunner.open(experiment, find_run_file(file), out)
    already_finished = sum(run_key in runner.runs for run_key in run_keys)
    console.print(
        f"{experiment.name}: {format_count(len(run_keys), 'run')}, {already_finished} finished "
        "already",
        highlight=False,
    )
    try:
        with _Display(console) as display:
            runner.train(run_keys, jobs, display.show, minutes)
    except KeyboardInterrupt:  # what has finished is still worth a table
        console.print("stopped; run the same command again to continue", highlight=False)
        _conclude(runner, run_keys, console)
        raise
    _conclude(runner, run_keys, console)
    if runner.new_failures:
        message = f"{format_count(len(runner.new_failures), 'run')} failed"
        untried = sum(
            run_key not in runner.runs and run_key not in runner.failures for run_key in run_keys
        )
        if untried and minutes is None:
            message += f" before any finished, {untried} not tried"
        raise PoiseError(f"{message}; the same command tries again")


def _conclude(runner: ExperimentRunner, keys: Sequence[RunKey], console: Console) -> None:
    """Print failures and the verdict, and write tables and figures."""
    for run_key in runner.new_failures:
        message = f"{run_key.name} failed: {runner.failures[run_key]}"
        console.print(one_line(message), style="red", markup=False, highlight=False, soft_wrap=True)
    runner.save_curves()
    finished = sum(run_key in runner.runs for run_key in keys)
    console.print(f"{finished} of {len(keys)} runs are finished", highlight=False)
    # Without rates nothing can be trained, nor taken from other experiments.
    unfinished = [run_key for run_key in keys if run_key not in runner.runs]
    if message := explain_missing_rates(runner.pilot_choice, unfinished, runner.experiment):
        console.print(message, markup=False, highlight=False, soft_wrap=True)
    if runner.runs or runner.failures:
        console.print(runner.conclude(), markup=False, highlight=False, soft_wrap=True)
        try:
            for path in runner.draw_figures() if runner.runs else ():
                console.print(str(path), markup=False, highlight=False, soft_wrap=True)
        except ModuleNotFoundError as fault:
            remedy = explain_missing_package(fault)
            if remedy is None:
                raise
            console.print(
                f"no figures: {remedy}, or use {runner.out / CURVES_FILE} as a piece on a machine "
                "that has it",
                markup=False, highlight=False, soft_wrap=True,
            )  # fmt: skip
        console.print(f"tables {runner.out / 'results.md'}", markup=False, highlight=False)
    # A run that came from a piece, or whose folder was removed, has no model here.
    folders = [runner.out / "runs" / key.name for key in keys]
    models = [run_folder for run_folder in folders if is_run(run_folder)]
    if finished == len(keys) and models and runner.experiment.options.benchmarks:
        command = shlex.join(evaluation_command(runner.experiment, models, runner.out))
        absent = len(folders) - len(models)
        note = f" ({format_count(absent, 'run')} left out, not in this folder)" if absent else ""
        console.print(f"next{note}: {command}", markup=False, highlight=False, soft_wrap=True)


class _Display:
    """A live table on a terminal; elsewhere a progress line from time to time."""

    def __init__(self, console: Console) -> None:
        self.console, self.last_line_time = console, -LINE_INTERVAL_SECONDS
        self.live = Live(console=console, transient=True, refresh_per_second=2)

    def __enter__(self) -> _Display:
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self.console.is_terminal:
            self.live.stop()

    def show(self, progress: FleetProgress) -> None:
        seconds_left = progress.seconds_left
        summary = f"{progress}, {100 * progress.done_share:.0f} %"
        summary += f", {seconds_left / 60:.0f} min left" if seconds_left is not None else ""
        if self.console.is_terminal:
            table = Table(summary, "iterations", box=None, header_style="bold", pad_edge=False)
            for run_name, iterations in progress.running.items():
                table.add_row(run_name, str(iterations))
            self.live.update(table)
        elif time.monotonic() - self.last_line_time > LINE_INTERVAL_SECONDS:
            self.last_line_time = time.monotonic()
            running = ", ".join(
                f"{run_name} {iterations}" for run_name, iterations in progress.running.items()
            )
            progress_line = f"{summary}  [{running}]"
            self.console.print(progress_line, markup=False, highlight=False, soft_wrap=True)


def _split_list(comma_separated: str | None) -> list[str]:
    return (
        [item.strip() for item in comma_separated.split(",") if item.strip()]
        if comma_separated
        else []
    )


def _parse_rate(rate_text: str, rates: Sequence[float]) -> float:
    try:
        rate = float(rate_text)
    except ValueError:
        rate = -1.0  # not a rate of any experiment, so the error below is raised
    if rate not in rates:
        known_rates = ", ".join(f"{known_rate:g}" for known_rate in rates)
        raise PoiseError(f"--rates {rate_text} is not a rate of the experiment: {known_rates}")
    return rate


def _slice_seeds(seed_slice: str | None, seeds: list[int]) -> list[int]:
    if seed_slice is None:
        return seeds
    first_text, colon, past_last_text = seed_slice.partition(":")
    if not colon or not all(bound.isdigit() or not bound for bound in (first_text, past_last_text)):
        raise PoiseError(f"--seeds {seed_slice}: write A:B, such as 0:4 for the first four")
    selected = seeds[int(first_text or 0) : int(past_last_text) if past_last_text else None]
    if not selected:
        raise PoiseError(f"--seeds {seed_slice} names none of the experiment's {len(seeds)} seeds")
    return selected
