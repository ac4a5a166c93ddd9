"""`poise bench`: measure speed, memory and numerical agreement on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from counterpoise.cli.flags import takes_flags


@dataclass(frozen=True)
class BenchFlags:
    parts: Annotated[
        str,
        typer.Option(
            "--parts",
            help="Any of peer, sampler, update, agreement, monitor, probes, growth, lora, "
            "families, serve.",
        ),
    ] = "peer,sampler,update,agreement,monitor"
    model: Annotated[
        str,
        typer.Option(
            "--model", "-m", help="Default: 'embedded' on a CPU, 'shape:smollm2-135m' on a GPU."
        ),
    ] = ""
    minutes: Annotated[
        float | None,
        typer.Option("--minutes", min=0, help="Skip what has not started after this many minutes."),
    ] = None
    out: Annotated[
        Path,
        typer.Option(
            "--json", help="File for the results: every repeat, the versions and the tables."
        ),
    ] = Path("out/bench.json")
    profile: Annotated[
        str,
        typer.Option(
            "--profile",
            help="Instead of measuring, list the kernels of this part by time, and write a trace "
            "beside --json.",
        ),
    ] = ""
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", help="An option of the update: update.micro_tokens=16384."),
    ] = None
    growth: Annotated[
        str,
        typer.Option(
            "--growth", help="Only these axes (rollouts, length, size) or points (length=2048)."
        ),
    ] = ""
    run_size: Annotated[
        str,
        typer.Option(
            "--run-size", help="Iterations x rollouts x tokens of the made-up run of `serve`."
        ),
    ] = "100x102x300"
    peers: Annotated[
        str,
        typer.Option(
            "--peers",
            help="Compare with trl, trl-vllm (peer), vllm (sampler). Default: trl if installed.",
        ),
    ] = ""


@takes_flags
def bench(flags: BenchFlags) -> None:
    """Measure speed, memory and numerical agreement, against peers and the hardware's limits.

    - **peer**: a whole GRPO iteration, ours and (where `trl==1.16.0` is installed) TRL's
    - **sampler**: against `generate` of transformers, and against the memory bandwidth
    - **update**: against an update with padding, and against the matrix throughput
    - **agreement**: of sampler and trainer on log-probabilities, and of the gradient with float32
    - **monitor**: the time that the online monitor adds to an iteration
    - **probes**: the cost of following 256 held-out answers, and a check that no weight changes
    - **growth**: time and memory against rollouts, response length and model size
    - **lora**: an iteration that trains an adapter of a 7B-shaped model, ours and TRL's with PEFT
    - **families**: tiny models of many families against transformers, and resumed runs
    - **serve**: pages, filters and searches of `poise serve` while a run grows

    Sizes depend on the machine. A CPU measures the embedded model (a few minutes on two cores). A
    GPU measures 64 x 8 rollouts with the shape of SmolLM2-135M and the update of Qwen3-1.7B (about
    four minutes on an H200, and four more for growth), and says which measurements meet their
    limits (docs/results/speed.md).

    - `poise bench --parts sampler,update`
    - `poise bench --parts peer,sampler --peers trl,trl-vllm,vllm`
    - `poise bench --parts growth --minutes 5`
    - `poise bench --parts growth --growth length=2048,size`
    - `poise bench --model smollm2 --parts agreement`
    - `poise bench --profile sampler`
    """
    from counterpoise.lab.speed.run import BenchOptions, run
    from counterpoise.lab.speed.tables import make_console

    points = [point.strip() for point in flags.growth.split(",") if point.strip()]
    run(
        BenchOptions(
            [part.strip() for part in flags.parts.split(",")],
            flags.model,
            flags.minutes,
            flags.out,
            flags.profile,
            flags.sets or (),
            points,
            flags.run_size,
            [peer.strip() for peer in flags.peers.split(",") if peer.strip()],
        ),
        make_console(),
    )
