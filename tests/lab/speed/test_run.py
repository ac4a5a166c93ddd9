"""One run: parts in order, one JSON file, a failing part costs no other its numbers."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest
import torch
from rich.console import Console

from counterpoise.errors import PoiseError
from counterpoise.hosts.trl import host as trl_host
from counterpoise.lab.speed import run as module
from counterpoise.lab.speed.machine_sizes import SpeedSetup
from counterpoise.lab.speed.run import BenchOptions, check_peers, run
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
    monkeypatch.setattr(module, "trl_installed", lambda: False)
    with pytest.raises(PoiseError, match="--peers trl, but TRL is not installed: pip install trl"):
        run(BenchOptions(peers=["trl", "vllm"]), console)


@pytest.mark.parametrize(
    ("device", "has_trl", "vllm_version", "problem"),
    [
        ("cuda", False, "0.26.0", "but TRL is not installed: pip install 'trl==1.16"),
        ("cpu", True, "0.32.0", "takes no vLLM that runs on a CPU: leave trl-vllm out of --peers"),
        (
            "cuda",
            True,
            "0.32.0",
            r"vLLM 0.26 was tested, and this is 0.32.0: .*'vllm==0.26.*, or leave trl-vllm out",
        ),
        ("cuda", True, "0.30.0", "vLLM 0.26 was tested, and this is 0.30.0"),
        ("cuda", True, None, r"trl-vllm, but vLLM is not installed: pip install 'vllm==0.26"),
    ],
)
def test_trl_with_vllm_says_why_it_cannot_run(
    device: str,
    has_trl: bool,
    vllm_version: str | None,
    problem: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trl_host, "installed_version", lambda: "1.16.0" if has_trl else None)
    monkeypatch.setattr(vllm_host, "installed_version", lambda: vllm_version)
    monkeypatch.setattr(module, "choose_device", lambda _: torch.device(device))
    with pytest.raises(PoiseError, match=problem):
        check_peers(["trl-vllm"])


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
    empty = tmp_path / "empty.json"
    empty.touch()
    module.check_writable(empty)
    assert empty.exists()
    os.mkfifo(tmp_path / "pipe")  # to open it would wait for a reader
    with pytest.raises(PoiseError, match=r"pipe cannot be written: it is a device or a pipe"):
        run(BenchOptions(out=tmp_path / "pipe"), Console(file=io.StringIO()))


def test_only_an_earlier_result_is_replaced(tmp_path: Path) -> None:
    """`poise bench --json RUN/metrics.jsonl` once replaced the log of a run."""
    for number, content in enumerate(('{"iteration": 1}\n{"iteration": 2}\n', "{}", "[]", "\xff")):
        other = tmp_path / f"{number}.jsonl"
        other.write_text(content, encoding="latin-1")
        with pytest.raises(PoiseError, match=r"exists and is not a result of poise bench: choose"):
            run(BenchOptions(out=other), Console(file=io.StringIO()))
        assert other.read_text(encoding="latin-1") == content
    earlier = tmp_path / "bench.json"
    earlier.write_text(json.dumps({"machine": {}, "rates": {}, "parts": {}}))
    for replaceable in (earlier, tmp_path / "new.json"):
        module.check_replaceable(replaceable)


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
