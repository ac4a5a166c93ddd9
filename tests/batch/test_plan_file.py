from __future__ import annotations

import json
import math

import pytest

from counterpoise.batch.plan_file import plan_file, rows_from_file
from counterpoise.errors import PoiseError

GOOD = '{"prompt_id": "p", "reward": 1, "num_tokens": 3}'


def write(tmp_path, *lines: str | dict):
    path = tmp_path / "rollouts.jsonl"
    text = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(text) + "\n")
    return path


def test_rows_have_the_credit_of_their_group(tmp_path):
    path = write(
        tmp_path,
        {"prompt_id": "p", "reward": 1.0, "response_tokens": [4, 5, 6], "extra": None},
        {"prompt_id": "q", "reward": 0, "response_tokens": [4]},
        "",
        {"prompt_id": "p", "reward": 0.0, "response_tokens": [7, 8]},
        {"prompt_id": "q", "reward": 0, "response_tokens": [4], "num_tokens": 1},
    )
    rows = rows_from_file(path, "dr_grpo")
    assert [(row.group, row.index, row.advantage, row.num_tokens) for row in rows] == [
        ("p", 0, 0.5, 3),
        ("q", 0, 0.0, 1),
        ("p", 1, -0.5, 2),
        ("q", 1, 0.0, 1),
    ]
    assert rows[2].content.response_tokens.tolist() == [7, 8]


def test_a_rollout_without_a_reward_has_no_signal(tmp_path):
    """A run stores NaN where no reward function scored a rollout, and trains on the others."""
    rewards = [("p", 1.0), ("p", math.nan), ("p", 0.0), ("q", math.nan)]
    lines = [{"prompt_id": group, "reward": r, "num_tokens": 1} for group, r in rewards]
    rows = rows_from_file(write(tmp_path, *lines), "dr_grpo")
    assert [row.advantage for row in rows] == [0.5, 0.0, -0.5, 0.0]


def test_grpo_divides_by_the_unbiased_std(tmp_path):
    lines = [{"prompt_id": 7, "reward": r, "num_tokens": 1} for r in (1, 0)]
    rows = rows_from_file(write(tmp_path, *lines), "grpo")
    assert [row.advantage for row in rows] == pytest.approx([0.5**0.5, -(0.5**0.5)], rel=1e-5)
    assert rows[0].group == "7"
    assert rows[0].rollout is None


def test_the_plan_and_its_description_are_json(tmp_path):
    lines = [
        {"prompt_id": f"p{i // 4}", "reward": i % 2, "response_tokens": list(range(i + 1))}
        for i in range(16)
    ]
    # Groups of 10, 26, 42 and 58 tokens. A step's positive rows have the longest response, and its
    # longest negative one is a token shorter: 15 of 16 types shared, and 11 of 12.
    told = plan_file(write(tmp_path, *lines), "grouped", num_steps=2, seed=3)
    assert json.loads(json.dumps(told)) == told
    assert sorted(i for step in told["steps"] for i in step) == list(range(16))
    assert told["describe"]["split_groups"] == 0
    assert told["describe"]["tokens_per_step"] == [68, 68]
    assert told["describe"]["shared_token_share"] == pytest.approx(1 - (1 / 16 + 1 / 12) / 2)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[1]", "not a JSON object"),
        ({"reward": 1, "num_tokens": 3}, "no 'prompt_id'"),
        ({"prompt_id": "p", "num_tokens": 3}, "no 'reward'"),
        ({"prompt_id": None, "reward": 1, "num_tokens": 3}, "prompt_id None"),
        ({"prompt_id": "p", "reward": "1", "num_tokens": 3}, "reward '1' is not a number"),
        ({"prompt_id": "p", "reward": True, "num_tokens": 3}, "reward True is not a number"),
        ('{"prompt_id": "p", "reward": -Infinity, "num_tokens": 3}', "not finite"),
        ({"prompt_id": "p", "reward": 10**400, "num_tokens": 3}, "too large"),
        ({"prompt_id": "p", "reward": 1}, "no 'response_tokens' and no 'num_tokens'"),
        ({"prompt_id": "p", "reward": 1, "num_tokens": 0}, "num_tokens 0"),
        ({"prompt_id": "p", "reward": 1, "num_tokens": -2}, "num_tokens -2"),
        ({"prompt_id": "p", "reward": 1, "num_tokens": 2.5}, "num_tokens 2.5"),
        ({"prompt_id": "p", "reward": 1, "num_tokens": True}, "num_tokens True"),
        ({"prompt_id": "p", "reward": 1, "num_tokens": 2**31}, "from 1 to 2147483647"),
        ({"prompt_id": "p", "group": [1], "reward": 1, "num_tokens": 3}, r"group \[1\] is neither"),
        ({"prompt_id": "p", "reward": 1, "response_tokens": []}, "list of token ids"),
        ({"prompt_id": "p", "reward": 1, "response_tokens": "abc"}, "list of token ids"),
        ({"prompt_id": "p", "reward": 1, "response_tokens": [1.5]}, "list of token ids"),
        ({"prompt_id": "p", "reward": 1, "response_tokens": [[1], [2, 3]]}, "list of token ids"),
        ({"prompt_id": "p", "reward": 1, "response_tokens": [-1]}, "list of token ids"),
        ({"prompt_id": "p", "reward": 1, "response_tokens": [2**40]}, "list of token ids"),
        ({"prompt_id": "p", "reward": 1, "response_tokens": [1], "num_tokens": 2}, "leave one"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, message):
    path = write(tmp_path, GOOD, line)
    with pytest.raises(PoiseError, match=message) as caught:
        rows_from_file(path, "grpo")
    assert str(caught.value).startswith(f"{path}, line 2: ")


def test_bytes_that_are_not_text(tmp_path):
    path = tmp_path / "rollouts.jsonl"
    path.write_bytes(b'{"prompt_id": "\xff"}\n')
    with pytest.raises(PoiseError, match="line 1: not JSON"):
        rows_from_file(path, "grpo")


def test_empty_missing_and_unknown(tmp_path):
    with pytest.raises(PoiseError, match="holds no rollouts"):
        rows_from_file(write(tmp_path, "", " "), "grpo")
    with pytest.raises(PoiseError, match="cannot be read: No such file"):
        rows_from_file(tmp_path / "absent.jsonl", "grpo")
    with pytest.raises(PoiseError, match="did you mean 'grpo'"):
        rows_from_file(write(tmp_path, GOOD), "grp")


def test_a_line_that_names_its_group_belongs_to_it(tmp_path):
    """The same prompt in two iterations is two groups."""
    line = '{{"prompt_id": "p", "group": "{}:p", "reward": {}, "num_tokens": 3}}\n'
    path = tmp_path / "two.jsonl"
    path.write_text("".join(line.format(i, r) for i in (1, 2) for r in (0, 1)))
    rows = rows_from_file(path)
    assert [row.group for row in rows] == ["1:p", "1:p", "2:p", "2:p"]
    assert [row.sign for row in rows] == [-1, 1, -1, 1]
    path.write_text(path.read_text().replace('"1:p"', "1").replace('"2:p"', "2"))
    assert [row.group for row in rows_from_file(path)] == ["1", "1", "2", "2"]


def test_what_is_short_is_said_in_the_words_of_the_command(tmp_path):
    path, less = (
        write(tmp_path, GOOD),
        "lower num_steps (batch.steps; poise plan: --steps) or sample more prompts",
    )
    for rule, many in (("shuffled", "1 row"), ("grouped", "1 row")):
        with pytest.raises(PoiseError) as fault:
            plan_file(path, rule, num_steps=4, seed=0)
        assert str(fault.value) == f"{many} cannot fill 4 steps: {less}"
    with pytest.raises(PoiseError) as fault:
        plan_file(write(tmp_path, GOOD, GOOD), "grouped", num_steps=2, seed=0)
    assert str(fault.value) == f"1 whole group cannot fill 2 steps: {less}"


def test_a_line_of_many_fields_is_told_in_few_words(tmp_path):
    line = {f"field_{i:02}": i for i in range(60)}
    with pytest.raises(PoiseError) as fault:
        rows_from_file(path := write(tmp_path, line))
    named = ", ".join(f"field_{i:02}" for i in range(8))
    assert str(fault.value) == (
        f"{path}, line 1: no 'prompt_id' (fields: {named}, and 52 more): every rollout needs one"
    )
    with pytest.raises(PoiseError, match=r"no 'prompt_id' \(fields: none\)"):
        rows_from_file(write(tmp_path, {}))
