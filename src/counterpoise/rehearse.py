"""Functions of the user's, before a run: loaded by every `poise train`, and called by --dry-run.

A reward is asked about the task's first problems, answered in a box and not at all, unless they
would have to be fetched; a composer gets rows made up to the sizes of the run, without tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from counterpoise.batch import COMPOSERS
from counterpoise.batch.compose import compose
from counterpoise.config import RunConfig, TaskConfig
from counterpoise.own import is_own, read
from counterpoise.task.load import load_task
from counterpoise.types import Prompt, Row
from counterpoise.verify import VERIFIERS

PROBLEMS = 2


def check_loads(config: RunConfig) -> None:
    """One line for a function that is not there, or cannot be called as it will be."""
    for table, name in ((VERIFIERS, config.verify.name), (COMPOSERS, config.batch.composer)):
        if is_own(name):
            table.load(name)


def rehearse(config: RunConfig) -> list[str]:
    """Call them once; what was tried, for the end of a dry run."""
    tried = []
    if is_own(name := config.verify.name):
        answers = [prompt.answer for prompt in first_problems(config.task)]
        texts = [*(f"\\boxed{{{answer}}}" for answer in answers), *("" for _ in answers)]
        told = "not tried: the problems are not here"
        if answers:
            rewards = VERIFIERS.load(name)(0, 0).score(texts, answers * 2).rewards
            boxed, empty = (f"{rewards[k * len(answers)]:g}" for k in range(2))
            told = f"{boxed} for the answer in a box, {empty} for nothing"
        tried.append(f"#   own reward     {read(name)}: {told}")
    if is_own(name := config.batch.composer):
        plan = compose(name, made_up(config), config.batch.steps, config.loop.seed)
        sizes = ", ".join(str(len(step)) for step in plan.steps)
        tried.append(f"#   own composer   {read(name)}: steps of {sizes} rows")
    return tried


def first_problems(task: TaskConfig) -> Sequence[Prompt]:
    """None where they are not on this machine."""
    if task.name == "hub" or (task.name == "jsonl" and not Path(task.path).is_file()):
        return ()
    few = replace(task, size=PROBLEMS, heldout=0, heldout_path="")
    return load_task(few).train[:PROBLEMS]


def made_up(config: RunConfig) -> list[Row]:
    """An iteration's rows, right and wrong by turns."""
    P, G = config.sample.prompts, config.sample.group_size
    lengths = np.random.default_rng(0).integers(1, config.sample.max_new_tokens + 1, size=(P, G))
    return [
        Row(f"1:{p}", advantage=(-1.0) ** g, num_tokens=int(lengths[p, g]), index=g, born=1)
        for p in range(P)
        for g in range(G)
    ]
