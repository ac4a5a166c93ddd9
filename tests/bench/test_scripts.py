"""Scripts of benchmarks/ at sizes that take a second: they run, and name what they measure."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from counterpoise.variants import COMPOSERS

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SCRIPTS = {
    "compose.py": ("--rows 80 --groups 8 --seeds 2 --steps 2", [*set(COMPOSERS) - {"coupled"}]),
    "verifier.py": ("--problems 2 --group 4 --workers 1", ["75.0% right", "0 timeouts"]),
    "microscope.py": ("look", ["before one step of 1,024 tokens", "decompose", "token types"]),
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_it_runs(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words, expected = SCRIPTS[script]
    monkeypatch.setattr(sys, "argv", [script, *words.split()])
    runpy.run_path(str(BENCHMARKS / script), run_name="__main__")
    said = capsys.readouterr().out
    for text in expected:
        assert text in said
