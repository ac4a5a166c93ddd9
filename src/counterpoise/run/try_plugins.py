"""Try the user's plugins before a run: `poise train` loads them, --dry-run also calls them.

A reward function is called on the task's first problems, with a boxed correct answer and with an
empty response, unless the problems would have to be downloaded. This finds missing columns. A
composer gets invented rows in the sizes of the run, with rollouts if the engine provides them.
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
from counterpoise.verify.extra_rewards import plugin_rewards
from counterpoise.verify.plugin_reward import ROLES, reward_arguments
from counterpoise.verify.scores import score_responses

NUM_TRIAL_PROBLEMS = 2


def check_plugins_load(config: RunConfig) -> None:
    """Raise an error if a plugin cannot be loaded or does not accept its arguments."""
    for name in plugin_rewards(config.verify):
        VERIFIERS.load(name)
    if is_plugin(config.batch.composer):
        COMPOSERS.load(config.batch.composer)


def try_plugins(config: RunConfig, engine: str = "native") -> list[str]:
    """Call every plugin once and return a line about each, for the end of a dry run."""
    names = plugin_rewards(config.verify)
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
    """The rewards of correct and of empty responses; an extra reward may always be equal."""
    if not prompts:
        return "not tried: the problems are not on this machine"
    texts = [*(f"\\boxed{{{prompt.answer}}}" for prompt in prompts), *("" for _ in prompts)]
    rewards = score_responses(VERIFIERS.load(name)(), texts, [*prompts, *prompts]).rewards
    boxed, empty = (f"{rewards[k * len(prompts)]:g}" for k in range(2))
    outcome = f"{boxed} for the answer in a box, {empty} for nothing"
    if len(set(rewards)) == 1 and not is_extra:
        outcome += ": groups with equal rewards take no step"
    if (positional := reward_arguments(name).positional) and positional[1] not in ROLES:
        outcome += f" ({positional[1]}: the answers)"
    return outcome


def load_first_problems(config: RunConfig) -> Sequence[Prompt]:
    """A few training problems; none if they are not on this machine."""
    task = config.task
    if task.name == "hub" or (task.name == "jsonl" and not Path(task.path).is_file()):
        return ()
    few = replace(task, size=NUM_TRIAL_PROBLEMS, heldout=0, heldout_path="")
    return load_problems(replace(config, task=few)).train[:NUM_TRIAL_PROBLEMS]


def make_trial_rows(config: RunConfig, *, rollouts: bool) -> list[Row]:
    """The rows of an invented iteration, alternately correct and wrong.

    Their tokens are slices of one array, so a large configuration costs little memory.
    """
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
