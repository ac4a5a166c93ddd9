"""Commands on a machine without the package that draws charts."""

from __future__ import annotations

import importlib.metadata
import io
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from report.synthetic import write_run
from rich.console import Console

from counterpoise.cli import machine_check, main
from counterpoise.cli.train_at_terminal import print_results
from counterpoise.report.charts.vega import javascript_bundle
from counterpoise.report.panels import configuration
from counterpoise.report.run_data import RunData
from counterpoise.store.folder import RunFolder

REMEDY = "charts need vl_convert, which is not installed: pip install vl-convert-python"


@pytest.fixture(autouse=True)
def no_vl_convert(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """vl_convert cannot be imported, and its distribution is not found."""
    installed_version = importlib.metadata.version

    def version(package: str) -> str:
        if package == "vl-convert-python":
            raise importlib.metadata.PackageNotFoundError(package)
        return installed_version(package)

    monkeypatch.setitem(sys.modules, "vl_convert", None)
    monkeypatch.setattr(importlib.metadata, "version", version)
    javascript_bundle.cache_clear()
    yield
    javascript_bundle.cache_clear()


def test_the_configuration_says_what_is_not_installed(tmp_path: Path) -> None:
    panel = configuration.panel(RunData.read(write_run(tmp_path / "run", iterations=1)))
    assert "vl-convert-python" in str(panel.body)
    assert "not installed" in str(panel.body)


def test_a_report_names_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_run(tmp_path / "run", iterations=1)
    monkeypatch.setattr(sys, "argv", ["poise", "report", str(folder)])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert capsys.readouterr().err == f"poise: {REMEDY}\n"
    assert not (folder / "report.html").exists()


def test_a_run_ends_without_its_report(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", iterations=1, evaluations=False)
    printed = io.StringIO()
    config = RunData.read(folder).config
    print_results(config, RunFolder.open(folder), Console(file=printed, width=200))
    assert "no report: vl_convert is not installed; run `poise report`" in printed.getvalue()


def test_any_other_missing_module_is_let_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "counterpoise.cli.machine_check", None)
    monkeypatch.setattr(sys, "argv", ["poise", "doctor"])
    with pytest.raises(ModuleNotFoundError):
        main()


@pytest.mark.slow
def test_the_doctor_ends_its_examination(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is trained and resumed; only its report fails."""
    console = Console(file=io.StringIO(), width=200)
    monkeypatch.setattr(machine_check, "TerminalConsole", lambda: console)
    monkeypatch.setattr(machine_check, "probe_engines", list)
    assert not machine_check.examine_machine()
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "not installed: pip install vl-convert-python" in text
    assert "ok    resume repeats nothing" in text
    assert f"FAIL  report: {REMEDY}" in text
