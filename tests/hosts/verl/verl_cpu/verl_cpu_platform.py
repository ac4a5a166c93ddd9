"""verl on a CPU: a platform of that name, gloo, and a rollout server under the name `native`.

verl 0.9.1 registers CUDA, NPU and ROCm only. Its plug-in modules may register more: this one is
named in VERL_USE_EXTERNAL_MODULES, so that every process of a run has it. The cores are counted as
Ray's "GPUs": a rank of the trainer asks for one.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry


def _nothing(*_: Any, **__: Any) -> None: ...


def _zero(*_: Any, **__: Any) -> int:
    return 0


DEVICE = types.ModuleType("verl_cpu_device")  # in place of torch.cuda
DEVICE.__dict__.update(
    dict.fromkeys(
        ("set_device", "synchronize", "empty_cache", "ipc_collect", "reset_peak_memory_stats"),
        _nothing,
    ),
    **dict.fromkeys(
        (
            "current_device", "max_memory_allocated", "max_memory_reserved",
            "memory_allocated", "memory_reserved",
        ),
        _zero,
    ),
    is_available=lambda: True,
    device_count=lambda: 1,
    mem_get_info=lambda *_: (0, 0),
    manual_seed=torch.manual_seed,
    manual_seed_all=torch.manual_seed,
    get_rng_state=lambda *_: torch.get_rng_state(),
    set_rng_state=lambda state, *_: torch.set_rng_state(state),
    get_device_name=lambda *_: "cpu",
    Stream=torch.cpu.Stream,
    stream=torch.cpu.stream,
    current_stream=torch.cpu.current_stream,
)  # fmt: skip


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    device_name = property(lambda self: "cpu")
    vendor_name = property(lambda self: "cpu")
    device_module = property(lambda self: DEVICE)
    set_device = synchronize = set_allocator_settings = empty_cache = _nothing
    profiler_start = profiler_stop = cudart = _nothing

    def is_available(self) -> bool:
        return True

    def current_device(self) -> Any:
        return "cpu"

    def device_count(self) -> int:
        return 1

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_resource_options(self, num_gpus: float) -> dict[str, Any]:
        return {"num_gpus": num_gpus}

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False


_start = dist.init_process_group


def _start_gloo(backend: str | None = None, *args: Any, **kwargs: Any) -> None:
    """verl asks for a backend of the CPU and one of the device: here they are the same."""
    _start("cpu:gloo" if backend == "cpu:gloo,cpu:gloo" else backend, *args, **kwargs)


dist.init_process_group = _start_gloo

from verl.workers.rollout import base  # noqa: E402
from verl.workers.rollout.replica import RolloutReplicaRegistry  # noqa: E402


def _replica() -> type[Any]:
    from verl_cpu_rollout import Replica

    return Replica


base._ROLLOUT_REGISTRY["native", "async"] = "verl_cpu_rollout.Weights"
RolloutReplicaRegistry.register("native", _replica)
