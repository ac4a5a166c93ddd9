"""Turns survive rollouts/ and checkpoints; lines without them are as they were."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import episodes
import numpy as np
import pytest

from counterpoise.errors import PoiseError
from counterpoise.store.rollout_files import read_groups
from counterpoise.store.rollout_lines import rollout_lines
from counterpoise.store.row_records import rows_from_tensors, rows_to_tensors
from counterpoise.store.turns import turns_from_record, turns_to_records
from counterpoise.types import Group, Turn

TURNS = (
    Turn(0, np.empty(0, np.int32), (2, 4), "12 is too many."),
    Turn(5, np.array([7, 8, 9], np.int32), (6, 8), ""),
)


def same(a: tuple[Turn, ...], b: tuple[Turn, ...]) -> None:
    assert turns_to_records(a) == turns_to_records(b)
    assert all(turn.observation.dtype == np.int32 for turn in b)


def test_as_json() -> None:
    plain = json.loads(json.dumps(turns_to_records(TURNS)))
    assert plain[1] == {"start": 5, "told": [7, 8, 9], "action": [6, 8], "feedback": ""}
    same(TURNS, turns_from_record({"turns": plain}))
    assert turns_from_record({}) == ()


def test_rows_of_a_checkpoint() -> None:
    rows = episodes.rows()
    plain, tensors = rows_to_tensors(rows)
    for row, back in zip(
        rows, rows_from_tensors(json.loads(json.dumps(plain)), tensors), strict=True
    ):
        same(row.content.turns, back.content.turns)
        assert back.num_tokens == row.num_tokens
        assert back.num_tokens_read == row.num_tokens_read
    for record in plain:
        del record["turns"]  # as checkpoints before there were any
    assert all(row.content.turns == () for row in rows_from_tensors(plain, tensors))


def test_the_first_message_of_an_environment(tmp_path: Path) -> None:
    row = episodes.rows()[0]
    row = replace(row, rollout=replace(row.content, first_message="Game 17."))
    plain, tensors = rows_to_tensors([row])
    (back,) = rows_from_tensors(plain, tensors)
    assert back.content.prompt_as_read.problem == "Game 17."
    del plain[0]["first_message"]  # as in checkpoints of earlier versions
    assert rows_from_tensors(plain, tensors)[0].content.prompt_as_read == row.content.problem
    file = tmp_path / "step_00001.jsonl"
    file.write_text("\n".join(rollout_lines([Group("1:a", 1, (row.content,))])))
    (group,) = read_groups(file)
    assert group.rollouts[0].first_message == "Game 17."


def test_lines_of_rollouts(tmp_path: Path) -> None:
    rows = episodes.rows()
    groups = [Group("1:a", 1, tuple(row.content for row in rows))]
    lines = rollout_lines(groups)
    for row, line in zip(rows, lines, strict=True):
        record = json.loads(line)
        assert ("turns" in record) == bool(row.content.turns)
        assert len(record["response_tokens"]) == len(record["sampled_logprobs"]) == row.num_tokens
    file = tmp_path / "step_00001.jsonl"
    file.write_text("\n".join(lines))
    (group,) = read_groups(file)
    for row, rollout in zip(rows, group.rollouts, strict=True):
        same(row.content.turns, rollout.turns)


def test_lines_of_other_tools(tmp_path: Path) -> None:
    """Unknown log-probabilities are NaN; whatever else is wrong is named."""
    record = {
        "group": "7:a", "prompt_id": "a", "reward": 1, "prompt_tokens": [3],
        "response_tokens": [4, 5], "sampled_logprobs": None,
    }  # fmt: skip
    file = tmp_path / "step_00007.jsonl"
    for group_key, iteration in (("7:a", 7), ("a", 0), ("a:7", 0)):
        file.write_text(json.dumps({**record, "group": group_key}))
        (group,) = read_groups(file)
        assert group.iteration == iteration
        assert np.isnan(group.rollouts[0].sampled_logprobs).tolist() == [True, True]
    without_reward = {name: value for name, value in record.items() if name != "reward"}
    for content, message in (
        ([1], r"line 1: not a JSON object"),
        (without_reward, r"line 1: no 'reward'$"),
        ({**record, "sampled_logprobs": [-1.0]}, r"1 sampled_logprobs for 2 response_tokens"),
    ):
        file.write_text(json.dumps(content))
        with pytest.raises(PoiseError, match=message):
            read_groups(file)


def test_a_damaged_turn_is_one_line(tmp_path: Path) -> None:
    (line,) = rollout_lines([Group("1:a", 1, (episodes.rows()[0].content,))])
    record = json.loads(line)
    del record["turns"][0]["told"]
    file = tmp_path / "step_00001.jsonl"
    file.write_text(json.dumps(record))
    with pytest.raises(PoiseError, match="a turn needs start, told, action and feedback"):
        read_groups(file)
