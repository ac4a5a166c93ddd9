"""Measure the coupling decomposition against the pairwise kernel, and the monitor in a run.

    python -m counterpoise.lab.speed.microscope                 # all: six minutes on two cores
    python -m counterpoise.lab.speed.microscope precision look  # small sizes on a CPU
    python -m counterpoise.lab.speed.microscope large           # for a GPU; an hour on a CPU

pairwise  N x N kernel by matrix products, then its nine sums: a straightforward implementation
          of eq. 8 and 9, in blocks of rows so that it fits into memory
growth    time for N from 4,096 to 32,768, V = 8,192, D = 128
memory    peak memory beyond inputs and outputs, for growing N
large     N = 200,000, V = 49,152, D = 576
precision decompose in float32, float16 and bfloat16; on a GPU N = 16,384 and 65,536, V = 49,152,
          D = 576, queries of 1,024 tokens
look      what the monitor does before one optimizer step of 16 x 8 x 128 tokens, piece by piece
monitor   share of an iteration of the demo that the online monitor takes
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from counterpoise.microscope import prefixes
from counterpoise.microscope.coupling import Coupling, decompose, decompose_residuals
from counterpoise.microscope.pairs import strongest_pushes
from counterpoise.microscope.token_types import type_pulls
from counterpoise.model.residuals import Residuals
from counterpoise.terminal import echo
from counterpoise.types import Rollout, Row

V, D, GROUP = 8192, 128, 512
Batch = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def make_batch(N: int, V: int = V, D: int = D, device: str = "cpu", group: int = GROUP) -> Batch:
    """Tokens by Zipf's law, queries of `group` tokens, advantages of both signs."""
    generator = torch.Generator().manual_seed(0)
    hidden, W = torch.randn(N, D, generator=generator), 0.2 * torch.randn(V, D, generator=generator)
    tokens = torch.multinomial(
        1 / torch.arange(1, V + 1.0), N, replacement=True, generator=generator
    )
    advantages = torch.randn(N, generator=generator)
    groups = torch.arange(N) // group
    return tuple(tensor.to(device) for tensor in (hidden, W, tokens, advantages, groups))  # type: ignore[return-value]


@torch.no_grad()
def pairwise(hidden: Tensor, W: Tensor, tokens: Tensor, A: Tensor, groups: Tensor) -> list[Tensor]:
    """The push of every token on itself, and the eight parts, from the kernel itself."""
    N, rows = len(tokens), 1024
    R = torch.softmax(hidden @ W.T, dim=-1).neg_()
    R[torch.arange(N), tokens] += 1
    signed_advantages = torch.stack((A.clamp(min=0), A.clamp(max=0)), dim=1) / N
    own_push = torch.empty(N)
    cross_pushes = torch.empty(4, N, 2)
    for start in range(0, N, rows):
        block = slice(start, start + rows)
        K = (R[block] @ R.T) * (hidden[block] @ hidden.T)
        diagonal = K.diagonal(start)
        own_push[block] = diagonal * A[block] / N
        diagonal.zero_()
        same_token = tokens[block, None] == tokens[None]
        same_query = groups[block, None] == groups[None]
        for index, mask in enumerate(
            (
                same_token & same_query,
                same_token & ~same_query,
                ~same_token & same_query,
                ~same_token & ~same_query,
            )
        ):
            cross_pushes[index, block] = (K * mask) @ signed_advantages
    return [own_push, *cross_pushes.unbind()]


def fastest_seconds(work: Callable[..., object], batch: Batch, repeats: int = 3) -> float:
    times = []
    for _ in range(repeats):
        start_time = time.perf_counter()
        work(*batch)
        times.append(time.perf_counter() - start_time)
    return min(times)


def table_pairwise() -> None:
    echo(f"\ndecompose against the pairwise kernel, V = {V:,}, D = {D}, seconds")
    echo(f"{'N':>8} {'pairwise':>10} {'ours':>8} {'ratio':>7} {'largest difference':>20}")
    for N in (2048, 4096, 8192, 16384):
        batch = make_batch(N)
        ours = fastest_seconds(decompose, batch, repeats=2)
        peer = fastest_seconds(pairwise, batch, repeats=1 if N > 4096 else 2)
        difference_text = f"{difference(batch):.1e}" if N == 2048 else ""
        echo(f"{N:>8,} {peer:>10.2f} {ours:>8.2f} {peer / ours:>7.1f} {difference_text:>20}")


def difference(batch: Batch) -> float:
    """Largest deviation of any part, relative to the largest displacement."""
    coupling = decompose(*batch)
    peer = torch.stack(pairwise(*batch)[1:])  # [4, N, 2]
    ours = torch.stack(list(coupling.parts.values())).view(2, 4, -1).permute(1, 2, 0)
    return float((ours - peer).abs().max() / coupling.total.abs().max())


def table_growth() -> None:
    echo(f"\ngrowth with N, V = {V:,}, D = {D}")
    echo(f"{'N':>8} {'seconds':>9} {'time / at N/2':>15}")
    previous_seconds = None
    for N in (4096, 8192, 16384, 32768):
        batch = make_batch(N)
        current_seconds = fastest_seconds(decompose, batch)
        ratio = f"{current_seconds / previous_seconds:.2f}" if previous_seconds else ""
        echo(f"{N:>8,} {current_seconds:>9.2f} {ratio:>15}")
        previous_seconds = current_seconds


def table_memory() -> None:
    echo(f"\npeak memory beyond inputs and outputs, V = {V:,}, D = {D}, MB (a process each)")
    echo(f"{'N':>8} {'extra':>8}")
    for N in (16384, 65536, 131072):
        process = subprocess.run(
            [sys.executable, "-m", "counterpoise.lab.speed.microscope", "--extra-memory", str(N)],
            capture_output=True,
            text=True,
        )
        echo(f"{N:>8,} {float(process.stdout):>8.0f}")


def extra_memory(N: int) -> float:
    """MB that `decompose` adds to the peak of a process that holds its inputs."""
    batch = make_batch(N)
    decompose(*make_batch(256))  # libraries and thread pools
    peak_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    coupling = decompose(*batch)
    peak_after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outputs = 4 * N * (4 + len(coupling.parts)) / 1024
    return max(0.0, (peak_after - peak_before - outputs) / 1024)


def table_large() -> None:
    N, vocabulary, size = 200_000, 49_152, 576
    device = "cuda" if torch.cuda.is_available() else "cpu"
    echo(f"\nN = {N:,}, V = {vocabulary:,}, D = {size} on {device}")
    batch = make_batch(N, vocabulary, size, device)
    if device == "cuda":
        torch.cuda.synchronize()
        memory_before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
    start_time = time.perf_counter()
    coupling = decompose(*batch)
    float(coupling.total.sum())
    elapsed = time.perf_counter() - start_time
    if device == "cuda":
        extra = (torch.cuda.max_memory_allocated() - memory_before) / 2**30
        echo(f"{elapsed:.1f} s, {extra:.2f} GiB beyond the inputs")
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        echo(f"{elapsed:.0f} s, peak of the process {peak:.2f} GiB")


def milliseconds(work: Callable[[], object], repeats: int = 5) -> float:
    """Median milliseconds after one warm-up call, including work queued on a GPU."""
    times = []
    for _ in range(repeats + 1):
        synchronize_gpu()
        start_time = time.perf_counter()
        work()
        synchronize_gpu()
        times.append(1000 * (time.perf_counter() - start_time))
    return sorted(times[1:])[repeats // 2]


def synchronize_gpu() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def table_precision() -> None:
    gpu = torch.cuda.is_available()
    vocabulary, size = (49_152, 576) if gpu else (2_048, 64)
    where = torch.cuda.get_device_name() if gpu else "cpu, rounding emulated"
    echo(f"\ndecompose by precision, V = {vocabulary:,}, D = {size}, {where}")
    echo(
        f"{'N':>8} {'precision':>10} {'ms':>9} {'float32 / it':>13} {'extra GiB':>10} {'error':>9}"
    )
    for N in (16_384, 65_536) if gpu else (2_048,):
        batch = make_batch(N, vocabulary, size, "cuda" if gpu else "cpu", group=1024)
        float32_milliseconds, float32_coupling = 0.0, None
        for precision in (torch.float32, torch.float16, torch.bfloat16):
            memory_before = torch.cuda.memory_allocated() if gpu else 0
            if gpu:
                torch.cuda.reset_peak_memory_stats()
            coupling = decompose_in_precision(batch, precision)
            extra = (
                (torch.cuda.max_memory_allocated() - memory_before) / 2**30 if gpu else float("nan")
            )
            elapsed = milliseconds(partial(decompose_in_precision, batch, precision))
            # float32 comes first: the other precisions are compared with it.
            float32_milliseconds = float32_milliseconds or elapsed
            float32_coupling = float32_coupling or coupling
            name = str(precision).removeprefix("torch.")
            echo(
                f"{N:>8,} {name:>10} {elapsed:>9.1f} {float32_milliseconds / elapsed:>13.1f} "
                f"{extra:>10.2f} {largest_part_error(coupling, float32_coupling):>9.1e}"
            )


def decompose_in_precision(batch: Batch, precision: torch.dtype) -> Coupling:
    hidden, W, tokens, advantages, groups = batch
    residuals = Residuals(hidden, W, tokens, precision=precision)
    return decompose_residuals(residuals, tokens, advantages, groups)


def largest_part_error(coupling: Coupling, exact: Coupling) -> float:
    """Largest root-mean-square difference of a part, relative to that part."""
    return max(
        float((coupling.parts[part] - values).norm() / values.norm())
        for part, values in exact.parts.items()
    )


def table_look() -> None:
    gpu = torch.cuda.is_available()
    device, precision = ("cuda", torch.float16) if gpu else ("cpu", None)
    P, G, T, vocabulary, size = (16, 8, 128, 49_152, 576) if gpu else (4, 8, 32, 2_048, 64)
    N = P * G * T
    hidden, W, tokens, pulls, groups = make_batch(N, vocabulary, size, device, group=G * T)
    if gpu:
        hidden, W = hidden.bfloat16(), W.bfloat16()
    cpu_inputs = tokens.cpu(), pulls.cpu(), groups.cpu()
    rows = [
        make_row(index // G, tokens_T)
        for index, tokens_T in enumerate(cpu_inputs[0].int().numpy().reshape(-1, T))
    ]
    residuals = Residuals(hidden, W, cpu_inputs[0], precision=precision)
    watched_rows, logprobs = torch.arange(G * T), -torch.rand(N, device=device)
    coupling = decompose_residuals(residuals, *cpu_inputs)
    operations: dict[str, Callable[[], object]] = {
        "residuals": lambda: Residuals(hidden, W, cpu_inputs[0], precision=precision),
        "decompose": lambda: decompose_residuals(residuals, *cpu_inputs),
        "token types": lambda: type_pulls(hidden.float(), cpu_inputs[0], logprobs, pulls),
        f"strongest pushes on {G * T:,}": lambda: strongest_pushes(
            residuals, cpu_inputs[1], watched_rows
        ),
        "shared prefixes (CPU, meanwhile)": lambda: prefixes.measure_shared_prefixes(rows),
        "to the CPU in one transfer": coupling.cpu,
    }
    echo(f"\nbefore one step of {N:,} tokens, V = {vocabulary:,}, D = {size} on {device}, ms")
    for name, work in operations.items():
        echo(f"{name:>34} {milliseconds(work):>8.2f}")


def make_row(group: int, tokens: np.ndarray) -> Row:
    rollout = Rollout(str(group), "", "", "", 0.0, tokens[:1], tokens, np.zeros(len(tokens), "f4"))
    return Row(str(group), 1.0, len(tokens), rollout=rollout)


def table_monitor() -> None:
    from counterpoise.config.load import load_config
    from counterpoise.loop import train

    echo("\nthe monitor in the demo, seconds per iteration with an update")
    with tempfile.TemporaryDirectory() as folder:
        config = load_config("demo", ["loop.iterations=12", "evaluate.prompts=0"])
        run = train(config, Path(folder) / "run")
        records = [record for record in run.read("metrics")[2:] if record["monitor_seconds"]]
    monitor_seconds = sorted(record["monitor_seconds"] for record in records)[len(records) // 2]
    iteration_seconds = sorted(record["iteration_seconds"] for record in records)[len(records) // 2]
    echo(json.dumps({"iteration": iteration_seconds, "monitor": monitor_seconds}))
    echo(
        f"median of {len(records)} of 10 iterations, after 2 to warm up: "
        f"{monitor_seconds:.2f} of {iteration_seconds:.2f} s, "
        f"{100 * monitor_seconds / iteration_seconds:.0f} % of the iteration, "
        f"{100 * monitor_seconds / (iteration_seconds - monitor_seconds):.0f} % on top of one "
        "without"
    )


TABLES = {
    "pairwise": table_pairwise,
    "growth": table_growth,
    "memory": table_memory,
    "precision": table_precision,
    "look": table_look,
    "monitor": table_monitor,
    "large": table_large,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", nargs="*", choices=[*TABLES, []], default=[])
    parser.add_argument("--extra-memory", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.extra_memory:
        echo(extra_memory(args.extra_memory))
        return
    table_names = args.tables or [
        table_name for table_name in TABLES if table_name != "large" or torch.cuda.is_available()
    ]
    echo(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    for name in table_names:
        TABLES[name]()


if __name__ == "__main__":
    main()
