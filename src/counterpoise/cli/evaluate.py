"""`poise eval`: models on benchmarks, with intervals."""

from __future__ import annotations

import os
from itertools import product
from pathlib import Path
from typing import Annotated

import typer

from counterpoise.errors import PoiseError

PAPER = "aime24,aime25,amc23,olympiadbench,minerva,math500"


def evaluate(
    models: Annotated[
        list[str],
        typer.Argument(help="'embedded', 'smollm2', a folder, a run, or a hub id; several."),
    ],
    bench: Annotated[
        str, typer.Option("--bench", "-b", help="Of the table below, or files of --data; a list.")
    ] = PAPER,
    data: Annotated[
        Path | None, typer.Option("--data", help="A folder of JSON lines; without it, the hub.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the results.")] = Path(
        "out/eval"
    ),
    temperature: Annotated[
        str, typer.Option("--temperature", "-t", help="0.6; with --sweep a list, 1.0,0.6.")
    ] = "",
    top_p: Annotated[
        str, typer.Option("--top-p", help="0.95; with --sweep a list, 0.7,0.95.")
    ] = "",
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Every temperature with every top-p: Table 4.")
    ] = False,
    samples: Annotated[
        str, typer.Option("--samples", "-n", help="For all, or some: 8 or aime24=8,math500=4.")
    ] = "",
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Only the first problems of each.")
    ] = None,
    template: Annotated[
        str | None,
        typer.Option(
            "--template", help="qwen-math, chat, chat-boxed, boxed, or auto (as it was trained)."
        ),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option("--max-tokens", min=1, help="Of a response; default 8192 where it fits."),
    ] = None,
    fields: Annotated[
        str, typer.Option("--fields", help="What a file calls them: problem=question,answer=gold.")
    ] = "",
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of every draw.")] = 0,
    rows: Annotated[
        int | None, typer.Option("--rows", min=1, help="Responses drawn together.")
    ] = None,
    sampler: Annotated[str, typer.Option("--sampler", help="native or vllm.")] = "native",
    device: Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")] = "auto",
    dtype: Annotated[str, typer.Option("--dtype", help="auto, float32 or bfloat16.")] = "auto",
    verifier: Annotated[str, typer.Option("--verifier", help="math or exact.")] = "math",
    as_json: Annotated[bool, typer.Option("--json", help="The numbers to stdout.")] = False,
) -> None:
    """Judge models on benchmarks: avg@k, pass@k, maj@k, each with a 95 % interval.

    aime24, aime25, amc23, amc83 are asked 32 times (avg@32), olympiadbench, minerva, math500, gsm8k
    and math once (pass@1), at temperature 0.6 and top-p 0.95. Any other NAME is NAME.jsonl of
    --data. Results are written problem by problem: the same command goes on where it was stopped,
    and a further model or benchmark is added to the folder.

    - `poise eval out/before out/after --data data --out out/eval`
    - `poise eval embedded --bench gsm8k --data data --limit 100`
    - `poise eval Qwen/Qwen3-1.7B-Base --bench math500,minerva --sweep --out out/sweep`
    """
    from rich.console import Console

    from counterpoise.evaluate.plan import Options
    from counterpoise.evaluate.run import evaluate as run
    from counterpoise.evaluate.settings import Setting, parse_grid
    from counterpoise.evaluate.sweep import TEMPERATURES, TOP_PS
    from counterpoise.evaluate.table import print_summary
    from counterpoise.evaluate.watch import LiveWatch

    temperatures = parse_grid("--temperature", temperature, TEMPERATURES if sweep else (0.6,))
    top_ps = parse_grid("--top-p", top_p, TOP_PS if sweep else (0.95,))
    if not sweep and len(temperatures) * len(top_ps) > 1:
        raise PoiseError("several temperatures or top-ps are a sweep: add --sweep")
    options = Options(
        models=models,
        out=out,
        benchmarks=[name for name in bench.split(",") if name],
        data=data,
        settings=[Setting(*pair) for pair in product(temperatures, top_ps)],
        samples={name: whole(value) for name, value in pairs("--samples", samples).items()},
        template=template,
        max_new_tokens=max_tokens,
        limit=limit,
        fields=pairs("--fields", fields),
        seed=seed,
        rows=rows,
        sampler=sampler,
        device=device,
        dtype=dtype,
        verifier=verifier,
        verify_workers=max(2, min(8, os.cpu_count() or 2)),
    )
    console = Console(stderr=as_json)
    try:
        summary = run(options, LiveWatch(console))
    except KeyboardInterrupt:
        typer.echo("poise: stopped; the same command goes on", err=True)
        raise typer.Exit(130) from None
    if as_json:
        import json

        typer.echo(json.dumps(summary.to_json()))
        return
    from counterpoise.report.evaluation import write_evaluation

    print_summary(console, summary)
    console.print(f"report {write_evaluation(out)}", highlight=False, markup=False)


def pairs(option: str, text: str) -> dict[str, str]:
    """
    Example:
        >>> pairs("--samples", "aime24=8,4")
        {'aime24': '8', '': '4'}
    """
    found: dict[str, str] = {}
    for part in text.split(",") if text else []:
        name, _, value = part.rpartition("=")
        if not value or name in found:
            raise PoiseError(f"{option} {text}: write NAME=VALUE, a comma between them")
        found[name] = value
    return found


def whole(value: str) -> int:
    if not value.isdigit() or not int(value):
        raise PoiseError(f"--samples: '{value}' is no number of samples")
    return int(value)
