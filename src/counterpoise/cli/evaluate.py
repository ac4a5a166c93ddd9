"""`poise eval`: evaluate models on benchmarks, with confidence intervals."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from counterpoise.cli.flags import takes_flags
from counterpoise.errors import PoiseError
from counterpoise.lab.evaluate import PAPER
from counterpoise.terminal import echo, echo_message

if TYPE_CHECKING:
    from counterpoise.lab.evaluate.plan import EvaluationOptions

PAPER_BENCHMARKS = ",".join(PAPER)

Models = Annotated[
    list[str],
    typer.Argument(help="'embedded', 'smollm2', a model folder, a run, or a hub id; one or more."),
]
Bench = Annotated[
    str,
    typer.Option(
        "--bench",
        "-b",
        help="Comma-separated names; see above.",
        show_default="the paper's six",
    ),
]
Data = Annotated[
    Path | None, typer.Option("--data", help="Folder of benchmark files. Default: the hub.")
]
Out = Annotated[Path, typer.Option("--out", "-o", help="Folder for the results.")]
Temperature = Annotated[
    str, typer.Option("--temperature", "-t", help="Default 0.6; with --sweep a list: 1.0,0.6.")
]
TopP = Annotated[str, typer.Option("--top-p", help="Default 0.95; with --sweep a list: 0.7,0.95.")]
Sweep = Annotated[
    bool,
    typer.Option("--sweep", help="Evaluate every temperature with every top-p, as in Table 4."),
]
Samples = Annotated[
    str,
    typer.Option(
        "--samples", "-n", help="Responses per problem, for all or some: 8 or aime24=8,math500=4."
    ),
]
Limit = Annotated[
    int | None, typer.Option("--limit", min=1, help="Only the first problems of each benchmark.")
]
Template = Annotated[
    str | None,
    typer.Option("--template", help="qwen-math, chat, chat-boxed, boxed, or auto (the run's own)."),
]
MaxTokens = Annotated[
    int | None,
    typer.Option(
        "--max-tokens", min=1, help="Per response. Default: 8192, or what the model allows."
    ),
]
Fields = Annotated[
    str, typer.Option("--fields", help="Field names of the files: problem=question,answer=gold.")
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of the sampler.")]
Rows = Annotated[int | None, typer.Option("--rows", min=1, help="Responses sampled together.")]
Sampler = Annotated[str, typer.Option("--sampler", help="native or vllm.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")]
Dtype = Annotated[str, typer.Option("--dtype", help="auto, float32 or bfloat16.")]
Verifier = Annotated[str, typer.Option("--verifier", help="math, exact, code or FILE.py:FUNCTION.")]
RewardTimeout = Annotated[
    float,
    typer.Option("--reward-timeout", min=0, help="Seconds for a call of FUNCTION; 0: no limit."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@dataclass(frozen=True)
class EvaluateFlags:
    models: Models
    bench: Bench = PAPER_BENCHMARKS
    data: Data = None
    out: Out = Path("out/eval")
    temperature: Temperature = ""
    top_p: TopP = ""
    sweep: Sweep = False
    samples: Samples = ""
    limit: Limit = None
    template: Template = None
    max_tokens: MaxTokens = None
    fields: Fields = ""
    seed: Seed = 0
    rows: Rows = None
    sampler: Sampler = "native"
    device: Device = "auto"
    dtype: Dtype = "auto"
    verifier: Verifier = "math"
    reward_timeout: RewardTimeout = 600.0
    as_json: AsJson = False


@takes_flags
def evaluate(flags: EvaluateFlags) -> None:
    """Evaluate models on benchmarks: avg@k, pass@k, maj@k, each with a 95 % interval.

    By default, problems of aime24, aime25, amc23 and amc83 get 32 responses each (avg@32), those of
    olympiadbench, minerva, math500, gsm8k and math get one (pass@1), at temperature 0.6 and top-p
    0.95. Any other NAME is read from NAME.jsonl, .json or .parquet in --data. Results are written
    problem by problem: run the same command again to continue after an interruption, or name
    further models or benchmarks to add them to the folder.

    - `poise eval out/before out/after --data data --out out/eval`
    - `poise eval embedded --bench gsm8k --data data --limit 100`
    - `poise eval Qwen/Qwen3-1.7B-Base --bench math500,minerva --sweep --out out/sweep`
    """
    from counterpoise.lab.evaluate.plan import EvaluationOptions
    from counterpoise.lab.evaluate.sweep import parse_settings

    options = EvaluationOptions(
        models=flags.models,
        out=flags.out,
        benchmarks=[name.strip() for name in flags.bench.split(",") if name.strip()],
        data=flags.data,
        settings=parse_settings(flags.temperature, flags.top_p, sweep=flags.sweep),
        samples={
            name: parse_sample_count(count)
            for name, count in parse_pairs("--samples", flags.samples).items()
        },
        template=flags.template,
        max_new_tokens=flags.max_tokens,
        limit=flags.limit,
        fields=parse_pairs("--fields", flags.fields),
        seed=flags.seed,
        rows=flags.rows,
        sampler=flags.sampler,
        device=flags.device,
        dtype=flags.dtype,
        verifier=flags.verifier,
        reward_timeout_seconds=flags.reward_timeout,
        # At least two: while one comparison hangs until its time limit, the other continues.
        verify_workers=max(2, min(8, os.cpu_count() or 2)),
    )
    run_evaluation(options, as_json=flags.as_json)


def run_evaluation(options: EvaluationOptions, *, as_json: bool) -> None:
    """Evaluate with live progress, then print the numbers and the path of the page."""
    from counterpoise.lab.evaluate.progress import LiveEvaluationProgress
    from counterpoise.lab.evaluate.run import evaluate as evaluate_models
    from counterpoise.terminal import TerminalConsole

    # With --json everything but the JSON goes to stderr, so that stdout can be piped.
    console = TerminalConsole(stderr=as_json)
    try:
        summary = evaluate_models(options, LiveEvaluationProgress(console))
    except KeyboardInterrupt:
        echo_message("poise: stopped; run the same command again to continue")
        raise typer.Exit(130) from None
    if as_json:
        import json

        echo(json.dumps(summary.to_json()))
        return
    from counterpoise.lab.evaluate.page import write_evaluation_page
    from counterpoise.lab.evaluate.table import print_summary

    print_summary(console, summary)
    console.print(f"report {write_evaluation_page(options.out)}", highlight=False, markup=False)


def parse_pairs(option: str, text: str) -> dict[str, str]:
    """Parse NAME=VALUE pairs; a bare VALUE, for everything not named, gets the name "".

    Example:
        >>> parse_pairs("--samples", "aime24=8,4")
        {'aime24': '8', '': '4'}
    """
    pairs: dict[str, str] = {}
    for pair in text.split(",") if text else []:
        name, _, value = (piece.strip() for piece in pair.rpartition("="))
        if not value or name in pairs:
            raise PoiseError(f"{option} {text}: write comma-separated NAME=VALUE pairs")
        pairs[name] = value
    return pairs


def parse_sample_count(count_text: str) -> int:
    """The value of --samples for a benchmark, with the limits of evaluate.benchmarks."""
    from counterpoise.config.evaluation_settings import MOST_SAMPLES, parse_samples

    samples = parse_samples(count_text)
    if samples is None:
        raise PoiseError(
            f"--samples: '{count_text}' is not a whole number from 1 to {MOST_SAMPLES:,}"
        )
    return samples
