"""One run: parts in order, one JSON file, a failing part costs no other its numbers."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from counterpoise.errors import PoiseError
from counterpoise.lab.speed import run as module
from counterpoise.lab.speed.machine_sizes import SpeedSetup
from counterpoise.lab.speed.run import BenchOptions, run
from counterpoise.lab.speed.tables import MeasurementTable
from counterpoise.sample import vllm_host


def test_an_unknown_part_is_refused_before_anything_runs() -> None:
    with pytest.raises(PoiseError, match="sampler"):
        run(BenchOptions(parts=["samplr"]), Console(file=io.StringIO()))


def test_a_peer_that_is_unknown_or_missing_is_refused_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    console = Console(file=io.StringIO())
    with pytest.raises(PoiseError, match="vllm"):
        run(BenchOptions(peers=["vlm"]), console)
    monkeypatch.setattr(vllm_host, "installed_version", lambda: None)
    with pytest.raises(PoiseError, match="--peers vllm, but vLLM is not installed: pip install"):
        run(BenchOptions(peers=["vllm"]), console)


def test_a_file_that_cannot_be_written_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file" / "x.json", tmp_path):
        with pytest.raises(PoiseError, match=r"cannot be written: .*; choose another --json"):
            run(BenchOptions(out=out), Console(file=io.StringIO()))
    before = tmp_path / "before.json"
    before.write_text("{}")
    for out in (before, tmp_path / "new" / "x.json"):
        module.check_writable(out)
    assert before.read_text() == "{}"
    assert not (tmp_path / "new" / "x.json").exists()


def test_a_part_that_fails_is_named_and_the_others_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def part(name: str, setup: SpeedSetup) -> MeasurementTable:
        if name == "sampler":
            raise RuntimeError("no kernel image")
        return MeasurementTable(
            title=name, columns=("x",), rows=[["1"]], data={"device": setup.device.type}
        )

    monkeypatch.setattr(module, "run_part", part)
    out, printed = tmp_path / "new" / "bench.json", io.StringIO()
    with pytest.raises(PoiseError, match="sampler failed"):
        run(BenchOptions(parts=["sampler", "update"], out=out), Console(file=printed, width=100))
    found = json.loads(out.read_text())
    assert found["parts"]["sampler"]["notes"] == ["failed: no kernel image"]
    assert found["parts"]["update"]["rows"] == [["1"]]
    assert found["rates"]["matrix"] > 0
    assert {"device", "torch", "transformers", "trl", "python_loop_seconds"} <= set(
        found["machine"]
    )
    assert printed.getvalue().rstrip().endswith("bench.json")
