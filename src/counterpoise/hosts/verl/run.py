"""`poise train X.toml --engine verl --out DIR`: write data files and config to DIR, then run verl.

DIR/config.toml  train.parquet  heldout.parquet  engine.json      written here
DIR/checkpoints  rollouts  log.jsonl  tensorboard  wandb          written by verl
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from counterpoise.config import RunConfig
from counterpoise.errors import PoiseError
from counterpoise.hosts.verl import host
from counterpoise.hosts.verl.command import build_command, template_name
from counterpoise.hosts.verl.run_options import check_options
from counterpoise.model.templates import TEMPLATES, prompt_messages, prompt_text
from counterpoise.plugins import is_plugin
from counterpoise.run.trackers.tracker import check_installed, load_run_id
from counterpoise.run.try_plugins import check_plugins
from counterpoise.store.folder import Engine, RunFolder
from counterpoise.store.turns import messages_to_records
from counterpoise.task.contamination.training_overlap import load_benchmarks, warn_of_overlap
from counterpoise.task.load import check_enough_prompts, load_run_task
from counterpoise.task.task_prompts import TaskPrompts
from counterpoise.terminal import echo_message
from counterpoise.types import Prompt
from counterpoise.verify.extra_rewards import reward_columns
from counterpoise.verify.plugin_reward import training_context

PROBLEM_FILES = ("train.parquet", "heldout.parquet")


def prepare_folder(config: RunConfig, out: Path) -> RunFolder:
    """Make the run folder with every file that the command names."""
    RunFolder.check_free(out)
    task, benchmarks = load_run_task(config), load_benchmarks(config.task.benchmarks)
    task.announce(echo_message)
    check_enough_prompts(len(task.train), config.sample.prompts)
    folder = RunFolder.create(out, config, Engine("verl", host.SUPPORTED_VERSION))
    warn_of_overlap(task.train, benchmarks, folder, echo_message)
    _write_problems(folder, task, config)
    return folder


def complete_folder(config: RunConfig, out: Path) -> None:
    """Write the files of problems if the run was stopped before it had them."""
    folder = RunFolder.open(out)
    if not all((out / name).is_file() for name in PROBLEM_FILES):
        _write_problems(folder, load_run_task(config), config)


def _write_problems(folder: RunFolder, task: TaskPrompts, config: RunConfig) -> None:
    # verl needs a validation file even without validation: then it holds one training problem.
    for name, prompts in zip(PROBLEM_FILES, (task.train, task.heldout), strict=True):
        with folder.atomic_write(name) as temporary:
            pq.write_table(prompt_table(prompts or task.train[:1], config), temporary)


def prompt_table(prompts: Sequence[Prompt], config: RunConfig) -> pa.Table:
    """verl's columns: data_source, prompt, reward_model.ground_truth, extra_info.

    extra_info has what a user's own reward function may take; columns are JSON, since parquet needs
    one type for all rows.
    """
    data_source = training_context(config, 0).data_source  # as reward functions know it
    rows: list[dict[str, Any]] = [
        {
            "data_source": data_source,
            "prompt": host_messages(prompt, template_name(config)),
            "reward_model": {"style": "rule", "ground_truth": prompt.answer},
            "extra_info": {"id": prompt.id, **_reward_inputs(prompt, config)},
        }
        for prompt in prompts
    ]
    return pa.Table.from_pylist(rows)


def host_messages(prompt: Prompt, template: str) -> list[dict[str, str]]:
    """The prompt as verl's messages: a conversation, or one message that holds the whole text."""
    if prompt.messages and prompt.messages[-1].role == "assistant":
        raise PoiseError(
            f"problem '{prompt.id}' ends with the start of a response, which verl would take as "
            "complete: leave that turn out, or train with --engine native"
        )
    if TEMPLATES[template].chat:
        return prompt_messages(template, prompt)
    return [{"role": "user", "content": prompt_text(template, prompt)}]


def _reward_inputs(prompt: Prompt, config: RunConfig) -> dict[str, str]:
    if not is_plugin(config.verify.name):
        return {}
    needed_columns = reward_columns(config.verify)
    try:
        # A column that the function does not need is left out if JSON cannot hold it.
        columns = json.dumps(
            {
                name: value
                for name, value in prompt.columns.items()
                if name in needed_columns or _is_json(value)
            },
            ensure_ascii=False,
        )
    except TypeError as fault:
        raise PoiseError(
            f"problem '{prompt.id}': --engine verl passes columns to the reward function as JSON, "
            f"and these cannot be written: {fault}"
        ) from fault
    messages = json.dumps(messages_to_records(prompt.messages), ensure_ascii=False)
    return {"problem": prompt.problem, "columns": columns, "messages": messages}


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def logger_environment(config: RunConfig, out: Path) -> dict[str, str]:
    """Variables for verl's loggers: write into the folder, and on resume continue the W&B run."""
    variables = {
        "VERL_FILE_LOGGER_PATH": str(out / "log.jsonl"),
        "TENSORBOARD_DIR": str(out / "tensorboard"),
    }
    if "wandb" in config.track.to:
        wandb_run = load_run_id(out / "wandb")
        variables |= {"WANDB_DIR": str(out), "WANDB_RUN_ID": wandb_run, "WANDB_RESUME": "allow"}
    return variables


def launch_verl(config: RunConfig, out: Path, *, resume: bool = False) -> None:
    """Run verl in a separate process; its output goes to the terminal."""
    host.require_verl()
    remarks = check_options(config)
    check_installed(config.track.to)
    if resume:
        complete_folder(config, out)
    else:
        prepare_folder(config, out)
    for remark in (*check_plugins(config), *remarks):
        echo_message(f"poise: {remark}")
    command = [sys.executable, *build_command(config, out, resume=resume)[1:]]
    environment = {**os.environ, **logger_environment(config, out)}
    exit_code = wait_for_verl(subprocess.Popen(command, env=environment))
    if exit_code:
        raise PoiseError(
            f"verl stopped with exit code {exit_code}: its last lines above say why; "
            f"then continue with poise train --resume --out {out}"
        )


def wait_for_verl(process: subprocess.Popen[bytes]) -> int:
    """Its exit code. After Ctrl-C verl has the time it needs to stop its workers."""
    try:
        return process.wait()
    except KeyboardInterrupt:
        # The terminal has sent Ctrl-C to verl as well.
        echo_message("poise: waiting for verl to stop its workers; Ctrl-C again kills it")
        try:
            process.wait()
        except KeyboardInterrupt:
            process.kill()
            process.wait()
        raise
