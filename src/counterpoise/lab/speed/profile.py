"""`poise bench --profile PART`: the kernels that a part spends its time in, by torch.profiler."""

from __future__ import annotations

from pathlib import Path

from torch.profiler import ProfilerActivity, profile

from counterpoise.errors import unknown_name
from counterpoise.lab.speed import monitor, probes, sampler, update, whole_iteration
from counterpoise.lab.speed.clock import synchronize
from counterpoise.lab.speed.iteration import temporary_run_folders
from counterpoise.lab.speed.machine_sizes import SpeedSetup

PROFILE_WORKLOADS = {
    "peer": whole_iteration.profile_workload,
    "sampler": sampler.profile_workload,
    "update": update.profile_workload,
    "monitor": monitor.profile_workload,
    "probes": probes.profile_workload,
}
MAX_KERNELS = 25


def profile_kernels(name: str, setup: SpeedSetup, trace: Path | None = None) -> str:
    """A table of the kernels of one call after warming up; the full trace goes to `trace`."""
    if name not in PROFILE_WORKLOADS:
        raise unknown_name("profile", name, PROFILE_WORKLOADS)
    with temporary_run_folders() as folder:
        profiled_call = PROFILE_WORKLOADS[name](setup, folder)
        for _ in range(2):  # load and compile, then capture: neither should be profiled
            profiled_call()
        activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * setup.cuda
        synchronize(setup.device)
        with profile(activities=activities) as profiler:
            profiled_call()
            synchronize(setup.device)
    if trace:
        profiler.export_chrome_trace(str(trace))
    sort_key = "self_cuda_time_total" if setup.cuda else "self_cpu_time_total"
    table: str = profiler.key_averages().table(
        sort_by=sort_key, row_limit=MAX_KERNELS, max_name_column_width=70
    )
    return table
