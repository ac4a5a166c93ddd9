"""`poise experiment FILE --dry-run`: what would be trained, what is done, how long it would take.

    remaining = requested - finished             in the folder, its table or a piece
    time      = ceil(remaining / jobs) * median  of the seconds that finished runs took

Nothing is written. The time of a run is taken from all finished runs of the experiment, those of
pieces included. It depends on the machine and on how many runs share it, so pieces from another
machine mislead.
"""

from __future__ import annotations

import math
import shlex
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from counterpoise.config.load import find_plugin_options, load_config
from counterpoise.errors import format_count
from counterpoise.lab.experiments.arm_plugins import display_option
from counterpoise.lab.experiments.curves import read_curve, run_seconds
from counterpoise.lab.experiments.decision_rule import describe_rule
from counterpoise.lab.experiments.design import Design, RunKey
from counterpoise.lab.experiments.experiment_file import Experiment, prefix_errors
from counterpoise.lab.experiments.missing_packages import missing_packages
from counterpoise.lab.experiments.pieces import read_pieces
from counterpoise.lab.experiments.pilot_rates import PilotRuns, describe_progress, find_pilot
from counterpoise.lab.experiments.reused_runs import describe_reused_runs
from counterpoise.lab.experiments.verdicts import describe_power
from counterpoise.run.estimate import describe_memory, describe_task
from counterpoise.run.try_plugins import try_plugins
from counterpoise.store.finished import has_ended
from counterpoise.store.folder import RunFolder, check_no_run, is_run


@dataclass(frozen=True, slots=True)
class ExperimentProgress:
    """How far the requested runs are."""

    finished: int
    started: int  # neither finished nor failed
    failed: int  # so far
    remaining: int  # includes the started and the failed ones
    seconds: list[float]  # of every finished run of the experiment
    reused: list[str]  # sentences about runs that were trained for another experiment
    pilot: PilotRuns | None  # where a pilot chooses the rates


def survey_progress(
    experiment: Experiment, keys: Sequence[RunKey], out: Path
) -> ExperimentProgress:
    """Count the requested runs that are finished, started, failed and remaining in `out`."""
    check_no_run(out, "an experiment")
    pieces = read_pieces(out, experiment)
    curves = dict(pieces.runs)
    started = set()
    for run_key in experiment.design.run_keys():
        run_folder = out / "runs" / run_key.name
        # Folders may hold runs that finished after the table was last written.
        if run_key not in curves and is_run(run_folder):
            if has_ended(run_folder):
                curves[run_key] = read_curve(RunFolder.open(run_folder))
            else:
                started.add(run_key)
    remaining = [run_key for run_key in keys if run_key not in curves]
    return ExperimentProgress(
        finished=len(keys) - len(remaining),
        started=sum(run_key in started and run_key not in pieces.failures for run_key in remaining),
        failed=sum(run_key in pieces.failures for run_key in remaining),
        remaining=len(remaining),
        seconds=[seconds for curve in curves.values() if (seconds := run_seconds(curve))],
        reused=describe_reused_runs(pieces.runs),
        pilot=pieces.pilot,
    )


def describe_plan(
    experiment: Experiment,
    keys: Sequence[RunKey],
    out: Path | None,
    jobs: int,
    minutes: float | None = None,
) -> str:
    """The plan, what is done and what remains, memory and time, and the power of the seeds."""
    design, run_config = experiment.design, experiment.run_config
    rollouts = run_config.loop.iterations * run_config.sample.prompts * run_config.sample.group_size
    sizes = {"arm": len(design.arms), "rate": len(design.rates), "seed": len(design.seeds)}
    run_counts = " x ".join(format_count(size, noun) for noun, size in sizes.items())
    run_counts += f" = {format_count(len(design.run_keys()), 'run')}"
    seed_range = (
        f"{design.seeds[0]} to {design.seeds[-1]}" if len(design.seeds) > 1 else design.seeds[0]
    )
    progress = survey_progress(experiment, keys, out) if out else None
    plan_lines = [
        f"{experiment.name} ({experiment.digest}): {run_counts}, {len(keys):,} of them now",
        f"a run: {format_count(run_config.loop.iterations, 'iteration')}, {rollouts:,} rollouts, "
        f"held-out success at {', '.join(experiment.heldout_columns.values())}",
        *(
            f"  {arm:<16} {' '.join([*_engine_words(design, arm), *map(display_option, options)])}"
            for arm, options in design.arms.items()
        ),
        f"rates {', '.join(f'{rate:g}' for rate in design.rates)}; seeds {seed_range}"
        + ("" if experiment.options.pilot else f"; against {experiment.baseline}"),
        *(
            f"  {detail_line}"
            for detail_line in (
                *describe_memory(run_config),
                *describe_task(run_config),
                *_try_plugins(experiment),
            )
        ),
        *(f"  missing here   {fault}" for fault in missing_packages(design, keys)),
        *_describe_pilot(experiment, progress),
        f"done: {_describe_progress(progress, out)}",
        *(f"  {detail_line}" for detail_line in (progress.reused if progress else ())),
        f"time: {_describe_time(progress, experiment, len(keys), jobs, minutes)}",
        *([] if experiment.options.pilot else [describe_power(experiment)]),
        f"rule: {describe_rule(experiment)}",
        f"in the author's words, which decide nothing: {experiment.options.rule}",
    ]
    return "\n".join(plan_lines)


def _engine_words(design: Design, arm: str) -> list[str]:
    return ["--engine", design.engines[arm]] if arm in design.engines else []


def _describe_pilot(experiment: Experiment, progress: ExperimentProgress | None) -> list[str]:
    if progress:
        pilot = progress.pilot
    else:
        pilot_experiment = find_pilot(experiment)
        pilot = PilotRuns(pilot_experiment, {}, {}) if pilot_experiment else None
    return [f"pilot: {describe_progress(pilot)}"] if pilot else []


def _try_plugins(experiment: Experiment) -> list[str]:
    """Call every plugin once: those of all runs first, then those of single arms."""
    run_config, design = experiment.run_config, experiment.design
    plugin_lines = try_plugins(run_config)
    for run_key in design.run_keys()[: len(design.arms)]:
        config = load_config(design.base, list(design.overrides(run_key)))
        # An arm without plugins of its own was covered by the base run.
        if find_plugin_options(config).items() <= find_plugin_options(run_config).items():
            continue
        with prefix_errors(f"[experiment.arms] {run_key.arm}"):
            plugin_lines += [
                plugin_line
                for plugin_line in try_plugins(config)
                if plugin_line not in plugin_lines
            ]
    return [plugin_line.removeprefix("#").strip() for plugin_line in plugin_lines]


def _describe_progress(progress: ExperimentProgress | None, out: Path | None) -> str:
    if progress is None or out is None:
        return "not known: name the folder of the experiment with --out"
    requested_runs = progress.finished + progress.remaining
    counts = [f"{progress.started} started"] if progress.started else []
    counts += [f"{progress.failed} failed, to be tried again"] if progress.failed else []
    details = f" ({', '.join(counts)})" if counts else ""
    return (
        f"{progress.finished} of {requested_runs} are finished in {out}, {progress.remaining} "
        f"left{details}"
    )


def _describe_time(
    progress: ExperimentProgress | None,
    experiment: Experiment,
    requested: int,
    jobs: int,
    minutes: float | None,
) -> str:
    remaining = requested if progress is None else progress.remaining
    if not remaining:
        return "nothing left to train; the same command judges and draws again"
    parallel = min(jobs, remaining)
    sentence = f"{format_count(remaining, 'run')}, {parallel} at a time (--jobs)"
    if progress is None or not progress.seconds:
        first_run = f"--seeds 0:1 --rates {experiment.design.rates[0]:g} --arms "
        first_run += shlex.quote(experiment.baseline)
        return f"{sentence}; the time is known once one run has finished; start with {first_run}"
    seconds_each = statistics.median(progress.seconds)
    rounds_of_runs = math.ceil(remaining / parallel)
    finished_runs = format_count(len(progress.seconds), "run")
    sentence += f", {_duration(seconds_each)} each after loading, as in the {finished_runs} that "
    sentence += f"finished: about {_duration(rounds_of_runs * seconds_each)}"
    if minutes is not None and 60 * minutes < rounds_of_runs * seconds_each:
        runs_in_time = min(remaining, parallel * int(60 * minutes / seconds_each))
        sentence += f"; about {runs_in_time} of them finish within --minutes {minutes:g}"
    return sentence


def _duration(seconds: float) -> str:
    """Example: _duration(95) == "1.6 min" """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
