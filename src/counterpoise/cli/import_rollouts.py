"""`poise import`: convert rollouts that other trainers have logged."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from counterpoise.terminal import echo, one_line
from counterpoise.variants import IMPORTERS


def import_rollouts(
    path: Annotated[Path, typer.Argument(help="The folder or file that the other trainer wrote.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="A new folder for the rollouts.")],
    source: Annotated[
        str | None,
        typer.Option(
            "--from", help=f"{', '.join(IMPORTERS)}. Default: recognized from what is in the files."
        ),
    ] = None,
    tokenizer: Annotated[
        str,
        typer.Option("--tokenizer", help="Tokenizer of the trained model: a folder or a hub id."),
    ] = "",
    reward: Annotated[
        str,
        typer.Option(
            "--reward",
            help="Tables, TRL and ms-swift: the reward columns and their weights, such as "
            "correct,form=0.2. slime and miles: which reward to use if there are several.",
        ),
    ] = "",
    columns: Annotated[
        str,
        typer.Option(
            "--columns",
            help="Tables: columns whose names are not recognised, such as "
            "prompt=question,response=text,reward=extra.score.",
        ),
    ] = "",
) -> None:
    """Convert rollouts that another trainer has logged, to report, look at, plan and study them.

    - `trl`: `completions/completions_STEP.parquet` (log_completions)
    - `verl`: `STEP.jsonl` (trainer.rollout_data_dir)
    - `prime-rl`: `monitors/file/traces/`, `rollouts/step_N/`, or `token_exports/`
    - `slime`, `miles`: `train_data/*.pt` and `rollout_data/*.pt` (--dump-details)
    - `areal`: `rollout/VERSION/TASK.jsonl` (rollout.dump_to_file)
    - `nemo-rl`: `train_data_stepN.jsonl` (logger.log_dir)
    - `ms-swift`: `completions.jsonl` (log_completions)
    - `tinker-cookbook`: `iteration_N/train_rollout_summaries.jsonl` (log_path), which count tokens
    - `wandb`: `*.table.json`, such as TRL's completions
    - `poise`: a run folder of ours, or JSON lines with prompt_id, reward and response_tokens
    - `table`: JSON lines, JSON, parquet or CSV of your own, with a prompt, a response and a reward

    Where the files say which rollouts shared an optimizer step, plans show the trainer's batches.
    TRL, verl, AReaL, ms-swift and W&B have texts only, as most tables do, so --tokenizer is needed
    to count tokens; elsewhere it adds texts that are missing.

    - `poise import trl_output --out out/theirs --tokenizer Qwen/Qwen3-0.6B`
    - `poise import slime_dump --out out/theirs`
    - `poise import my_log.jsonl --out out/mine --tokenizer my/model --columns response=text`
    - `poise report out/theirs`
    """
    from rich.text import Text

    from counterpoise.hosts.importing.write_folder import import_run
    from counterpoise.terminal import TerminalConsole

    with TerminalConsole(stderr=True).status("looking at the files") as status:

        def show_progress(activity: str) -> None:
            status.update(Text(one_line(activity)))

        summary = import_run(path, out, source, tokenizer, reward, columns, show_progress)
    echo(summary.terminal_text(out))
