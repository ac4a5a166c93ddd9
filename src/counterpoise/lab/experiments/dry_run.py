"""What an experiment would do, before it does: `poise experiment FILE --dry-run`.

    left = asked for - finished             here, in the folder's table or in a piece
    time = ceil(left / jobs) * median       of the seconds that finished runs took

Nothing is written. How long a run takes is known from those that have ended in the folder: it
depends on the machine and on how many share it.
"""

from __future__ import annotations

import math
import shlex
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from counterpoise.config.load import load_config, own_functions
from counterpoise.errors import counted
from counterpoise.lab.experiments.curves import read_curve, run_seconds
from counterpoise.lab.experiments.decision_rule import describe_rule
from counterpoise.lab.experiments.design import RunKey
from counterpoise.lab.experiments.experiment_file import Experiment, prefix_errors
from counterpoise.lab.experiments.pieces import read_pieces
from counterpoise.lab.experiments.reused_runs import describe_reused_runs
from counterpoise.lab.experiments.verdicts import describe_power
from counterpoise.run.estimate import data, memory
from counterpoise.run.try_plugins import rehearse
from counterpoise.store.finished import finished
from counterpoise.store.folder import RunFolder, check_no_run, is_run


@dataclass(frozen=True, slots=True)
class ExperimentProgress:
    """How far the runs that were asked for are."""

    finished: int
    started: int  # and not finished, nor failed
    failed: int  # so far
    remaining: int  # begun and failed ones among them
    seconds: list[float]  # of every run of the experiment that has ended
    reused: list[str]  # what runs were trained for another experiment, in words


def survey_progress(
    experiment: Experiment, keys: Sequence[RunKey], out: Path
) -> ExperimentProgress:
    check_no_run(out, "an experiment")
    known = read_pieces(out, experiment)
    curves = dict(known.runs)
    begun = set()
    for key in experiment.design.run_keys():
        folder = out / "runs" / key.name
        if key not in curves and is_run(folder):
            if finished(folder, experiment.run_config.loop.iterations):
                curves[key] = read_curve(RunFolder.open(folder))
            else:
                begun.add(key)
    left = [key for key in keys if key not in curves]
    return ExperimentProgress(
        finished=len(keys) - len(left),
        started=sum(key in begun and key not in known.failures for key in left),
        failed=sum(key in known.failures for key in left),
        remaining=len(left),
        seconds=[seconds for curve in curves.values() if (seconds := run_seconds(curve))],
        reused=describe_reused_runs(known.runs),
    )


def describe_plan(
    experiment: Experiment,
    keys: Sequence[RunKey],
    out: Path | None,
    jobs: int,
    minutes: float | None = None,
) -> str:
    """The plan, what is done, what is left, what it needs, and what the seeds can show."""
    design, run = experiment.design, experiment.run_config
    rollouts = run.loop.iterations * run.sample.prompts * run.sample.group_size
    sizes = (
        (len(design.arms), "arm"), (len(design.rates), "rate"), (len(design.seeds), "seed"),
    )  # fmt: skip
    planned = f"{' x '.join(counted(*size) for size in sizes)} = "
    planned += counted(len(design.run_keys()), "run")
    seeds = f"{design.seeds[0]} to {design.seeds[-1]}" if len(design.seeds) > 1 else design.seeds[0]
    done = survey_progress(experiment, keys, out) if out else None
    lines = [
        f"{experiment.name} ({experiment.digest}): {planned}, {len(keys):,} of them now",
        f"a run: {counted(run.loop.iterations, 'iteration')}, {rollouts:,} rollouts, held-out "
        f"success at {', '.join(experiment.heldout_columns.values())}",
        *(f"  {arm:<16} {' '.join(options)}" for arm, options in design.arms.items()),
        f"rates {', '.join(f'{rate:g}' for rate in design.rates)}; seeds {seeds}; against "
        f"{experiment.baseline}",
        *(f"  {line}" for line in (*memory(run), *data(run), *_rehearsed(experiment))),
        f"done: {_done(done, out)}",
        *(f"  {line}" for line in (done.reused if done else ())),
        f"time: {_time(done, experiment, len(keys), jobs, minutes)}",
        describe_power(experiment),
        f"rule: {describe_rule(experiment)}",
        f"in the author's words, which decide nothing: {experiment.options.rule}",
    ]
    return "\n".join(lines)


def _rehearsed(experiment: Experiment) -> list[str]:
    """Functions of the user's, called once each: those of all runs, then those of single arms."""
    run, design = experiment.run_config, experiment.design
    lines = rehearse(run)
    for key in design.run_keys()[: len(design.arms)]:
        config = load_config(design.base, list(design.overrides(key)))
        if own_functions(config).items() <= own_functions(run).items():
            continue
        with prefix_errors(f"[experiment.arms] {key.arm}"):
            lines += [line for line in rehearse(config) if line not in lines]
    return [line.removeprefix("#").strip() for line in lines]


def _done(done: ExperimentProgress | None, out: Path | None) -> str:
    if done is None or out is None:
        return "not known: --out names the folder to look into"
    total = done.finished + done.remaining
    beside = [f"{done.started} begun"] if done.started else []
    beside += [f"{done.failed} failed, and to be tried again"] if done.failed else []
    told = f" ({', '.join(beside)})" if beside else ""
    return f"{done.finished} of {total} are finished in {out}, {done.remaining} left{told}"


def _time(
    done: ExperimentProgress | None,
    experiment: Experiment,
    asked: int,
    jobs: int,
    minutes: float | None,
) -> str:
    left = asked if done is None else done.remaining
    if not left:
        return "nothing is left to train; the same command judges and draws again"
    at_once = min(jobs, left)
    told = f"{counted(left, 'run')}, {at_once} at a time (--jobs)"
    if done is None or not done.seconds:
        pair = f"--seeds 0:1 --rates {experiment.design.rates[0]:g} --arms "
        pair += shlex.quote(experiment.baseline)
        return f"{told}; how long one takes is known when one has ended; a first one: {pair}"
    each = statistics.median(done.seconds)
    rounds = math.ceil(left / at_once)
    ended = counted(len(done.seconds), "run")
    told += f", {_duration(each)} each after loading, as in the {ended} that ended: about "
    told += _duration(rounds * each)
    if minutes is not None and 60 * minutes < rounds * each:
        ending = min(left, at_once * int(60 * minutes / each))
        told += f"; about {ending} of them end within --minutes {minutes:g}"
    return told


def _duration(seconds: float) -> str:
    """Example: _duration(95) == "1.6 min" """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
