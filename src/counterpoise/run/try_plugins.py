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
from counterpoise.plugins import display_name, is_plugin
from counterpoise.task.load import load_problems
from counterpoise.types import Prompt, Rollout, Row
from counterpoise.variants import COMPOSERS, VERIFIERS
from counterpoise.verify.extra_rewards import own_rewards
from counterpoise.verify.plugin_reward import MEANT, wanted
from counterpoise.verify.scores import verified

NUM_TRIAL_PROBLEMS = 2


def check_plugins_load(config: RunConfig) -> None:
    """One line for a function that is not there, or cannot be called as it will be."""
    for name in own_rewards(config.verify):
        VERIFIERS.load(name)
    if is_plugin(config.batch.composer):
        COMPOSERS.load(config.batch.composer)


def try_plugins(config: RunConfig, engine: str = "native") -> list[str]:
    """Call them once; what was tried, for the end of a dry run."""
    names = own_rewards(config.verify)
    prompts = load_first_problems(config) if names else ()
    lines = []
    for name in names:
        outcome = _try_reward(name, prompts, is_extra=name != config.verify.name)
        lines.append(f"#   own reward     {display_name(name)}: {outcome}")
    if is_plugin(name := config.batch.composer):
        rows = make_trial_rows(config, rollouts=engine == "native")
        plan = compose(name, rows, config.batch.steps, config.loop.seed)
        sizes = ", ".join(str(len(step)) for step in plan.steps)
        lines.append(f"#   own composer   {display_name(name)}: steps of {sizes} rows")
    return lines


def _try_reward(name: str, prompts: Sequence[Prompt], *, is_extra: bool) -> str:
    """What a reward gives for right answers and for none; one beside others may be always equal."""
    if not prompts:
        return "not tried: the problems are not here"
    texts = [*(f"\\boxed{{{prompt.answer}}}" for prompt in prompts), *("" for _ in prompts)]
    rewards = verified(VERIFIERS.load(name)(), texts, [*prompts, *prompts]).rewards
    boxed, empty = (f"{rewards[k * len(prompts)]:g}" for k in range(2))
    outcome = f"{boxed} for the answer in a box, {empty} for nothing"
    if len(set(rewards)) == 1 and not is_extra:
        outcome += ": no step is taken where rewards are all equal"
    if (positional := wanted(name).places) and positional[1] not in MEANT:
        outcome += f" ({positional[1]}: the answers)"
    return outcome


def load_first_problems(config: RunConfig) -> Sequence[Prompt]:
    """None where they are not on this machine."""
    task = config.task
    if task.name == "hub" or (task.name == "jsonl" and not Path(task.path).is_file()):
        return ()
    few = replace(task, size=NUM_TRIAL_PROBLEMS, heldout=0, heldout_path="")
    return load_problems(replace(config, task=few)).train[:NUM_TRIAL_PROBLEMS]


def make_trial_rows(config: RunConfig, *, rollouts: bool) -> list[Row]:
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
