"""Try the user's plugins before a run: `poise train` loads them, --dry-run also calls them.

Token weights and rules of a step are called on a few invented rollouts even without --dry-run:
otherwise a mistake in them would show only after the model is loaded and has sampled.

A reward function is called on the task's first problems, with a boxed correct answer and with an
empty response, unless the problems would have to be downloaded. This finds missing columns. A
composer gets invented rows in the sizes of the run, with rollouts if the engine provides them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np

from counterpoise.batch.compose import compose
from counterpoise.config import RunConfig
from counterpoise.credit.assign import check_settings, parse_settings
from counterpoise.credit.plugin_weights import TokenFunction
from counterpoise.errors import PoiseError
from counterpoise.plugins import display_name, is_plugin
from counterpoise.task.load import FILE_TASKS, load_run_task
from counterpoise.types import Floats, Prompt, Rollout, Row, number_groups
from counterpoise.update.rules.bind import check_rule
from counterpoise.variants import COMPOSERS, ENVIRONMENTS, STEP_RULES, TOKEN_WEIGHTS, VERIFIERS
from counterpoise.verify.code.sandbox import describe_protection
from counterpoise.verify.extra_rewards import plugin_rewards
from counterpoise.verify.make_verifier import make_plugin_verifier
from counterpoise.verify.plugin_reward import training_context
from counterpoise.verify.reward_signatures import (
    LISTS,
    SOURCE_OF_PARAMETER,
    STYLE_PHRASES,
    describe_reward,
    reward_arguments,
)
from counterpoise.verify.scores import score_responses

NUM_TRIAL_PROBLEMS = 2
# Larger than the vocabularies of published models, so that a plugin that indexes `unembedding` with
# fixed token ids does not fail.
TRIAL_VOCABULARY, TRIAL_HIDDEN_SIZE = 300_000, 4


def check_plugins(config: RunConfig) -> list[str]:
    """Raise an error if a plugin cannot be loaded or does not accept its arguments.

    Token weights and step rules are also called on invented rollouts; a dry run calls them again to
    show what they returned.

    Returns a line about the sandbox if the verifier is `code`, and a line about each plugin reward:
    by which convention it is called.
    """
    reward_names = plugin_rewards(config.verify)
    for reward_name in reward_names:
        VERIFIERS.load(reward_name)
    if is_plugin(config.batch.composer):
        COMPOSERS.load(config.batch.composer)
    if is_plugin(config.task.environment):
        environment = ENVIRONMENTS.load(config.task.environment)(config.task.turns)
        if config.credit.weights == "serl" and not environment.marks_actions:
            raise PoiseError(
                "credit.weights=serl needs marked actions: give "
                f"{display_name(config.task.environment)} a method action(self, response) that "
                "returns (start, end), or set task.environment=tries"
            )
    if is_plugin(config.credit.weights):
        check_settings(config)
    if is_plugin(config.credit.rule):
        check_rule(config)
    _try_token_functions(config)
    sandbox_lines = [describe_protection()] if config.verify.name == "code" else []
    return [*sandbox_lines, *(describe_reward(reward_name) for reward_name in reward_names)]


def try_plugins(config: RunConfig, engine: str = "native") -> list[str]:
    """Call every plugin once and return a line about each, for the end of a dry run."""
    reward_names, environment = plugin_rewards(config.verify), config.task.environment
    needs_problems = bool(reward_names) or is_plugin(environment)
    prompts = load_first_problems(config) if needs_problems else ()
    report_lines = []
    for reward_name in reward_names:
        is_extra = reward_name != config.verify.name
        outcome = _try_reward(reward_name, prompts, config, is_extra=is_extra)
        report_lines.append(f"#   own reward     {display_name(reward_name)}: {outcome}")
    if is_plugin(composer := config.batch.composer):
        rows = make_trial_rows(config, rollouts=engine == "native")
        plan = compose(composer, rows, config.batch.steps, config.loop.seed)
        step_sizes = ", ".join(str(len(step)) for step in plan.steps)
        report_lines.append(
            f"#   own composer   {display_name(composer)}: steps of {step_sizes} rows"
        )
    if is_plugin(environment):
        outcome = _try_environment(environment, prompts, config)
        report_lines.append(f"#   own environment {display_name(environment)}: {outcome}")
    return [*report_lines, *_try_token_functions(config)]


def _try_environment(name: str, prompts: Sequence[Prompt], config: RunConfig) -> str:
    """Describe what the environment answers to a right response and to an empty one."""
    if not prompts:
        return "not tried: the problems are not on this machine"
    descriptions = []
    for caption, text in (
        ("the answer", f"\\boxed{{{prompts[0].answer}}}"),
        ("an empty response", ""),
    ):
        session = ENVIRONMENTS.load(name)(config.task.turns).open_session()
        session.reset(prompts[0], seed=0)
        outcome = session.step(text, prompts[0])
        reward = "by the verifier" if outcome.reward is None else f"{outcome.reward:g}"
        following = (
            "the episode ends"
            if outcome.is_done
            else f"the reply is '{shorten(outcome.reply, 40)}'"
        )
        descriptions.append(f"after {caption}: reward {reward}, {following}")
    return "; ".join(descriptions)


def _try_token_functions(config: RunConfig) -> list[str]:
    """Call the user's token weights and rule on invented rollouts; a line about each."""
    credit = config.credit
    functions = [
        ("token weights", credit.weights, TOKEN_WEIGHTS, credit.settings),
        ("step rule", credit.rule, STEP_RULES, credit.rule_settings),
    ]
    report_lines: list[str] = []
    for kind, name, table, settings in functions:
        if not is_plugin(name):
            continue
        function = table.load(name)
        assert isinstance(function, TokenFunction)
        small_run = replace(config, sample=replace(config.sample, prompts=2, max_new_tokens=12))
        rows = make_trial_rows(small_run, rollouts=True)
        try:
            values_N = np.concatenate(
                function.evaluate(
                    make_trial_inputs(rows), rows, parse_settings(name, function, settings)
                )
            )
        except PoiseError as fault:
            raise PoiseError(f"{fault} (called on invented rollouts before the run)") from fault
        report_lines.append(
            f"#   own {kind:14} {display_name(name)}: {values_N.min():g} to "
            f"{values_N.max():g} on invented rollouts"
        )
    return report_lines


def make_trial_inputs(rows: Sequence[Row]) -> dict[str, Any]:
    """Invented values of everything that a user's token weights or rule may name."""
    rng = np.random.default_rng(0)
    lengths = [row.num_tokens for row in rows]

    def per_token(low: float, high: float, *vector_size: int) -> list[Floats]:
        return [rng.uniform(low, high, (T, *vector_size)).astype(np.float32) for T in lengths]

    rollouts = [row.content for row in rows]
    return {
        "advantages": np.array([row.advantage for row in rows]),
        "rewards": np.array([rollout.reward for rollout in rollouts]),
        "groups": np.array(number_groups(rows)[0]),
        "tokens": [rollout.response_tokens for rollout in rollouts],
        "pieces": [[" a"] * T for T in lengths],
        "positions": [np.arange(T) for T in lengths],
        "logprobs": per_token(-3, 0),
        "old_logprobs": per_token(-3, 0),
        "entropies": per_token(0, 3),
        "hidden": per_token(-1, 1, TRIAL_HIDDEN_SIZE),
        "unembedding": np.zeros((TRIAL_VOCABULARY, TRIAL_HIDDEN_SIZE), dtype=np.float32),
        "texts": [rollout.response for rollout in rollouts],
        "prompts": [rollout.prompt for rollout in rollouts],
        "answers": [rollout.answer for rollout in rollouts],
        "temperature": 1.0,
        "iteration": 1,
        "token_advantages": [row.advantages_T for row in rows],
        "clipped": [np.zeros(T, dtype=bool) for T in lengths],
        "step": 0,
        "rng": rng,
    }


def _try_reward(
    reward_name: str, prompts: Sequence[Prompt], config: RunConfig, *, is_extra: bool
) -> str:
    """Describe the rewards of correct and of empty responses, with a warning if all are equal.

    An extra reward may give all of them the same value without a warning.
    """
    if not prompts:
        return "not tried: the problems are not on this machine"
    responses = [*(f"\\boxed{{{prompt.answer}}}" for prompt in prompts), *("" for _ in prompts)]
    # There is no tokenizer here, and most functions only count tokens: one for each character.
    context = training_context(config, 0, [list(map(ord, response)) for response in responses])
    verifier = make_plugin_verifier(reward_name, config.verify)  # with its limit, as in the run
    try:
        rewards = score_responses(verifier, responses, [*prompts, *prompts], context).rewards
    finally:
        verifier.close()
    reward_if_correct, reward_if_empty = rewards[0], rewards[len(prompts)]
    outcome = (
        f"{_format(reward_if_correct)} for the answer in a box, {_format(reward_if_empty)} for "
        "an empty response"
    )
    if len(np.unique(rewards)) == 1 and not is_extra:  # unlike a set, it takes all nan as one
        outcome += "; WARNING: these are equal, and a group with equal rewards trains nothing"
    # The second positional argument receives the answers, even if its name does not say so.
    arguments = reward_arguments(reward_name)
    if arguments.style != LISTS:
        outcome += f" ({STYLE_PHRASES[arguments.style]})"
    if positional_arguments := arguments.positional:
        _, answers_argument = positional_arguments
        if answers_argument not in SOURCE_OF_PARAMETER[LISTS]:
            outcome += f" (its argument `{answers_argument}` receives the answers)"
    return outcome


def _format(reward: float) -> str:
    return "no reward" if math.isnan(reward) else f"{reward:g}"


def load_first_problems(config: RunConfig) -> Sequence[Prompt]:
    """A few training problems as examples; none if they are not on this machine.

    Held-out problems are not read; `describe_task` in run/estimate.py reads and counts all.
    """
    task = config.task
    if task.name == "hub" or (task.name in FILE_TASKS and not Path(task.path).exists()):
        return ()
    small_task = replace(task, size=NUM_TRIAL_PROBLEMS, heldout=0, heldout_path="")
    return load_run_task(replace(config, task=small_task)).train[:NUM_TRIAL_PROBLEMS]


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
        T, is_correct = int(lengths_PG[p, g]), g % 2 == 0
        rollout = Rollout(
            prompt_id=str(p),
            prompt="1 + 1 = ?",
            answer="2",
            response="\\boxed{2}" if is_correct else "\\boxed{3}",
            reward=float(is_correct),
            prompt_tokens=tokens_T[:1],
            response_tokens=tokens_T[:T],
            sampled_logprobs=logprobs_T[:T],
        )
        row = Row(f"1:{p}", advantage=1.0 if is_correct else -1.0, num_tokens=T, index=g, born=1)
        rows.append(replace(row, rollout=rollout) if rollouts else row)
    return rows
