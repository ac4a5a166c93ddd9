"""`poise replay`: one virtual update of a model for each iteration of stored rollouts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from counterpoise.cli.app import OutOption, SetOption
from counterpoise.cli.flags import takes_flags

Rollouts = Annotated[
    Path, typer.Argument(help="A run folder, an imported one, or what `poise import` reads.")
]
ModelOption = Annotated[
    str,
    typer.Option(
        "--model", "-m", help="A model as for model.name, a run, or one of its checkpoints."
    ),
]
IterationsOption = Annotated[
    str, typer.Option("--iterations", "-i", help="A:B, A: or A. Default: all.")
]
ComposerOption = Annotated[
    str,
    typer.Option(
        "--composer",
        "-c",
        help="Rule that divides a batch into steps. Default: the stored plan, else grouped.",
    ),
]
StepsOption = Annotated[
    int,
    typer.Option(
        "--steps",
        "-k",
        min=0,
        help="Optimizer steps if the stored plan is not used. Default: as stored, else 4.",
    ),
]
MicroTokensOption = Annotated[
    int | None, typer.Option("--micro-tokens", help="Tokens of one pass: update.micro_tokens.")
]
CompareOption = Annotated[
    bool,
    typer.Option(
        "--compare", help="Also take the updates of QB and RB: about three times the work."
    ),
]
TemplateOption = Annotated[
    str,
    typer.Option(
        "--template",
        help="Prompt template for prompts stored without tokens, such as chat (default: their text "
        "as it is), and for monitor.probe_file.",
    ),
]
SourceOption = Annotated[
    str | None, typer.Option("--from", help="As for `poise import`: the trainer.")
]
RewardOption = Annotated[
    str, typer.Option("--reward", help="As for `poise import`: TRL's reward columns.")
]


@dataclass(frozen=True)
class ReplayFlags:
    rollouts: Rollouts
    model: ModelOption
    out: OutOption = None
    iterations: IterationsOption = ""
    composer: ComposerOption = ""
    steps: StepsOption = 0
    lr: Annotated[float | None, typer.Option("--lr", help="Learning rate: update.lr.")] = None
    optimizer: Annotated[str, typer.Option("--optimizer", help="adamw or sgd.")] = ""
    micro_tokens: MicroTokensOption = None
    device: Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")] = "auto"
    compare: CompareOption = False
    template: TemplateOption = ""
    source: SourceOption = None
    reward: RewardOption = ""
    settings: SetOption = None


@takes_flags
def replay(flags: ReplayFlags) -> None:
    """Show what stored rollouts of any trainer do to a model: one virtual update each iteration.

    Every iteration starts from the same weights. The result is a run folder for `poise report`,
    `poise look` and `poise credit`. The same command goes on where it was stopped.

    - `poise replay out/theirs --model Qwen/Qwen3-0.6B --out out/replay`
    - `poise replay out/demo --model out/demo/checkpoints/iteration_00020 --iterations 21`
    - `poise replay trl_output -m Qwen/Qwen3-0.6B --composer shuffled --compare --lr 1e-5`
    """
    from contextlib import nullcontext

    from counterpoise.terminal import TerminalConsole

    overrides = list(flags.settings or ())
    named_options = {
        "update.lr": flags.lr,
        "update.optimizer": flags.optimizer or None,
        "update.micro_tokens": flags.micro_tokens,
    }
    overrides += [f"{name}={value}" for name, value in named_options.items() if value is not None]
    target = flags.out or Path("out") / f"{flags.rollouts.resolve().name}-replay"
    console = TerminalConsole()
    # Importing torch takes seconds; the status line shows that something is happening.
    with console.status("loading") if console.is_terminal else nullcontext():
        from counterpoise.cli.replay_display import ReplayDisplay, comparison_table
        from counterpoise.lab.replay.folder import ReplayRequest
        from counterpoise.lab.replay.run import replay as replay_rollouts
    request = ReplayRequest(
        rollouts=flags.rollouts,
        model=flags.model,
        iterations=flags.iterations,
        composer=flags.composer,
        steps=flags.steps,
        template=flags.template,
        source=flags.source,
        reward=flags.reward,
        compare=flags.compare,
        device=flags.device,
        overrides=tuple(overrides),
    )
    display = ReplayDisplay(console)
    with display:
        folder = replay_rollouts(request, target, display)
    if lines := folder.read("alternatives"):
        console.print(comparison_table(lines), highlight=False)
    console.print(f"run    {folder.path}", highlight=False, markup=False, soft_wrap=True)
