"""An experiment as shell commands: what they train, what they refuse, and poise eval at the end."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from counterpoise.cli import app
from counterpoise.config.load import load_config
from counterpoise.errors import PoiseError
from counterpoise.lab.experiments.experiment_file import read_experiment
from counterpoise.lab.experiments.shell_commands import format_commands
from counterpoise.task.benchmarks import BENCHMARKS

OUT = Path("out/table2")


def test_the_grid_of_table_2_ends_in_six_benchmarks() -> None:
    table2 = read_experiment("table2", "Qwen/Qwen3-4B-Base", None)
    keys = [key for key in table2.design.run_keys() if "50" not in key.arm]
    *training, evaluation = map(
        shlex.split, format_commands("table2", table2, keys, OUT, "verl").splitlines()
    )
    assert [key.arm for key in keys] == ["none", "QB", "RB", "QB+RB"]
    settings = set()
    for command, key in zip(training, keys, strict=True):
        assert command[:5] == ["poise", "train", "table2", "--engine", "verl"]
        assert command[5:7] == ["--out", f"out/table2/runs/{key.name}"]
        config = load_config("table2", [option.removeprefix("--set=") for option in command[7:]])
        assert config.model.name == "Qwen/Qwen3-4B-Base"
        assert config.model.template == "chat-boxed"
        assert (config.update.lr, config.evaluate.every, config.store.model) == (1e-6, 10, True)
        settings.add((config.batch.composer, config.balance.tau))
    assert settings == {("shuffled", 0), ("grouped", 0), ("shuffled", 0.25), ("grouped", 0.25)}
    models, options = evaluation[2:6], evaluation[6:]
    assert evaluation[:2] == ["poise", "eval"]
    assert models == [
        f"out/table2/runs/{key.name}/checkpoints/global_step_100/actor/huggingface" for key in keys
    ]
    benchmarks = options[options.index("--bench") + 1].split(",")
    assert [BENCHMARKS[name].samples for name in benchmarks] == [32, 32, 32, 1, 1, 1]
    assert options[options.index("--template") + 1] == "chat-boxed"


def test_a_native_run_is_evaluated_from_its_folder() -> None:
    table2 = read_experiment("table2", None, None)
    key = table2.design.run_keys()[0]
    *_, evaluation = format_commands("table2", table2, [key], OUT, None).splitlines()
    assert shlex.split(evaluation)[2] == f"out/table2/runs/{key.name}"


def test_an_arm_is_printed_with_its_engine() -> None:
    engines = read_experiment("demo-engines", None, None)
    keys = engines.design.run_keys()[:2]
    native, trl = map(
        shlex.split, format_commands("demo-engines", engines, keys, OUT, None).splitlines()
    )
    assert (native[3:5], trl[3:5]) == (["--engine", "native"], ["--engine", "trl"])


def test_what_cannot_be_printed_is_one_line() -> None:
    pilot = read_experiment("qwen-coder-gsm8k", None, None)
    with pytest.raises(PoiseError, match="rates come from a pilot"):
        format_commands("qwen-coder-gsm8k", pilot, pilot.design.run_keys()[:1], OUT, "verl")
    table2 = read_experiment("table2", None, None)
    with pytest.raises(PoiseError, match="unknown engine 'slime'"):
        format_commands("table2", table2, table2.design.run_keys(), OUT, "slime")
    for engine in ("verl", "native"):
        result = CliRunner().invoke(app, ["experiment", "table2", "--engine", engine, "--out", "x"])
        assert "--engine needs --print here" in str(result.exception)


@pytest.mark.parametrize("name", ["qwen2.5-math-7b", "qwen3-1.7b-base", "qwen3-4b-base"])
def test_the_papers_models_are_asked_for_a_box(name: str) -> None:
    assert load_config(name, []).model.template == "chat-boxed"
