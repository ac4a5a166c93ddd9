"""Which columns of a table hold what: recognised by their names, or named by the user.

    prompt         prompt, input, question, query, problem, messages, ...; a text, or chat messages
    response       completion, response, output, generation, ...; without one, what the assistant
                   says in the messages of the prompt
    reward         reward, score, correct, accuracy; a number, or true and false
    step           step, global_step, training_step, iteration
    group          group, group_id: rollouts of one prompt in one step
    prompt_id      prompt_id, problem_id, question_id: the same prompt in every step
    answer         answer, ground_truth, reference, label
    advantage      advantage, advantages: one number for a response
    prompt_tokens, response_tokens, num_tokens, logprobs, finished         see COLUMN_NAMES

Only the first three are needed. Names are compared without regard to case; of several, the first in
COLUMN_NAMES counts that has a usable value in the first row. `--columns` names other columns by
what they hold, `--reward` those whose weighted sum is the reward; there a dot reaches into an
object, as in `extra.score`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from counterpoise.errors import PoiseError, unknown_name
from counterpoise.hosts.importing.table_inference import parse_reward_columns
from counterpoise.hosts.importing.token_spans import is_token_list
from counterpoise.task.read_files import look_up

# In order of preference.
COLUMN_NAMES = {
    "prompt": (
        "prompt", "prompts", "input", "inputs", "question", "query", "problem", "instruction",
        "messages", "conversation", "conversations",
    ),
    "response": (
        "completion", "completions", "response", "responses", "output", "outputs", "generation",
        "generations", "generated_text",
    ),
    "reward": ("reward", "rewards", "score", "scores", "correct", "is_correct", "accuracy"),
    "step": ("step", "global_step", "train/global_step", "training_step", "iteration"),
    "group": ("group", "group_id"),
    "prompt_id": ("prompt_id", "problem_id", "question_id"),
    "answer": ("answer", "ground_truth", "reference", "reference_answer", "gts", "label"),
    "advantage": ("advantage", "advantages"),
    "prompt_tokens": ("prompt_tokens", "prompt_ids", "prompt_token_ids"),
    "response_tokens": (
        "response_tokens", "response_ids", "response_token_ids", "completion_ids",
        "completion_token_ids", "completion_tokens", "output_ids", "output_token_ids",
    ),
    "num_tokens": (
        "num_tokens", "response_length", "response_len", "completion_length", "completion_tokens",
        "response_tokens", "output_tokens",
    ),
    "logprobs": (
        "sampled_logprobs", "logprobs", "response_logprobs", "completion_logprobs",
        "output_logprobs", "rollout_log_probs",
    ),
    "finished": ("finished", "finish_reason", "stop_reason", "truncated"),
}  # fmt: skip
NEEDED_COLUMNS = ("prompt", "reward")
# One value for each response, where a row has a list of responses.
PER_RESPONSE_COLUMNS = (
    "advantage", "response_tokens", "num_tokens", "logprobs", "finished",
)  # fmt: skip


def is_number(value: object) -> bool:
    """Whether it is a number, or a text that reads like one, as all values of a CSV file are.

    Example:
        >>> is_number(0.5), is_number("0.5"), is_number(True), is_number("five")
        (True, True, False, False)
    """
    if isinstance(value, str):
        try:
            float(value)
        except ValueError:
            return False
        return True
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: object) -> bool:
    return is_number(value) and float(str(value)).is_integer()


def _is_reward(value: object) -> bool:
    return isinstance(value, bool) or is_number(value) or str(value).lower() in ("true", "false")


def _is_number_list(value: object) -> bool:
    return isinstance(value, list) and all(map(is_number, value))


def _of_one_or_several(is_usable: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Whether a value, or all known ones of a list with one for each response, can be used."""

    def check(value: object) -> bool:
        if is_usable(value):
            return True
        known = [item for item in value if item is not None] if isinstance(value, list) else []
        return bool(known) and all(map(is_usable, known))

    return check


# What a recognised column must hold. Several trainers give the same name to counts and to ids.
USABLE_VALUES: Mapping[str, Callable[[Any], bool]] = {
    "prompt": lambda value: isinstance(value, str | list),
    "response": lambda value: isinstance(value, str | list),
    "reward": _of_one_or_several(_is_reward),
    "step": _is_count,
    "group": lambda value: isinstance(value, str | int),
    "prompt_id": lambda value: isinstance(value, str | int),
    "answer": lambda value: True,
    "advantage": _of_one_or_several(is_number),
    "prompt_tokens": is_token_list,
    "response_tokens": _of_one_or_several(is_token_list),
    "num_tokens": _of_one_or_several(_is_count),
    "logprobs": _of_one_or_several(_is_number_list),
    "finished": _of_one_or_several(lambda value: isinstance(value, str | bool)),
}


@dataclass(frozen=True, slots=True)
class TableColumns:
    """The columns to read, by what they hold; a rollout's reward is a weighted sum of columns.

    Example:
        TableColumns({"prompt": "question", "response": "output", "step": "step"}, {"score": 1.0})
    """

    names: Mapping[str, str]
    rewards: Mapping[str, float] = field(default_factory=dict)

    def value(self, row: Mapping[str, Any], meaning: str) -> Any:
        """The row's value; None if no column holds this, or the row has none."""
        name = self.names.get(meaning)
        return None if name is None else look_up(row, name)

    def describe(self) -> str:
        """The columns that are read, for the user to check.

        Example:
            prompt = question, response = output, step = step, reward = score
        """
        pairs = [f"{meaning} = {name}" for meaning, name in self.names.items()]
        terms = [
            name if weight == 1 else f"{weight:g} {name}" for name, weight in self.rewards.items()
        ]
        return ", ".join([*pairs, f"reward = {' + '.join(terms)}"])


def recognise_columns(
    row: Mapping[str, Any], where: str, *, named: str = "", reward: str = ""
) -> TableColumns:
    """The columns of the table whose first row this is; `named` is the option --columns."""
    names = parse_columns(named, row)
    if reward and "reward" in names:
        raise PoiseError(
            f"--columns reward={names['reward']} and --reward {reward} both name the reward: "
            "give one of them"
        )
    for meaning, candidates in COLUMN_NAMES.items():
        if meaning not in names and (column := _find_column(row, meaning, candidates)):
            names[meaning] = column
    if reward:
        rewards = parse_reward_columns(reward, _all_names(row))
        names.pop("reward", None)
    elif "reward" in names:
        rewards = {names.pop("reward"): 1.0}
    else:
        rewards = {}
    missing = [name for name in NEEDED_COLUMNS if name not in names]
    if rewards:
        missing.remove("reward")
    if missing:
        raise PoiseError(
            f"{where}: no column of {missing[0]}s is recognised (columns: "
            f"{', '.join(_all_names(row)) or 'none'}): name it, as --columns {missing[0]}=NAME"
        )
    return TableColumns(names, rewards)


def has_rollouts(row: Mapping[str, Any]) -> bool:
    """Whether a row with these values is a rollout by the names of its columns."""
    return all(_find_column(row, name, COLUMN_NAMES[name]) for name in NEEDED_COLUMNS)


def parse_columns(named: str, row: Mapping[str, Any]) -> dict[str, str]:
    """The option --columns: `prompt=question,response=text`."""
    names: dict[str, str] = {}
    for term in filter(None, (term.strip() for term in named.split(","))):
        meaning, has_name, name = term.partition("=")
        if not has_name or not name:
            raise PoiseError(f"--columns {term}: write it as prompt=NAME,response=NAME,...")
        if meaning not in COLUMN_NAMES:
            raise unknown_name("meaning of a column", meaning, COLUMN_NAMES)
        if name not in row and look_up(row, name) is None:
            raise unknown_name("column", name, _all_names(row))
        names[meaning] = name
    return names


def _find_column(row: Mapping[str, Any], meaning: str, candidates: tuple[str, ...]) -> str:
    """The first of the names that the row has with a usable value; "" if there is none."""
    column_of_lowered = {str(name).lower(): str(name) for name in reversed(list(row))}
    for candidate in candidates:
        name = column_of_lowered.get(candidate)
        value = None if name is None else look_up(row, name)
        if name is not None and value is not None and USABLE_VALUES[meaning](value):
            return name
    return ""


def _all_names(row: Mapping[str, Any]) -> list[str]:
    """The names of columns, and of the fields inside objects: `extra.score`."""
    return [
        name
        for column, value in row.items()
        for name in (
            [f"{column}.{inner}" for inner in value] if isinstance(value, Mapping) else [column]
        )
    ]
