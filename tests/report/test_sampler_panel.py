"""Sampler against trainer in the report: shown for another engine, and for ours when it is off."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from report.synthetic import write_run

from counterpoise.report.panels.learning import panel
from counterpoise.report.run_data import RunData


def titles(run: RunData) -> set[str]:
    made = panel(run)
    assert made is not None
    assert isinstance(made.body, tuple)
    return {str(figure.title) for figure in made.body}


@pytest.mark.parametrize(
    ("engine", "mismatch", "shown"),
    [("native", 2e-6, False), ("native", 5e-3, True), ("vllm", 2e-7, True), ("vllm", None, False)],
)
def test_the_mismatch(tmp_path: Path, engine: str, mismatch: float | None, shown: bool) -> None:
    run = RunData.read(write_run(tmp_path / "run"))
    config = replace(run.config, sample=replace(run.config.sample, engine=engine))
    metrics = [{**record, "sampler_mismatch": mismatch} for record in run.metrics]
    run = replace(run, config=config, metrics=metrics)
    assert ("Sampler mismatch" in titles(run)) == shown


@pytest.mark.parametrize("capped", [0.0, 0.01])
def test_capped_weights(tmp_path: Path, capped: float) -> None:
    run = RunData.read(write_run(tmp_path / "run"))
    run = replace(run, metrics=[{**record, "capped_share": capped} for record in run.metrics])
    assert ("Capped importance weights" in titles(run)) == bool(capped)
