"""`poise trace`: what moved the held-out answers of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from counterpoise.errors import PoiseError, explain_damage
from counterpoise.terminal import echo


def trace(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run trained with monitor.probe.")],
    problem: Annotated[
        str | None,
        typer.Option("--problem", help="A held-out problem: what moved its answer?"),
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option("--prompt", help="A training prompt: what did it help and hurt?"),
    ] = None,
    top: Annotated[int, typer.Option("--top", min=1, help="Rows of each table.")] = 8,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Trace held-out answers to the prompts, rollouts and tokens that moved them.

    A run with `monitor.probe=32` follows 32 answers, a right and a wrong one to each of 16 held-out
    problems: how they moved in each update, and how every rollout pushed them, through the output
    layer or, with `monitor.probe_through`, through other parameters too. Numbers are nats of
    log-probability. Predicted ones are learning rate times push: under AdamW only their order means
    something, and the rank correlation says how well it fits the real changes. Each problem belongs
    to one half: `steer` may be used to choose what is trained, `judge` only to say whether it
    helped.

    - `poise trace out/demo`
    - `poise trace out/demo --problem word_problems/heldout/3`: update by update
    - `poise trace out/demo --prompt word_problems/train/12`: what it helped and hurt
    """
    import json

    from counterpoise.cli import trace_tables
    from counterpoise.report.charts.render import nan_to_none
    from counterpoise.report.probe_trace import influence, to_data
    from counterpoise.report.probe_trace.read import ProbedRun
    from counterpoise.terminal import TerminalConsole

    if problem is not None and prompt is not None:
        raise PoiseError("give --problem or --prompt, not both")
    with explain_damage(run):
        probed_run = ProbedRun.open(run)
        traced: influence.ProblemTrace | influence.PromptTrace | influence.RunTrace
        if problem is not None:
            traced = influence.trace_problem(probed_run, problem)
        elif prompt is not None:
            traced = influence.trace_prompt(probed_run, prompt)
        else:
            traced = influence.trace_run(probed_run)
        if as_json:
            data = {"through": probed_run.through, **to_data.trace_to_data(traced)}
            echo(json.dumps(nan_to_none(data)))
            return
        console = TerminalConsole()
        trace_tables.print_parameters(probed_run, console)
        if isinstance(traced, influence.ProblemTrace):
            trace_tables.print_problem(traced, probed_run, console, top)
        elif isinstance(traced, influence.PromptTrace):
            trace_tables.print_prompt(traced, console, top)
        else:
            trace_tables.print_run(traced, console, top)
