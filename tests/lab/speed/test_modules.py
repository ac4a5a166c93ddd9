"""Measurements that are run by `python -m`, at sizes that take a second."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
import torch

from counterpoise.variants import COMPOSERS

MODULES = {
    "composers": ("--rows 80 --groups 8 --seeds 2 --steps 2", [*set(COMPOSERS) - {"coupled"}]),
    "verifier": ("--problems 2 --group 4 --workers 1", ["75.0% right", "0 timeouts"]),
    "credit": (
        "--methods high_entropy --prompts 2 --group 2 --length 4 --steps 1 --repeats 1 "
        "--threads {threads} --json {out}",
        ["high_entropy", "of an iteration"],
    ),
    "sampler_batches": ("--batches 2x1 --length 4 --rounds 1", ["smallest ratio"]),
    "microscope": ("look", ["before one step of 1,024 tokens", "decompose", "token types"]),
}


@pytest.mark.parametrize("module", MODULES)
def test_it_runs_and_names_what_it_measures(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, expected = MODULES[module]
    monkeypatch.setattr(
        sys,
        "argv",
        [
            module,
            *arguments.format(out=tmp_path / "out.json", threads=torch.get_num_threads()).split(),
        ],
    )
    runpy.run_module(f"counterpoise.lab.speed.{module}", run_name="__main__")
    output = capsys.readouterr().out
    for text in expected:
        assert text in output
