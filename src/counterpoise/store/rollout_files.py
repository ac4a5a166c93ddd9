"""Read rollouts/step_00012.jsonl: groups of rollouts, as a run or another tool wrote them.

Errors name the line. Fields that are not required may be missing: another trainer's run may lack
the sampler's log-probabilities or the tokens of prompts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from counterpoise.errors import PoiseError
from counterpoise.store.checksums import check_content
from counterpoise.store.plain_values import plain_text
from counterpoise.store.stored_rollouts import finite_number
from counterpoise.store.turns import messages_from_record, turns_from_record
from counterpoise.types import Group, Rollout, RowName

REQUIRED_FIELDS = ("group", "prompt_id", "reward", "prompt_tokens", "response_tokens")


def read_groups(path: Path, required: Sequence[str] = REQUIRED_FIELDS) -> list[Group]:
    """Groups of a run folder or one of its files; an error names a line without a `required` field.

    `required` must contain group, prompt_id, reward and response_tokens: every rollout needs them.
    """
    return read_groups_and_advantages(path, required)[0]


def read_groups_and_advantages(
    path: Path, required: Sequence[str] = REQUIRED_FIELDS
) -> tuple[list[Group], dict[RowName, float]]:
    """The groups, and the `advantage` of rollouts whose own line has one, as in some imports."""
    step_files = (path / "rollouts").glob("step_*.jsonl")
    # By length first: step_100000 comes after step_99999.
    ordered_files = sorted(step_files, key=lambda file: (len(file.name), file.name))
    files = [path] if path.is_file() else ordered_files
    if not files:
        raise PoiseError(
            f"{path} holds no rollouts: rollouts/step_00001.jsonl and the like are missing"
        )
    rollouts_by_group: dict[str, list[Rollout]] = {}
    advantages: dict[RowName, float] = {}
    for file in files:
        check_content(file)
        for where, record in read_records(file, required):
            group_key = plain_text(record["group"])
            rollouts = rollouts_by_group.setdefault(group_key, [])
            if (advantage := finite_number(record.get("advantage"))) is not None:
                advantages[group_key, len(rollouts)] = advantage
            try:
                rollouts.append(_make_rollout(record))
            except (ValueError, TypeError, OverflowError) as fault:
                raise PoiseError(f"{where}: {fault}: fix or remove the line") from fault
    groups = [
        Group(group_key, _iteration_of(group_key), tuple(rollouts))
        for group_key, rollouts in rollouts_by_group.items()
    ]
    return groups, advantages


def read_records(file: Path, required: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(where it stands, the record) of every line of a file; `required` fields must be there."""
    for line_number, json_line in enumerate(_read_text(file).split("\n"), 1):
        if json_line.strip():
            where = f"{file}, line {line_number}"
            yield where, _parse_record(json_line, where, required)


def _iteration_of(group_key: str) -> int:
    """7 for "7:train/12"; 0 for a key of another tool that does not begin with an iteration."""
    number, colon, _ = group_key.partition(":")
    return int(number) if colon and number.isdecimal() and len(number) < 10 else 0


def check_vocabulary(groups: list[Group], vocabulary_size: int) -> None:
    """Refuse tokens that the model does not have, a sign of another model."""
    for rollout in (rollout for group in groups for rollout in group.rollouts):
        for token_ids in (rollout.prompt_tokens, rollout.response_tokens):
            strangers = token_ids[(token_ids < 0) | (token_ids >= vocabulary_size)]
            if len(strangers):
                raise PoiseError(
                    f"the rollouts have the token {strangers[0]}, but the model's tokens are 0 to "
                    f"{vocabulary_size - 1}: name the model that sampled them with --model"
                )


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError as fault:
        raise PoiseError(f"{file} cannot be read: {fault.strerror}") from fault


def _parse_record(json_line: str, where: str, required_fields: Sequence[str]) -> dict[str, Any]:
    try:
        record = json.loads(json_line)
    except (ValueError, RecursionError) as fault:
        raise PoiseError(f"{where}: not JSON ({fault}): fix or remove the line") from fault
    if not isinstance(record, dict):
        raise PoiseError(f"{where}: not a JSON object: fix or remove the line")
    for field in required_fields:
        if field not in record:
            reason = (
                ": the tokens the model saw are needed, as prime-rl, slime, miles, NeMo-RL and "
                "runs of Counterpoise store them"
                if field in ("prompt_tokens", "response_tokens")
                else ""
            )
            raise PoiseError(f"{where}: no '{field}'{reason}")
    return record


def _optional_number(value: Any) -> float | None:
    return None if value is None else float(value)


def _make_rollout(record: dict[str, Any]) -> Rollout:
    response_tokens = np.array(record["response_tokens"], dtype=np.int32)
    # Another trainer may not store log-probabilities; studies compute them with the model.
    sampled_logprobs = np.full(len(response_tokens), np.nan, dtype=np.float32)
    if record.get("sampled_logprobs") is not None:
        sampled_logprobs = np.array(record["sampled_logprobs"], dtype=np.float32)
    if sampled_logprobs.shape != response_tokens.shape:
        raise ValueError(
            f"{sampled_logprobs.size} sampled_logprobs for {response_tokens.size} response_tokens"
        )
    return Rollout(
        prompt_id=str(record["prompt_id"]),
        prompt=str(record.get("prompt", "")),
        answer=str(record.get("answer", "")),
        response=str(record.get("response", "")),
        reward=float(record["reward"]),
        prompt_tokens=np.array(record.get("prompt_tokens", ()), dtype=np.int32),
        response_tokens=response_tokens,
        sampled_logprobs=sampled_logprobs,
        finished=None if record.get("finished") is None else bool(record["finished"]),
        extra_rewards={
            str(reward_name): float(reward)
            for reward_name, reward in dict(record.get("further", {})).items()
        },
        anchor=bool(record.get("anchor", False)),
        generic_logprob=_optional_number(record.get("generic_logprob")),
        turns=turns_from_record(record),
        messages=messages_from_record(record),
        first_message=str(record.get("first_message", "")),
    )
