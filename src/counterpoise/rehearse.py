"""Functions of the user's, before a run: loaded by every `poise train`, and called by --dry-run.

A reward is asked about the task's first problems, answered in a box and not at all, unless they
would have to be fetched; a composer gets rows made up to the sizes of the run, with rollouts
where the engine has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from counterpoise.batch import COMPOSERS
from counterpoise.batch.compose import compose
from counterpoise.config import RunConfig, TaskConfig
from counterpoise.own import is_own, shown
from counterpoise.task.load import load_task
from counterpoise.types import Prompt, Rollout, Row
from counterpoise.verify import VERIFIERS

PROBLEMS = 2


def check_loads(config: RunConfig) -> None:
    """One line for a function that is not there, or cannot be called as it will be."""
    for table, name in ((VERIFIERS, config.verify.name), (COMPOSERS, config.batch.composer)):
        if is_own(name):
            table.load(name)


def rehearse(config: RunConfig, engine: str = "native") -> list[str]:
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
            if len(set(rewards)) == 1:
                told += ": no step is taken where rewards are all equal"
        tried.append(f"#   own reward     {shown(name)}: {told}")
    if is_own(name := config.batch.composer):
        rows = made_up(config, rollouts=engine == "native")
        plan = compose(name, rows, config.batch.steps, config.loop.seed)
        sizes = ", ".join(str(len(step)) for step in plan.steps)
        tried.append(f"#   own composer   {shown(name)}: steps of {sizes} rows")
    return tried


def first_problems(task: TaskConfig) -> Sequence[Prompt]:
    """None where they are not on this machine."""
    if task.name == "hub" or (task.name == "jsonl" and not Path(task.path).is_file()):
        return ()
    few = replace(task, size=PROBLEMS, heldout=0, heldout_path="")
    return load_task(few).train[:PROBLEMS]


def made_up(config: RunConfig, *, rollouts: bool) -> list[Row]:
    """An iteration's rows, right and wrong by turns; the tokens of all are parts of one array."""
    P, G, longest = config.sample.prompts, config.sample.group_size, config.sample.max_new_tokens
    lengths_PG = np.random.default_rng(0).integers(1, longest + 1, size=(P, G))
    tokens_T = np.arange(longest, dtype=np.int32) % 100
    logprobs_T = np.full(longest, -1.0, dtype=np.float32)
    rows = []
    for p, g in np.ndindex(P, G):
        T, right = int(lengths_PG[p, g]), g % 2 == 0
        rollout = Rollout(
            prompt_id=str(p),
            prompt="1 + 1 = ?",
            answer="2",
            response="\\boxed{2}" if right else "\\boxed{3}",
            reward=float(right),
            prompt_tokens=tokens_T[:1],
            response_tokens=tokens_T[:T],
            sampled_logprobs=logprobs_T[:T],
        )
        row = Row(f"1:{p}", advantage=1.0 if right else -1.0, num_tokens=T, index=g, born=1)
        rows.append(replace(row, rollout=rollout) if rollouts else row)
    return rows
