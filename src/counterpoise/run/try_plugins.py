"""Functions of the user's, before a run: loaded by every `poise train`, and called by --dry-run.

A reward is asked about the task's first problems, answered in a box and not at all, unless they
would have to be fetched: columns that it asks for are there, or missed in one line. A composer gets
rows made up to the sizes of the run, with rollouts where the engine has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from counterpoise.batch.compose import compose
from counterpoise.config import RunConfig
from counterpoise.plugins import is_own, shown
from counterpoise.task.load import load_problems
from counterpoise.types import Prompt, Rollout, Row
from counterpoise.variants import COMPOSERS, VERIFIERS
from counterpoise.verify.extra_rewards import plugin_rewards
from counterpoise.verify.plugin_reward import ROLES, reward_arguments
from counterpoise.verify.scores import score_responses

PROBLEMS = 2


def check_loads(config: RunConfig) -> None:
    """One line for a function that is not there, or cannot be called as it will be."""
    for name in plugin_rewards(config.verify):
        VERIFIERS.load(name)
    if is_own(config.batch.composer):
        COMPOSERS.load(config.batch.composer)


def rehearse(config: RunConfig, engine: str = "native") -> list[str]:
    """Call them once; what was tried, for the end of a dry run."""
    names = plugin_rewards(config.verify)
    prompts = first_problems(config) if names else ()
    tried = []
    for name in names:
        told = _asked(name, prompts, beside=name != config.verify.name)
        tried.append(f"#   own reward     {shown(name)}: {told}")
    if is_own(name := config.batch.composer):
        rows = made_up(config, rollouts=engine == "native")
        plan = compose(name, rows, config.batch.steps, config.loop.seed)
        sizes = ", ".join(str(len(step)) for step in plan.steps)
        tried.append(f"#   own composer   {shown(name)}: steps of {sizes} rows")
    return tried


def _asked(name: str, prompts: Sequence[Prompt], *, beside: bool) -> str:
    """What a reward gives for right answers and for none; one beside others may be always equal."""
    if not prompts:
        return "not tried: the problems are not here"
    texts = [*(f"\\boxed{{{prompt.answer}}}" for prompt in prompts), *("" for _ in prompts)]
    rewards = score_responses(VERIFIERS.load(name)(), texts, [*prompts, *prompts]).rewards
    boxed, empty = (f"{rewards[k * len(prompts)]:g}" for k in range(2))
    told = f"{boxed} for the answer in a box, {empty} for nothing"
    if len(set(rewards)) == 1 and not beside:
        told += ": no step is taken where rewards are all equal"
    if (places := reward_arguments(name).positional) and places[1] not in ROLES:
        told += f" ({places[1]}: the answers)"
    return told


def first_problems(config: RunConfig) -> Sequence[Prompt]:
    """None where they are not on this machine."""
    task = config.task
    if task.name == "hub" or (task.name == "jsonl" and not Path(task.path).is_file()):
        return ()
    few = replace(task, size=PROBLEMS, heldout=0, heldout_path="")
    return load_problems(replace(config, task=few)).train[:PROBLEMS]


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
