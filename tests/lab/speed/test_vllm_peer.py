"""vLLM as a peer of the sampler's measurement, in the environment that has it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from counterpoise.lab.speed import sampler
from counterpoise.lab.speed.clock import Deadline
from counterpoise.lab.speed.floors import DeviceRates
from counterpoise.lab.speed.machine_sizes import SpeedSetup, cpu_plan
from counterpoise.lab.speed.workload import Workload
from counterpoise.sample import vllm_host

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not vllm_host.is_supported(vllm_host.installed_version() or ""),
        reason=f"no supported vLLM is installed: {vllm_host.INSTALL_REMEDY}",
    ),
]


def test_vllm_samples_as_many_tokens_as_we_do() -> None:
    """The measurement itself compares the numbers of tokens, and raises if they differ."""
    plan = replace(
        cpu_plan("embedded"),
        iteration=Workload("embedded", 4, 2, 8),
        sampler=(4, 8),
        sampler_repeats=2,
    )
    setup = SpeedSetup(
        torch.device("cpu"),
        DeviceRates(copy=1e10, matrix=1e11, dtype="float32"),
        plan,
        Deadline(None),
        {},
        lambda text: None,
        peers=("vllm",),
    )
    table = sampler.measure(setup)
    assert table.columns[-2:] == ("vLLM", "ours is")
    assert all(len(row) == len(table.columns) for row in table.rows)
    for point in table.data["sampler"]:
        assert len(point["vllm"]["seconds"]) == 2
        assert point["vllm"]["median"] > 0
