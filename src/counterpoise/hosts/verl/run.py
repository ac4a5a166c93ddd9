"""`poise train X.toml --engine verl --out DIR`: data files and config in DIR, then verl itself.

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
from counterpoise.hosts.verl.command import asked, command
from counterpoise.hosts.verl.run_options import checked
from counterpoise.model.templates import fill_template
from counterpoise.plugins import is_own
from counterpoise.run.trackers.tracker import check_installed
from counterpoise.store.folder import RunFolder
from counterpoise.task.contamination.training_overlap import load_benchmarks, warn_of_overlap
from counterpoise.task.load import check_enough_prompts, load_problems
from counterpoise.terminal import echo_message
from counterpoise.types import Prompt


def prepare(config: RunConfig, out: Path) -> RunFolder:
    """A folder with everything that the command names."""
    RunFolder.check_free(out)
    task, benchmarks = load_problems(config), load_benchmarks(config.task.benchmarks)
    check_enough_prompts(len(task.train), config.sample.prompts)
    folder = RunFolder.create(out, config)
    warn_of_overlap(task.train, benchmarks, folder, echo_message)
    for name, prompts in (("train", task.train), ("heldout", task.heldout)):
        with folder.replacing(f"{name}.parquet") as temporary:
            pq.write_table(table(prompts or task.train[:1], config), temporary)
    told = {"schema": 1, "engine": "verl", "version": host.VERSION}
    with folder.replacing("engine.json") as temporary:
        temporary.write_text(json.dumps(told), encoding="utf-8")
    return folder


def table(prompts: Sequence[Prompt], config: RunConfig) -> pa.Table:
    """verl's columns: data_source, prompt, reward_model.ground_truth, extra_info.

    The last has what a reward of the user's may ask for; columns as JSON, since parquet wants one
    type for all rows.
    """
    rows: list[dict[str, Any]] = [
        {
            "data_source": config.task.name,
            "prompt": [{"role": "user", "content": fill_template(asked(config), prompt.problem)}],
            "reward_model": {"style": "rule", "ground_truth": prompt.answer},
            "extra_info": {"id": prompt.id, **_further(prompt, config)},
        }
        for prompt in prompts
    ]
    return pa.Table.from_pylist(rows)


def _further(prompt: Prompt, config: RunConfig) -> dict[str, str]:
    if not is_own(config.verify.name):
        return {}
    try:
        columns = json.dumps(dict(prompt.columns), ensure_ascii=False)
    except TypeError as fault:
        raise PoiseError(
            f"problem '{prompt.id}': --engine verl hands the columns that a reward asks for over "
            f"as JSON: {fault}"
        ) from fault
    return {"problem": prompt.problem, "columns": columns}


def environment(config: RunConfig, out: Path) -> dict[str, str]:
    """What verl's loggers read: they write into the folder, and go on with one run of W&B's."""
    found = {
        "VERL_FILE_LOGGER_PATH": str(out / "log.jsonl"),
        "TENSORBOARD_DIR": str(out / "tensorboard"),
    }
    if "wandb" in config.track.to:
        from counterpoise.run.trackers.wandb import run_id

        identity = run_id(out / "wandb")
        found |= {"WANDB_DIR": str(out), "WANDB_RUN_ID": identity, "WANDB_RESUME": "allow"}
    return found


def launch(config: RunConfig, out: Path, *, resume: bool = False) -> None:
    """Run the command where verl is installed; its output is the terminal's."""
    host.require()
    told = checked(config)
    check_installed(config.track.to)
    if not resume:
        prepare(config, out)
    for line in told:
        echo_message(f"poise: {line}")
    words = [sys.executable, *command(config, out, resume=resume)[1:]]
    done = subprocess.run(words, env={**os.environ, **environment(config, out)}, check=False)
    if done.returncode:
        raise PoiseError(
            f"verl stopped with exit code {done.returncode}: its last lines above say why; "
            f"then poise train --resume --out {out}"
        )
