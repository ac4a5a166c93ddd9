"""A run folder in a tenth of a second: made-up word problems, answers and numbers of an update.

Every fault is a keyword; without any, the run is healthy. Answers are drawn at random, so audits
meet the noise of short runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from counterpoise.batch.compose import compose
from counterpoise.batch.describe import describe_plan
from counterpoise.config.load import config_from_tables
from counterpoise.credit.assign import assign
from counterpoise.store.folder import RunFolder
from counterpoise.types import Group, Rollout

P, G, STEPS, ITERATIONS = 8, 8, 4, 12
NAMES = ("Ana", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gia", "Hugo")
THINGS = ("pens", "shells", "apples", "coins", "books", "stones", "cards", "stamps")


@dataclass(frozen=True)
class Faults:
    """What is wrong with a run; the defaults are healthy."""

    seed: int = 0
    composer: str = "grouped"
    steps: int = STEPS
    success: Callable[[float], float] = lambda progress: 0.4 + 0.25 * progress
    heldout: tuple[float, float] = (0.42, 0.60)
    entropy: Callable[[float], float] = lambda progress: 0.30 - 0.08 * progress
    mismatch: Callable[[float], float] = lambda progress: 1e-7
    clipped: float = 0.004
    distinct_prompts: int = 10_000
    # (whether the answer is right, answer, rng) -> reward
    reward: Callable[[bool, str, np.random.Generator], float] = lambda right, answer, rng: float(
        right
    )
    reference: Callable[[int], str] = str


def write_made_up_run(path: Path, faults: Faults = Faults()) -> Path:  # noqa: B008
    config = config_from_tables(
        {
            "loop": {"iterations": ITERATIONS},
            "sample": {"prompts": P, "group_size": G},
            "batch": {"composer": faults.composer, "steps": faults.steps},
            "balance": {"tau": 0.0},
        }
    )
    folder = RunFolder.create(path, config)
    rng = np.random.default_rng(faults.seed)
    folder.append("evaluations", evaluation(0, faults.heldout[0]))
    for iteration in range(1, ITERATIONS + 1):
        progress = (iteration - 1) / (ITERATIONS - 1)
        groups = [make_group(iteration, place, progress, faults, rng) for place in range(P)]
        rows = [row for part in assign(groups, "grpo") for row in part]
        plan = compose(faults.composer, rows, faults.steps, iteration)
        folder.append("plans", plan_line(iteration, rows, plan))
        folder.write_rollouts(iteration, groups)
        folder.append("metrics", metrics_line(iteration, progress, groups, rows, faults))
    folder.append("evaluations", evaluation(ITERATIONS, faults.heldout[1]))
    (path / "finished.json").write_text('{"schema": 1, "iterations": 12}')
    return path


def make_group(
    iteration: int, place: int, progress: float, faults: Faults, rng: np.random.Generator
) -> Group:
    number = (iteration - 1) * P + place
    problem = np.random.default_rng(number % faults.distinct_prompts)
    have, more, times = (int(n) for n in problem.integers(2, 60, 3))
    name, thing = NAMES[problem.integers(8)], THINGS[problem.integers(8)]
    prompt = (
        f"{name} has {have} {thing} in a box and finds {more} {thing} more on the way home from "
        f"school. Then {name} gives each of {times} friends one of them. How many are left?"
    )
    answer = have + more - times
    # Prompts differ in difficulty: that is what groups without spread come from.
    chance = float(np.clip(faults.success(progress) + problem.normal(0, 0.15), 0.0, 1.0))
    rollouts = []
    for _ in range(G):
        is_right = rng.random() < chance
        stated = answer if is_right else answer + int(rng.integers(1, 9))
        response = (
            f"There are {have} + {more} = {have + more} {thing}. Friends get {times}. "
            f"So \\boxed{{{stated}}}." + " Done." * int(rng.integers(0, 6))
        )
        tokens = np.arange(len(response.split()), dtype=np.int32)
        rollouts.append(
            Rollout(
                prompt_id=f"made/{number}",
                prompt=prompt,
                answer=faults.reference(answer),
                response=response,
                reward=faults.reward(is_right, response, rng),
                prompt_tokens=np.arange(5, dtype=np.int32),
                response_tokens=tokens,
                sampled_logprobs=np.full(len(tokens), -0.3, np.float32),
            )
        )
    return Group(f"{iteration}:made/{number}", iteration, tuple(rollouts))


def plan_line(iteration: int, rows: list, plan) -> dict:
    names = list(dict.fromkeys(row.group for row in rows))
    return {
        "iteration": iteration,
        "rule": plan.composer,
        "steps": [list(step) for step in plan.steps],
        "group": [names.index(row.group) for row in rows],
        "groups": names,
        "index": [row.index for row in rows],
        "advantage": [row.advantage for row in rows],
        "tokens": [row.num_tokens for row in rows],
        "born": [iteration] * len(rows),
        "describe": describe_plan(rows, plan),
    }


def metrics_line(iteration: int, progress: float, groups: list, rows: list, faults: Faults) -> dict:
    rewards = [rollout.reward for group in groups for rollout in group.rollouts]
    lengths = [len(rollout.response_tokens) for group in groups for rollout in group.rollouts]
    success = float(np.mean([reward > 0 for reward in rewards]))
    return {
        "iteration": iteration,
        "success": success,
        "reward": float(np.mean(rewards)),
        "mixed_groups": float(
            np.mean([len({rollout.reward for rollout in group.rollouts}) > 1 for group in groups])
        ),
        "rollouts": len(rewards),
        "rollout_tokens": sum(lengths),
        "response_length": float(np.mean(lengths)),
        "truncated_share": 0.0,
        "verifier_timeouts": 0,
        "verifier_crashes": 0,
        "batch_rows": len(rows),
        "rows_without_signal": sum(row.advantage == 0 for row in rows),
        "steps": faults.steps,
        "skipped_steps": 0,
        "clipped_share": faults.clipped,
        "grad_norm": 0.4,
        "entropy": faults.entropy(progress),
        "old_logprob": -0.3,
        "lr": 1e-4,
        "sampler_mismatch": faults.mismatch(progress),
        "sampler_mismatch_max": 20 * faults.mismatch(progress),
    }


def evaluation(iteration: int, mean: float) -> dict:
    return {
        "iteration": iteration, "temperature": 1.0, "top_p": 1.0, "mean": mean,
        "low": mean - 0.05, "high": mean + 0.05, "pass_any": 0.8, "mixed": 0.7, "prompts": 128,
        "samples": 4, "reward": mean,
    }  # fmt: skip
