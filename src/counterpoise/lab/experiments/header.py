"""The header of every result: title, claim, decision rule, sizes and digest of the experiment."""

from __future__ import annotations

from typing import Any

from counterpoise import __version__
from counterpoise.lab.experiments.curves import Runs
from counterpoise.lab.experiments.decision_rule import describe_rule
from counterpoise.lab.experiments.experiment_file import Experiment
from counterpoise.lab.experiments.pilot_rates import describe_arm_rates
from counterpoise.lab.experiments.reused_runs import describe_reused_runs

AUTHOR_RULE_LABEL = "In the author's words, which decide nothing"


def result_header(experiment: Experiment) -> dict[str, Any]:
    """The header of NAME.json, in the form of a study's: `poise report` lists them together."""
    options = experiment.options
    return {
        "study": experiment.name,
        "title": options.title or experiment.name,
        "shows": options.shows,
        "claim": options.claim,
        "rule": options.rule,
        "executed": describe_rule(experiment),
        "model": experiment.run_config.model.name,
        "sizes": {**experiment_sizes(experiment), "digest": experiment.digest},
    }


def experiment_sizes(experiment: Experiment) -> dict[str, Any]:
    """Arms, rates, seeds, iterations and rollouts, for the header."""
    run_config = experiment.run_config
    return {
        "arms": list(experiment.design.arms),
        "rates": list(experiment.design.rates),
        "seeds": experiment.options.seeds,
        "iterations": run_config.loop.iterations,
        "rollouts": f"{run_config.sample.prompts} x {run_config.sample.group_size}",
        "steps": run_config.batch.steps,
        "heldout": f"{run_config.evaluate.prompts} x {run_config.evaluate.samples}",
    }


def markdown_heading(experiment: Experiment, runs: Runs) -> str:
    """The header of results.md."""
    options = experiment.options
    settings = "; ".join(
        f"{size_name} {_format_size(size)}"
        for size_name, size in experiment_sizes(experiment).items()
    )
    paragraphs = [
        f"# {options.title or experiment.name}",
        *([options.claim] if options.claim else []),
        f"{experiment.name}.toml ({experiment.digest}), counterpoise {__version__}; model "
        f"{experiment.run_config.model.name}; {settings}.",
        f"Rule: {describe_rule(experiment)}",
        f"{AUTHOR_RULE_LABEL}: {options.rule}",
        *filter(None, [describe_arm_rates(runs)]),
        *describe_reused_runs(runs),
    ]
    return "\n\n".join(paragraphs) + "\n\n"


def _format_size(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_format_size(item) for item in value)
    return f"{value:g}" if isinstance(value, float) else str(value)
