"""Plan the rollouts of a file and describe the plan, for `poise plan`.

One JSON object per line. Required: `prompt_id`, `reward`, and `response_tokens` (a list of ids) or
`num_tokens`. Rows with the same prompt_id (or `group`, where a line has one) are a group, wherever
they are in the file. Groups with rows of the same `trajectory` (of an agent, optional) stay
together in composers of whole groups; `sampled_logprobs` with one number per token are kept for
composers that use them. Other fields are ignored, so the file may be a run's
`rollouts/step_00012.jsonl`, several of them concatenated, or another tool's export. A reward of
NaN, which a run stores for a rollout that no reward function scored, gives advantage 0 and takes no
part in the group's mean.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from counterpoise.batch.compose import compose
from counterpoise.batch.describe import describe_plan
from counterpoise.errors import PoiseError
from counterpoise.types import Floats, Ints, Rollout, Row
from counterpoise.variants import ADVANTAGES

LARGEST_REWARD = 1e100  # beyond it, the square and so a group's std may overflow
MOST_TOKENS = 2**31 - 1  # of one response: sums over a file stay far below 2**63
MAX_FIELDS_SHOWN = 8  # in a message
NO_TOKENS: Ints = np.empty(0, dtype=np.int32)
NO_LOGPROBS: Floats = np.empty(0, dtype=np.float32)


def plan_file(
    path: str | Path, rule: str, num_steps: int, seed: int, credit_name: str = "grpo"
) -> dict[str, Any]:
    """Plan the rollouts of a file: {"rule", "steps": row numbers, "describe": see describe.py}.

    Row 0 is the first line that is not blank.
    """
    if seed < 0:
        raise PoiseError(f"the seed {seed} is negative: choose 0 or more")
    rows = rows_from_file(path, credit_name)
    plan = compose(rule, rows, num_steps, seed)
    steps = [list(step) for step in plan.steps]
    return {"rule": rule, "steps": steps, "describe": describe_plan(rows, plan)}


def rows_from_file(path: str | Path, credit_name: str = "grpo") -> list[Row]:
    """The rows of the file in its order, with the advantages of `credit_name`."""
    compute_advantages = ADVANTAGES.load(credit_name)
    rollouts = _read_rollouts(Path(path))
    rows_of_group: dict[str, list[int]] = {}
    for row_number, (rollout, _, _) in enumerate(rollouts):
        rows_of_group.setdefault(rollout.prompt_id, []).append(row_number)
    # Advantages are computed group by group, but rows keep the order of the file's lines.
    row_by_number: dict[int, Row] = {}
    for group, row_numbers in rows_of_group.items():
        rewards_G = np.array([rollouts[row_number][0].reward for row_number in row_numbers])
        is_scored_G = ~np.isnan(rewards_G)
        advantages_G = np.zeros_like(rewards_G)
        if is_scored_G.any():
            advantages_G[is_scored_G] = compute_advantages(rewards_G[is_scored_G])
        for index_in_group, (row_number, advantage) in enumerate(
            zip(row_numbers, advantages_G, strict=True)
        ):
            rollout, num_tokens, trajectory = rollouts[row_number]
            content = rollout if len(rollout.response_tokens) else None
            row_by_number[row_number] = Row(
                group,
                float(advantage),
                num_tokens,
                index=index_in_group,
                rollout=content,
                trajectory=trajectory,
            )
    return [row_by_number[row_number] for row_number in range(len(rollouts))]


def _read_rollouts(path: Path) -> list[tuple[Rollout, int, str]]:
    """The rollout of each line, with its number of tokens and its trajectory."""
    rollouts = []
    if path.is_dir():
        rollout_files = sorted(path.glob("**/step_*.jsonl"))
        hint = f", as {rollout_files[0]}" if rollout_files else ""
        raise PoiseError(f"{path} is a folder: name a file of rollouts{hint}")
    try:
        with path.open("rb") as lines:
            for line_number, json_line in enumerate(lines, 1):
                if json_line.strip():
                    rollouts.append(_parse_line(json_line, f"{path}, line {line_number}"))
    except OSError as fault:
        raise PoiseError(f"{path} cannot be read: {fault.strerror}. Check the path") from fault
    if not rollouts:
        raise PoiseError(f"{path} holds no rollouts: it needs one JSON object per line")
    return rollouts


def _parse_line(json_line: bytes, where: str) -> tuple[Rollout, int, str]:
    try:
        record = json.loads(json_line)
    except (ValueError, RecursionError) as fault:
        raise PoiseError(f"{where}: not JSON ({fault}): write one JSON object per line") from fault
    if not isinstance(record, dict):
        raise PoiseError(f"{where}: not a JSON object: write {{...}} with prompt_id and reward")
    for field in ("prompt_id", "reward"):
        if field not in record:
            raise PoiseError(
                f"{where}: no '{field}' (fields: {_list_fields(sorted(record))}): "
                "every rollout needs one"
            )
    reward = record["reward"]
    # In a run's files `group` names the group, because a prompt that is sampled again makes a new
    # one.
    group = _parse_name(record, "prompt_id", where)
    if record.get("group") is not None:
        group = _parse_name(record, "group", where)
    if not isinstance(reward, int | float) or isinstance(reward, bool):
        raise PoiseError(
            f"{where}: reward {reward!r} is not a number: write one such as 0.0 or 1.0"
        )
    if abs(reward) > LARGEST_REWARD:  # False for NaN, which is no reward
        raise PoiseError(f"{where}: reward {reward!r} is not finite or too large: fix the line")
    tokens, num_tokens = _parse_tokens(record, where)
    rollout = Rollout(
        prompt_id=group,
        prompt="",
        answer="",
        response="",
        reward=float(reward),
        prompt_tokens=NO_TOKENS,
        response_tokens=tokens,
        sampled_logprobs=_parse_logprobs(record.get("sampled_logprobs"), len(tokens)),
    )
    trajectory = record.get("trajectory")
    return rollout, num_tokens, "" if trajectory is None else str(trajectory)


def _parse_name(record: dict[str, Any], field: str, where: str) -> str:
    """A prompt's or a group's name: a string, or a whole number as a string."""
    name = record[field]
    if not isinstance(name, str | int) or isinstance(name, bool):
        raise PoiseError(
            f"{where}: {field} {name!r} is neither a string nor a whole number: write a string"
        )
    return str(name)


def _list_fields(fields: Sequence[str]) -> str:
    """The first few field names, for a message."""
    remainder = (
        f", and {len(fields) - MAX_FIELDS_SHOWN} more" if len(fields) > MAX_FIELDS_SHOWN else ""
    )
    return ", ".join(fields[:MAX_FIELDS_SHOWN]) + remainder or "none"


def _parse_logprobs(logprob_values: Any, length: int) -> Floats:
    """The log-probabilities if they are a list with one number per token; otherwise none."""
    try:
        logprobs = np.asarray(logprob_values, dtype=np.float32)
    except (TypeError, ValueError, OverflowError):
        return NO_LOGPROBS
    return logprobs if logprobs.shape == (length,) else NO_LOGPROBS


def _parse_tokens(record: dict[str, Any], where: str) -> tuple[Ints, int]:
    """The response's token ids (none if only their number is given), and their number."""
    num_tokens = record.get("num_tokens")
    if record.get("response_tokens") is None:
        if num_tokens is None:
            raise PoiseError(f"{where}: no 'response_tokens' and no 'num_tokens': give one of them")
        is_whole = isinstance(num_tokens, int) and not isinstance(num_tokens, bool)
        if not is_whole or not 0 < num_tokens <= MOST_TOKENS:
            raise PoiseError(
                f"{where}: num_tokens {num_tokens!r} is not a whole number from 1 to {MOST_TOKENS}"
            )
        return NO_TOKENS, num_tokens
    try:
        tokens = np.asarray(record["response_tokens"])
    except ValueError:  # lists of unequal length inside
        tokens = np.empty(0)
    if (
        tokens.ndim != 1
        or tokens.dtype.kind != "i"
        or not 0 <= tokens.min() <= tokens.max() < 2**31
    ):
        raise PoiseError(f"{where}: response_tokens must be a list of token ids, at least one")
    if num_tokens is not None and num_tokens != len(tokens):
        raise PoiseError(
            f"{where}: num_tokens is {num_tokens!r} but there are {len(tokens)} response_tokens: "
            "leave one of the two out"
        )
    return tokens.astype(np.int32), len(tokens)
