"""The coupling decomposition against the pairwise kernel, and the monitor inside a run.

    python benchmarks/microscope.py                 all tables, about six minutes on two cores
    python benchmarks/microscope.py growth large    some of them; `large` wants a GPU (an hour else)

pairwise  N x N kernel by matrix products, then its nine sums; what a straightforward
          implementation of eq. 8 and 9 does, walked over in blocks of rows so that it fits
growth    time for N from 4,096 to 32,768, V = 8,192, D = 128
memory    peak memory beyond inputs and outputs, for growing N
large     N = 200,000, V = 49,152, D = 576
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
from pathlib import Path

import torch
from torch import Tensor

from counterpoise.microscope.coupling import decompose

V, D, GROUP = 8192, 128, 512
Batch = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def made_up(N: int, V: int = V, D: int = D, device: str = "cpu") -> Batch:
    """Tokens by Zipf's law, queries of 512 tokens, advantages of both signs."""
    g = torch.Generator().manual_seed(0)
    hidden, W = torch.randn(N, D, generator=g), 0.2 * torch.randn(V, D, generator=g)
    tokens = torch.multinomial(1 / torch.arange(1, V + 1.0), N, replacement=True, generator=g)
    advantages = torch.randn(N, generator=g)
    groups = torch.arange(N) // GROUP
    return tuple(x.to(device) for x in (hidden, W, tokens, advantages, groups))  # type: ignore[return-value]


@torch.no_grad()
def pairwise(hidden: Tensor, W: Tensor, tokens: Tensor, A: Tensor, groups: Tensor) -> list[Tensor]:
    """Own and the eight parts from the kernel itself."""
    N, rows = len(tokens), 1024
    R = torch.softmax(hidden @ W.T, dim=-1).neg_()
    R[torch.arange(N), tokens] += 1
    signed = torch.stack((A.clamp(min=0), A.clamp(max=0)), dim=1) / N
    own = torch.empty(N)
    parts = torch.empty(4, N, 2)
    for start in range(0, N, rows):
        block = slice(start, start + rows)
        K = (R[block] @ R.T) * (hidden[block] @ hidden.T)
        diagonal = K.diagonal(start)
        own[block] = diagonal * A[block] / N
        diagonal.zero_()
        token = tokens[block, None] == tokens[None]
        query = groups[block, None] == groups[None]
        for i, mask in enumerate((token & query, token & ~query, ~token & query, ~token & ~query)):
            parts[i, block] = (K * mask) @ signed
    return [own, *parts.unbind()]


def seconds(work: Callable[..., object], batch: Batch, repeats: int = 3) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work(*batch)
        times.append(time.perf_counter() - start)
    return min(times)


def table_pairwise() -> None:
    print(f"\ndecompose against the pairwise kernel, V = {V:,}, D = {D}, seconds")
    print(f"{'N':>8} {'pairwise':>10} {'ours':>8} {'ratio':>7} {'largest difference':>20}")
    for N in (2048, 4096, 8192, 16384):
        batch = made_up(N)
        ours = seconds(decompose, batch, repeats=2)
        peer = seconds(pairwise, batch, repeats=1 if N > 4096 else 2)
        gap = f"{difference(batch):.1e}" if N == 2048 else ""
        print(f"{N:>8,} {peer:>10.2f} {ours:>8.2f} {peer / ours:>7.1f} {gap:>20}", flush=True)


def difference(batch: Batch) -> float:
    """Largest deviation of any part, relative to the largest displacement."""
    found = decompose(*batch)
    peer = torch.stack(pairwise(*batch)[1:])  # [4, N, 2]
    ours = torch.stack(list(found.parts.values())).view(2, 4, -1).permute(1, 2, 0)
    return float((ours - peer).abs().max() / found.total.abs().max())


def table_growth() -> None:
    print(f"\ngrowth with N, V = {V:,}, D = {D}")
    print(f"{'N':>8} {'seconds':>9} {'over half of N':>15}")
    before = None
    for N in (4096, 8192, 16384, 32768):
        batch = made_up(N)
        now = seconds(decompose, batch)
        print(f"{N:>8,} {now:>9.2f} {f'{now / before:.2f}' if before else '':>15}", flush=True)
        before = now


def table_memory() -> None:
    print(f"\npeak memory beyond inputs and outputs, V = {V:,}, D = {D}, MB (a process each)")
    print(f"{'N':>8} {'extra':>8}")
    for N in (16384, 65536, 131072):
        done = subprocess.run(
            [sys.executable, __file__, "--extra-memory", str(N)], capture_output=True, text=True
        )
        print(f"{N:>8,} {float(done.stdout):>8.0f}", flush=True)


def extra_memory(N: int) -> float:
    """MB that `decompose` adds to the peak of a process that holds its inputs."""
    batch = made_up(N)
    decompose(*made_up(256))  # libraries and thread pools
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = decompose(*batch)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outputs = 4 * N * (4 + len(found.parts)) / 1024
    return max(0.0, (after - before - outputs) / 1024)


def table_large() -> None:
    N, vocabulary, size = 200_000, 49_152, 576
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(f"\nN = {N:,}, V = {vocabulary:,}, D = {size} on {device}")
    batch = made_up(N, vocabulary, size, device)
    if device == "cuda":
        torch.cuda.synchronize()
        held = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    found = decompose(*batch)
    float(found.total.sum())
    spent = time.perf_counter() - start
    if device == "cuda":
        extra = (torch.cuda.max_memory_allocated() - held) / 2**30
        print(f"{spent:.1f} s, {extra:.2f} GiB beyond the inputs")
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(f"{spent:.0f} s, peak of the process {peak:.2f} GiB")


def table_monitor() -> None:
    from counterpoise.loop import train
    from counterpoise.runfile import load_config

    print("\nthe monitor in the demo, seconds per iteration (median of 10, after 2)")
    with tempfile.TemporaryDirectory() as folder:
        config = load_config("demo", ["loop.iterations=12", "evaluate.prompts=0"])
        run = train(config, Path(folder) / "run")
        lines = [r for r in run.read("metrics")[2:] if r["monitor_seconds"]]
    monitor = sorted(r["monitor_seconds"] for r in lines)[len(lines) // 2]
    whole = sorted(r["iteration_seconds"] for r in lines)[len(lines) // 2]
    print(json.dumps({"iteration": whole, "monitor": monitor}))
    print(
        f"{monitor:.2f} of {whole:.2f} s: {100 * monitor / whole:.0f} % of the iteration, "
        f"{100 * monitor / (whole - monitor):.0f} % on top of one without"
    )


TABLES = {
    "pairwise": table_pairwise,
    "growth": table_growth,
    "memory": table_memory,
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
        print(extra_memory(args.extra_memory))
        return
    chosen = args.tables or [t for t in TABLES if t != "large" or torch.cuda.is_available()]
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    for name in chosen:
        TABLES[name]()


if __name__ == "__main__":
    main()
