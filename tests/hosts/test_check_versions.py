"""`poise doctor` on engines: missing, another version, a method that changed, all well."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from counterpoise.cli import machine_check
from counterpoise.hosts import check_versions
from counterpoise.hosts.check_versions import ENGINES, Engine, Health, look
from counterpoise.hosts.trl import host as trl_host
from counterpoise.hosts.verl import host as verl_host
from counterpoise.sample import vllm_host

TRL, VERL, VLLM = ENGINES


@pytest.mark.parametrize(
    ("engine", "host"), [(TRL, trl_host), (VERL, verl_host), (VLLM, vllm_host)]
)
def test_a_missing_engine_says_how_to_install_it(
    engine: Engine, host: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "installed", lambda: None)
    found = look(engine)
    assert found.version is None
    assert found.faults == ()
    assert found.remedy.startswith("pip install ")


@pytest.mark.parametrize(
    ("engine", "host"), [(TRL, trl_host), (VERL, verl_host), (VLLM, vllm_host)]
)
def test_another_version_is_a_fault(
    engine: Engine, host: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "installed", lambda: "99.0.0")
    (fault,) = look(engine).faults
    assert "99.0.0 was never tested" in fault


def test_a_changed_signature_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    class Later:
        def _prepare_inputs(self, batch: object, more: object) -> None: ...

    monkeypatch.setattr(trl_host, "installed", lambda: "1.16.9")
    monkeypatch.setattr(check_versions, "import_module", lambda name: FAKES.get(name) or trl_host)
    FAKES["trl"] = SimpleNamespace(GRPOTrainer=Later)
    found = look(TRL)
    assert found.faults[0] == "GRPOTrainer._prepare_inputs takes (self, batch, more)"
    assert len(found.faults) == len(trl_host.PRIVATE)


FAKES: dict[str, SimpleNamespace] = {}


def test_an_engine_that_cannot_be_imported_is_a_fault() -> None:
    def broken(host: object) -> list[str]:
        raise OSError("libcudart.so.13: cannot open shared object file\nmore")

    host = "counterpoise.hosts.trl.host"
    engine = Engine("trl", "-", host, "SERIES", broken)
    found = look(engine)
    if found.version is None or not trl_host.supported(found.version):
        pytest.skip("TRL is not installed")
    assert found.faults == (
        f"trl {found.version} cannot be imported: libcudart.so.13: cannot open shared object file",
    )


def test_what_is_installed_is_as_we_know_it() -> None:
    """In `make test-engines` this is the real thing."""
    for engine in ENGINES:
        assert look(engine).faults == ()


def test_the_doctor_shows_them(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [
        Health("trl", "1.17.0", "--engine trl", "pip install 'trl==1.16.*'", ("it changed",)),
        Health("verl", None, "--engine verl", "pip install 'counterpoise[verl]'"),
        Health("vllm", "0.32.0", "sample.engine=vllm", "pip install vllm"),
    ]
    out = Console(file=io.StringIO(), width=200)
    monkeypatch.setattr(machine_check, "look_at_all", lambda: found)
    monkeypatch.setattr(machine_check, "TerminalConsole", lambda: out)
    monkeypatch.setattr(machine_check, "self_check", lambda console: True)
    assert machine_check.examine()
    text = out.file.getvalue()  # type: ignore[attr-defined]
    assert "1.17.0 not usable" in text
    assert "trl  it changed" in text
    assert "pip install 'trl==1.16.*': install that version, or bring the adapter up to" in text
    assert "not installed: --engine verl; pip install 'counterpoise[verl]'" in text
    assert "0.32.0, as the adapter knows it: sample.engine=vllm" in text
