"""The runs of an experiment as shell commands, for other machines and other engines.

    poise train FILE --engine verl --out OUT/runs/QB-lr1e-06-seed0 --set=...       one for each run
    poise eval MODEL MODEL ... --bench aime24,... --out OUT/eval                   with benchmarks

`poise experiment` itself trains natively, or with TRL the arms of `experiment.engines`. Options
that an engine cannot honour are refused here, before the first command is printed.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from counterpoise.config import RunConfig
from counterpoise.config.load import find_run_file, load_config
from counterpoise.errors import PoiseError, unknown_name
from counterpoise.hosts.trl import run_options as trl_options
from counterpoise.hosts.verl import command as verl_command
from counterpoise.lab.experiments.design import RunKey
from counterpoise.lab.experiments.experiment_file import Experiment
from counterpoise.variants import ENGINES


def format_commands(
    file: str, experiment: Experiment, keys: Sequence[RunKey], out: Path, engine: str | None
) -> str:
    """A line for each run, and one for the evaluation of the trained models."""
    if engine is not None and engine not in ENGINES:
        raise unknown_name("engine", engine, ENGINES)
    if experiment.options.rates_from:
        raise PoiseError(
            f"{file}: its rates come from a pilot, which only poise experiment reads: leave out "
            "--print"
        )
    run_file = find_run_file(file)
    commands, models = [], []
    for key in keys:
        options = experiment.design.overrides(key)
        run_config, run_folder = load_config(run_file, list(options)), out / "runs" / key.name
        run_engine = engine or experiment.design.engine(key)
        check_engine(run_engine, run_config, run_folder)
        commands.append(
            ["poise", "train", file, "--engine", run_engine, "--out", str(run_folder)]
            + [f"--set={option}" for option in options]
        )
        models.append(trained_model(run_engine, run_config, run_folder))
    if experiment.options.benchmarks:
        commands.append(evaluation_command(experiment, models, out))
    return "\n".join(shlex.join(command) for command in commands)


def check_engine(engine: str, config: RunConfig, run_folder: Path) -> None:
    """Raise where the engine cannot honour the run's options."""
    if engine == "trl":
        trl_options.format_arguments(config)
    elif engine == "verl":
        verl_command.format_command(config, run_folder)


def trained_model(engine: str, config: RunConfig, run_folder: Path) -> Path:
    """What `poise eval` reads of a finished run."""
    if engine != "verl":
        return run_folder
    step = f"global_step_{config.loop.iterations}"
    return run_folder / "checkpoints" / step / "actor" / "huggingface"


def evaluation_command(experiment: Experiment, models: Sequence[Path], out: Path) -> list[str]:
    """`poise eval` of the trained models on the experiment's benchmarks."""
    names, template = ",".join(experiment.options.benchmarks), experiment.run_config.model.template
    command = ["poise", "eval", *map(str, models), "--bench", names, "--template", template]
    return [*command, "--out", str(out / "eval")]
