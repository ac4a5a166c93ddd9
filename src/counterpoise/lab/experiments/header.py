"""What stands above every result of an experiment: what was asked, by which rule, of which file."""

from __future__ import annotations

from typing import Any

from counterpoise import __version__
from counterpoise.lab.experiments.curves import Runs
from counterpoise.lab.experiments.decision_rule import executed
from counterpoise.lab.experiments.experiment_file import Experiment
from counterpoise.lab.experiments.reused_runs import shared_told

AUTHOR = "In the author's words, which decide nothing"


def about(experiment: Experiment) -> dict[str, Any]:
    """The head of NAME.json, as a study's, so that `poise report` shows it among them."""
    options = experiment.options
    return {
        "study": experiment.name,
        "title": options.title or experiment.name,
        "shows": options.shows,
        "claim": options.claim,
        "rule": options.rule,
        "executed": executed(experiment),
        "model": experiment.run.model.name,
        "sizes": {**sizes(experiment), "digest": experiment.digest},
    }


def sizes(experiment: Experiment) -> dict[str, Any]:
    run = experiment.run
    return {
        "arms": list(experiment.design.arms),
        "rates": list(experiment.design.rates),
        "seeds": experiment.options.seeds,
        "iterations": run.loop.iterations,
        "rollouts": f"{run.sample.prompts} x {run.sample.group_size}",
        "steps": run.batch.steps,
        "heldout": f"{run.evaluate.prompts} x {run.evaluate.samples}",
    }


def heading(experiment: Experiment, runs: Runs) -> str:
    """The head of results.md."""
    options = experiment.options
    settings = "; ".join(f"{name} {_plain(value)}" for name, value in sizes(experiment).items())
    lines = [
        f"# {options.title or experiment.name}",
        *([options.claim] if options.claim else []),
        f"{experiment.name}.toml ({experiment.digest}), counterpoise {__version__}; model "
        f"{experiment.run.model.name}; {settings}.",
        f"Rule: {executed(experiment)}",
        f"{AUTHOR}: {options.rule}",
        *shared_told(runs),
    ]
    return "\n\n".join(lines) + "\n\n"


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_plain(item) for item in value)
    return f"{value:g}" if isinstance(value, float) else str(value)
