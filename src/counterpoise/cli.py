"""The `poise` command. Heavy imports wait until a command needs them, so --help is instant."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from counterpoise import __version__
from counterpoise.errors import PoiseError

if TYPE_CHECKING:
    from counterpoise.config import RunConfig

app = typer.Typer(
    name="poise",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="""Critic-free RL in which the batch is an object.

**poise demo** trains the embedded model in a few minutes on two CPU cores.
**poise train** runs a TOML file. **poise plan** shows which rollouts would share an update.
**poise report** turns a run folder into one HTML page. **poise study** reproduces the paper.""",
)

Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-s",
        help="Override an option: section.option=value. Repeatable; see `poise options`.",
    ),
]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="Folder for the run.")]


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"counterpoise {__version__}")
        raise typer.Exit


@app.callback()
def poise(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")
    ] = False,
) -> None:
    pass


@app.command()
def demo(
    out: Out = None,
    sets: Set = None,
) -> None:
    """Train the embedded model with QB and RB for 40 iterations, and report what changed.

    Needs no network and no GPU. The run is runs/demo.toml; every option can be overridden:

        poise demo --set batch.composer=shuffled --set balance.tau=0
    """
    from counterpoise.runfile import load_config

    _train(load_config("demo", sets or []), out or _fresh(Path("out/demo")), resume=False)


@app.command()
def train(
    config: Annotated[
        str | None, typer.Argument(help="A TOML file, or a preset of runs/ by name.")
    ] = None,
    out: Out = None,
    sets: Set = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the resolved run and what it needs.")
    ] = False,
) -> None:
    """Train a policy: sample, verify, credit, balance, compose, update.

    - `poise train runs/demo.toml --out out/first`
    - `poise train runs/demo.toml --out out/shuffled --set batch.composer=shuffled`
    - `poise train --resume --out out/first`
    - `poise train qwen3-1.7b-base --dry-run`
    """
    from counterpoise.runfile import load_config

    if resume:
        from counterpoise.store.resume import config_to_resume

        if out is None:
            raise PoiseError("--resume needs --out: the folder of the run to go on with")
        run = config_to_resume(out, load_config(config, sets or []) if config else None, sets or [])
    elif config is None:
        raise PoiseError("name a run: poise train runs/demo.toml --out DIR")
    else:
        run = load_config(config, sets or [])
    if dry_run:
        from counterpoise.estimate import describe_run

        typer.echo(describe_run(run))
        return
    if out is None:
        raise PoiseError("--out is missing: the folder to write the run to")
    _train(run, out, resume=resume)


@app.command()
def warmup(
    config: Annotated[str, typer.Argument(help="A TOML file, or a preset of runs/ by name.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the model.")],
    sets: Set = None,
) -> None:
    """Supervised training on worked solutions, so that RL has something to improve.

    Takes [model], [task] and [warmup]; model.name=scratch starts from nothing. The embedded model
    was made by:  poise warmup embedded --out DIR
    """
    from counterpoise.runfile import load_config
    from counterpoise.warmup.run import run_warmup

    run_warmup(load_config(config, sets or []), out)


@app.command()
def plan(
    rollouts: Annotated[
        Path,
        typer.Argument(
            help="JSON lines with prompt_id, reward, and response_tokens or num_tokens."
        ),
    ],
    composer: Annotated[
        str, typer.Option("--composer", "-c", help="Which rows share a step; see batch.composer.")
    ] = "grouped",
    steps: Annotated[int, typer.Option("--steps", "-k", help="Optimizer steps.")] = 4,
    credit: Annotated[
        str, typer.Option("--credit", help="Rewards -> advantages; see credit.name.")
    ] = "grpo",
    seed: Annotated[int, typer.Option("--seed", help="Of the composer.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """Show which rollouts would share an optimizer step: a dry run on any rollout file.

    - `poise plan out/demo/rollouts/step_00001.jsonl --composer shuffled --steps 4`
    """
    import json

    from counterpoise.batch.plan_rollouts import plan_file

    planned = plan_file(rollouts, composer, steps, seed, credit)
    if as_json:
        typer.echo(json.dumps(planned))
        return
    from rich.console import Console

    from counterpoise.plan_table import plan_table

    Console().print(plan_table(planned))


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="A run folder, or a folder of studies.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The HTML file; default RUN/report.html.")
    ] = None,
) -> None:
    """Turn a run, or a folder of studies, into one self-contained HTML page that opens offline."""
    from counterpoise.report.page import write_report

    typer.echo(write_report(run, out))


@app.command("import")
def import_rollouts(
    path: Annotated[Path, typer.Argument(help="What the other trainer wrote: a folder or a file.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="A new folder for the rollouts.")],
    source: Annotated[
        str | None, typer.Option("--from", help="trl, verl or prime-rl; seen by default.")
    ] = None,
    tokenizer: Annotated[
        str, typer.Option("--tokenizer", help="Of the model that was trained: a folder or hub id.")
    ] = "",
    reward: Annotated[
        str, typer.Option("--reward", help="TRL: the reward's columns, as correct,form=0.2.")
    ] = "",
) -> None:
    """Bring in rollouts that TRL, verl or prime-rl wrote, for `poise plan` and `poise report`.

    TRL and verl write texts only, so --tokenizer is needed to count tokens; for prime-rl it adds
    the texts.

    - `poise import trl_output --out out/theirs --tokenizer Qwen/Qwen3-0.6B`
    - `poise plan out/theirs/rollouts/step_00010.jsonl --composer shuffled`
    - `poise report out/theirs`
    """
    from counterpoise.import_runs.write import import_run

    typer.echo(import_run(path, out, source, tokenizer, reward).told(out))


@app.command()
def study(
    name: Annotated[str, typer.Argument(help="A study by name, or 'all'. Without: the list.")] = "",
    model: Annotated[
        str, typer.Option("--model", "-m", help="'embedded', 'smollm2', a folder, or a hub id.")
    ] = "embedded",
    budget: Annotated[
        str, typer.Option("--budget", "-b", help="'quick' (CPU) or 'full' (a GPU).")
    ] = "quick",
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the results.")] = Path(
        "out/studies"
    ),
    again: Annotated[
        bool, typer.Option("--again", help="Measure again what was measured before.")
    ] = False,
    rollouts: Annotated[
        Path | None,
        typer.Option("--rollouts", help="A run's, or imported ones, in place of drawing some."),
    ] = None,
) -> None:
    """Reproduce a figure or table of the paper: numbers, verdict, table, figure.

    Writes NAME.json, NAME.parquet, NAME.svg, NAME.png and NAME.html, and report.html for all
    studies of the folder. What was measured before is only judged and drawn again, so an
    interrupted `poise study all` goes on where it stopped.

    - `poise study flipping`
    - `poise study all --budget quick --out out/studies`
    """
    from counterpoise.study.command import list_studies, run_studies

    if name:
        run_studies(name, model, budget, out, again=again, rollouts=rollouts)
    else:
        list_studies()


@app.command()
def experiment(
    file: Annotated[str, typer.Argument(help="A run file with [experiment], or a preset's name.")],
    out: Out = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", min=1, help="Runs at a time; default: one a core.")
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option("--minutes", help="Stop after so long; the same command goes on."),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option("--seeds", help="Only these, by place: 0:4 is the first four.")
    ] = None,
    rates: Annotated[
        str | None, typer.Option("--rates", help="Only these learning rates: 1e-5,4e-5.")
    ] = None,
    arms: Annotated[
        str | None, typer.Option("--arms", help="Only these arms: shuffled,QB.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Where the model lies on this machine.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan and what its seeds can show.")
    ] = False,
) -> None:
    """Train the arms of an experiment, seed by seed, and compare them by the file's rule.

    Every run is a process of its own and is taken up where it stopped. DIR/curves.parquet holds all
    finished runs; put that of another folder into DIR/pieces/ to add its runs.

    - `poise experiment smollm2-interventions --dry-run`
    - `poise experiment smollm2-interventions --out out/arms --jobs 6 --minutes 9`
    """
    from counterpoise.study.experiment_command import Part, run_experiment

    part = Part(seeds, rates, arms)
    run_experiment(file, out, part, jobs=jobs, minutes=minutes, model=model, dry_run=dry_run)


@app.command()
def look(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    step: Annotated[
        int | None, typer.Option("--step", help="Iteration; default the last that was stored.")
    ] = None,
    row: Annotated[
        int | None, typer.Option("--row", help="Rollout of the batch; default the first.")
    ] = None,
    by: Annotated[
        str | None,
        typer.Option("--by", help="Colour: displacement, push, own, others, entropy, ..."),
    ] = None,
    token: Annotated[
        int | None, typer.Option("--token", help="Show the tokens that pushed this one.")
    ] = None,
) -> None:
    """Show one rollout in the terminal, every token coloured by what the update did to it.

    - `poise look out/demo`
    - `poise look out/demo --step 12 --row 3 --by entropy`
    - `poise look out/demo --row 3 --token 17`
    """
    from rich.console import Console

    from counterpoise.look import look as look_at

    look_at(run, Console(), step=step, row=row, by=by, token=token)


@app.command()
def options(
    like: Annotated[str, typer.Argument(help="Only options whose name contains this.")] = "",
) -> None:
    """List every option of a run with its default and its reason."""
    from rich.console import Console
    from rich.table import Table

    from counterpoise.runfile import options as all_options

    table = Table(
        "option", "default", "what it does", box=None, header_style="bold", pad_edge=False
    )
    for name, default, doc in all_options():
        if like in name:
            table.add_row(name, default, doc)
    if not table.row_count:
        raise PoiseError(f"no option contains '{like}'; `poise options` lists them all")
    Console().print(table)


@app.command()
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
        float | None, typer.Option("--minutes", help="What has not begun by then is skipped.")
    ] = None,
    out: Annotated[
        Path, typer.Option("--json", help="Every repeat, the versions, and the tables.")
    ] = Path("out/bench.json"),
    profile: Annotated[
        str, typer.Option("--profile", help="List the kernels of this part instead.")
    ] = "",
    micro_tokens: Annotated[
        int, typer.Option("--micro-tokens", help="Instead of update.micro_tokens' default.")
    ] = 0,
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
    an H200, growth another four). On a GPU each bar of docs/benchmarks.md is a pass or a miss.

    - `poise bench --parts sampler,update`
    - `poise bench --parts growth --minutes 5`
    - `poise bench --model smollm2 --parts agreement`
    """
    from counterpoise.bench.run import Options, run
    from counterpoise.bench.table import make_console

    run(Options(parts.split(","), model, minutes, out, profile, micro_tokens), make_console())


@app.command()
def doctor() -> None:
    """Say what this machine can run, and check the whole path on a tiny run."""
    from counterpoise.doctor import examine

    raise typer.Exit(0 if examine() else 1)


def _train(run: RunConfig, out: Path, *, resume: bool) -> None:
    from rich.console import Console

    console = Console()
    with console.status("loading") if console.is_terminal else nullcontext():
        from counterpoise.display import LiveDisplay
        from counterpoise.evaluate.heldout import Success
        from counterpoise.evaluate.settings import by_setting
        from counterpoise.loop import train as train_run
        from counterpoise.report.page import write_report
    with LiveDisplay(console) as display:
        folder = train_run(run, out, resume=resume, watch=display)
    for setting, judged in by_setting(folder.read("evaluations")).items():
        first, last = (Success.of(record) for record in (judged[0], judged[-1]))
        at = f" at {setting}" if len(run.evaluate.settings) > 1 else ""
        console.print(f"held-out success{at} {first} -> [bold]{last}[/]", highlight=False)
    console.print(f"run    {folder.path}", highlight=False, markup=False)
    if run.store.report:
        console.print(f"report {write_report(folder.path)}", highlight=False, markup=False)


def _fresh(base: Path) -> Path:
    """out/demo, or the first of out/demo-2, -3, ... that is free."""
    path, number = base, 1
    while path.exists() and not (path.is_dir() and not any(path.iterdir())):
        number += 1
        path = base.with_name(f"{base.name}-{number}")
    return path


def main() -> None:
    """Run the command; a fault of the user's is one line and exit code 2."""
    try:
        app()
    except PoiseError as fault:
        print(f"poise: {fault}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("poise: stopped; a run can be resumed with --resume", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
