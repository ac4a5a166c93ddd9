"""`poise bench`: how fast, how large and how exact on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def bench(
    parts: Annotated[
        str, typer.Option("--parts", help="Of peer, sampler, update, agreement, monitor, growth.")
    ] = "peer,sampler,update,agreement,monitor",
    model: Annotated[
        str,
        typer.Option(
            "--model", "-m", help="Default: 'embedded' on a CPU, 'shape:smollm2-135m' on a GPU."
        ),
    ] = "",
    minutes: Annotated[
        float | None,
        typer.Option("--minutes", min=0, help="What has not begun by then is skipped."),
    ] = None,
    out: Annotated[
        Path, typer.Option("--json", help="Every repeat, the versions, and the tables.")
    ] = Path("out/bench.json"),
    profile: Annotated[
        str, typer.Option("--profile", help="List the kernels of this part instead.")
    ] = "",
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", help="An option of the update: update.micro_tokens=16384."),
    ] = None,
    growth: Annotated[
        str, typer.Option("--growth", help="Of rollouts, length, size; or points: length=2048.")
    ] = "",
) -> None:
    """Measure this machine: how fast, how large and how exact, against peers and floors.

    - **peer** a whole GRPO iteration, ours and TRL's where `trl==1.16.0` is installed
    - **sampler** against transformers' generate, and against bytes over the copy rate
    - **update** against a padded one, and against FLOP over the matrix rate
    - **agreement** of sampler and trainer, and of the gradient with float32
    - **monitor** what the microscope adds to an iteration
    - **growth** with rollouts, response length and model size

    Sizes are those of the machine: the embedded model on a CPU (a few minutes on two cores), 64 x 8
    rollouts of SmolLM2-135M's shape and the update of Qwen3-1.7B's on a GPU (about four minutes on
    an H200, growth another four). On a GPU each bar of docs/results/speed.md is a pass or a miss.

    - `poise bench --parts sampler,update`
    - `poise bench --parts growth --minutes 5`
    - `poise bench --parts growth --growth length=2048,size`
    - `poise bench --model smollm2 --parts agreement`
    """
    from counterpoise.lab.speed.run import BenchOptions, run
    from counterpoise.lab.speed.tables import make_console

    points = [text.strip() for text in growth.split(",") if text.strip()]
    run(
        BenchOptions(parts.split(","), model, minutes, out, profile, sets or (), points),
        make_console(),
    )
