"""What a page knows of an environment's words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from counterpoise.report.texts import read_rollout_texts

LINE = {"group": "1:a", "response": "x", "reward": 0.0, "response_tokens": [5, 6, 7]}
TURNS = [
    {"start": 0, "told": [], "action": [0, 1], "feedback": "no"},
    {"start": 2, "told": [8, 9], "action": [2, 3], "feedback": ""},
]


def test_told_tokens_have_their_place_and_are_not_counted(tmp_path: Path) -> None:
    file = tmp_path / "step_00001.jsonl"
    file.write_text("\n".join(map(json.dumps, (LINE, {**LINE, "turns": TURNS}))))
    plain, episode = read_rollout_texts(file)
    assert plain.environment_tokens == ()
    assert episode.environment_tokens == ((2, (8, 9)),)
    assert plain.num_tokens == episode.num_tokens == 3


@pytest.mark.parametrize("turns", [3, ["x"], [{"start": 0}], [{**TURNS[1], "action": 1}]])
def test_damaged_turns_leave_the_rollout(tmp_path: Path, turns: object) -> None:
    file = tmp_path / "step_00001.jsonl"
    file.write_text(json.dumps({**LINE, "turns": turns}))
    (text,) = read_rollout_texts(file)
    assert text.environment_tokens == ()
    assert text.response == "x"
