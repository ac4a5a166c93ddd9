"""`poise doctor` on engines: missing, another version, a method that changed, all well."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from counterpoise.cli import machine_check
from counterpoise.hosts import check_versions
from counterpoise.hosts.check_versions import ENGINE_PROBES, EngineHealth, EngineProbe, probe_engine
from counterpoise.hosts.trl import host as trl_host
from counterpoise.hosts.verl import host as verl_host
from counterpoise.sample import vllm_host

TRL, VERL, VLLM = ENGINE_PROBES


@pytest.mark.parametrize(
    ("engine", "host"), [(TRL, trl_host), (VERL, verl_host), (VLLM, vllm_host)]
)
def test_a_missing_engine_says_how_to_install_it(
    engine: EngineProbe, host: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "installed_version", lambda: None)
    result = probe_engine(engine)
    assert result.version is None
    assert result.faults == ()
    assert result.remedy.startswith("pip install ")


@pytest.mark.parametrize(
    ("engine", "host"), [(TRL, trl_host), (VERL, verl_host), (VLLM, vllm_host)]
)
def test_another_version_is_a_fault(
    engine: EngineProbe, host: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "installed_version", lambda: "99.0.0")
    (fault,) = probe_engine(engine).faults
    assert "99.0.0 was never tested" in fault


def test_a_changed_signature_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    class Later:
        def _prepare_inputs(self, batch: object, more: object) -> None: ...

    monkeypatch.setattr(trl_host, "installed_version", lambda: "1.16.9")
    monkeypatch.setattr(check_versions, "import_module", lambda name: FAKES.get(name) or trl_host)
    FAKES["trl"] = SimpleNamespace(GRPOTrainer=Later)
    result = probe_engine(TRL)
    assert result.faults[0] == "GRPOTrainer._prepare_inputs takes (self, batch, more)"
    assert len(result.faults) == len(trl_host.PRIVATE_METHODS)


FAKES: dict[str, SimpleNamespace] = {}


def test_an_engine_that_cannot_be_imported_is_a_fault() -> None:
    def broken(host: object) -> list[str]:
        raise OSError("libcudart.so.13: cannot open shared object file\nmore")

    host = "counterpoise.hosts.trl.host"
    engine = EngineProbe("trl", "-", host, "SERIES", broken)
    result = probe_engine(engine)
    if result.version is None or not trl_host.is_supported(result.version):
        pytest.skip("TRL is not installed")
    assert result.faults == (
        f"trl {result.version} cannot be imported: libcudart.so.13: cannot open shared object file",
    )


def test_what_is_installed_is_as_we_know_it() -> None:
    """In `make test-engines` this is the real thing."""
    for engine in ENGINE_PROBES:
        assert probe_engine(engine).faults == ()


def test_the_doctor_shows_them(monkeypatch: pytest.MonkeyPatch) -> None:
    result = [
        EngineHealth("trl", "1.17.0", "--engine trl", "pip install 'trl==1.16.*'", ("it changed",)),
        EngineHealth("verl", None, "--engine verl", "pip install 'counterpoise[verl]'"),
        EngineHealth("vllm", "0.32.0", "sample.engine=vllm", "pip install vllm"),
    ]
    out = Console(file=io.StringIO(), width=200)
    monkeypatch.setattr(machine_check, "probe_engines", lambda: result)
    monkeypatch.setattr(machine_check, "TerminalConsole", lambda: out)
    monkeypatch.setattr(machine_check, "run_self_check", lambda console: True)
    assert machine_check.examine_machine()
    text = out.file.getvalue()  # type: ignore[attr-defined]
    assert "1.17.0 not usable" in text
    assert "trl  it changed" in text
    assert "pip install 'trl==1.16.*': install that version, or bring the adapter up to" in text
    assert "not installed; needed for --engine verl: pip install 'counterpoise[verl]'" in text
    assert "0.32.0, supported: sample.engine=vllm" in text
