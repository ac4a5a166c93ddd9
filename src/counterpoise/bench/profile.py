"""`--profile PART`: the kernels that a part's own work spends its time in, by torch.profiler."""

from __future__ import annotations

from pathlib import Path

from torch.profiler import ProfilerActivity, profile

from counterpoise.bench import monitor, peer, sampler, update
from counterpoise.bench.clock import synchronize
from counterpoise.bench.iteration import run_folders
from counterpoise.bench.setup import Setup
from counterpoise.errors import unknown

WORKLOADS = {
    "peer": peer.workload,
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
