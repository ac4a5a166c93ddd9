"""`experiment.engines`: an arm that trains inside TRL beside one that trains natively."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from lab.experiments.small_experiment import RUN
from typer.testing import CliRunner

from counterpoise.cli import app
from counterpoise.hosts.choose_engine import stored_engine

from .test_run import needs_trl

# Easy problems and longer responses, so that there is something to learn from.
FILE = RUN.replace("size = 16", "levels = [1]\nsize = 16").replace("tokens = 24", "tokens = 64")
FILE += """
[balance]
tau = 0.0

[experiment]
rule = "TRL learns less where the interval lies below 0"
baseline = "native"
rates = [1e-4]
seeds = 2
hypotheses = ["trl < native"]
engines = ["trl=trl"]

[experiment.arms]
native = []
trl = []
"""


@needs_trl
@pytest.mark.slow
def test_an_arm_trains_inside_trl(tmp_path: Path) -> None:
    file, out = tmp_path / "engines.toml", tmp_path / "out"
    file.write_text(FILE)
    words = ["experiment", str(file), "--out", str(out), "--jobs", "2"]
    planned = CliRunner().invoke(app, [*words, "--dry-run"], catch_exceptions=False).stdout
    assert "  trl              --engine trl\n" in planned
    finished = CliRunner().invoke(app, words, catch_exceptions=False)
    assert "4 of 4 runs are finished" in finished.stdout
    engines = {
        arm: {stored_engine(out / "runs" / f"{arm}-lr0.0001-seed{seed}") for seed in range(2)}
        for arm in ("native", "trl")
    }
    assert engines == {"native": {"native"}, "trl": {"trl"}}
    # Both started from the same weights, on the same prompts.
    numbers = {
        number["name"]: number["value"]
        for number in json.loads((out / "engines.json").read_text())["numbers"]
    }
    for arm in engines:
        assert numbers[f"{arm}, lr 0.0001: seconds of an iteration"] > 0
        assert numbers[f"{arm}, lr 0.0001: updates"] > 0
    again = CliRunner().invoke(app, words, catch_exceptions=False)
    assert "4 of 4 runs are finished" in again.stdout
