"""`--profile PART`: the kernels that a part's own work spends its time in, by torch.profiler."""

from __future__ import annotations

from pathlib import Path

from torch.profiler import ProfilerActivity, profile

from counterpoise.errors import unknown
from counterpoise.lab.speed import monitor, sampler, update, whole_iteration
from counterpoise.lab.speed.clock import synchronize
from counterpoise.lab.speed.iteration import run_folders
from counterpoise.lab.speed.machine_sizes import Setup

WORKLOADS = {
    "peer": whole_iteration.workload,
    "sampler": sampler.workload,
    "update": update.workload,
    "monitor": monitor.workload,
}
TOP = 25


def profiled(name: str, setup: Setup, trace: Path | None = None) -> str:
    """A table of the kernels of one warm call; the whole trace goes to `trace`."""
    if name not in WORKLOADS:
        raise unknown("profile", name, WORKLOADS)
    with run_folders() as folder:
        work = WORKLOADS[name](setup, folder)
        for _ in range(2):
            work()
        kinds = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * setup.cuda
        synchronize(setup.device)
        with profile(activities=kinds) as found:
            work()
            synchronize(setup.device)
    if trace:
        found.export_chrome_trace(str(trace))
    order = "self_cuda_time_total" if setup.cuda else "self_cpu_time_total"
    table: str = found.key_averages().table(sort_by=order, row_limit=TOP, max_name_column_width=70)
    return table
