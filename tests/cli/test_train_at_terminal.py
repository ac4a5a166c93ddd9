"""What a command prints when training has ended."""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from counterpoise.cli.train_at_terminal import print_results
from counterpoise.config import RunConfig
from counterpoise.store.folder import RunFolder


@pytest.mark.parametrize("wants_report", [True, False])
def test_a_machine_without_chart_packages_ends_its_runs_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wants_report: bool
) -> None:
    monkeypatch.setitem(sys.modules, "counterpoise.lab.choose_page", None)  # cannot be imported
    config = RunConfig()
    config = replace(config, store=replace(config.store, report=wants_report))
    folder = RunFolder.create(tmp_path / "run", config)
    printed = io.StringIO()
    print_results(config, folder, Console(file=printed))
    assert f"run    {folder.path}" in printed.getvalue()
    assert ("no report: " in printed.getvalue()) is wants_report
