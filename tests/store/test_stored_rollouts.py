"""The quick way to read a line gives what parsing all of it gives."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from serve.served import line, write_rollouts

from counterpoise.store.rollout_lines import rollout_lines
from counterpoise.store.stored_rollouts import (
    DamagedLines,
    iterate_rollouts,
    parse_line,
    parse_whole_line,
    read_head_at,
    read_line_at,
)
from counterpoise.types import Group, Rollout

TEXTS = st.text(max_size=30) | st.sampled_from(
    ['", "prompt_tokens": [', '\\", \\"response_tokens\\": [1]', "]}", "\\", '"', "\x00\x1b"]
)


@settings(deadline=None)
@given(
    TEXTS,
    TEXTS,
    st.lists(st.integers(0, 99), max_size=4),
    st.dictionaries(st.sampled_from(["a", "prompt_tokens", "response_tokens"]), TEXTS, max_size=2),
)
def test_a_line_of_the_store_is_read_as_it_was_written(prompt, response, tokens, logged):
    array = np.array(tokens, dtype=np.int32)
    rollout = Rollout(
        "p", prompt, "3", response, 0.5, array, array, np.zeros(len(array), np.float32),
        logged=logged,
    )  # fmt: skip
    (text,) = rollout_lines([Group("1:p", 1, (rollout,))])
    parsed = parse_line(text.encode("utf-8", "surrogatepass") + b"\n")
    assert parsed is not None
    fields, length = parsed
    whole = json.loads(text)
    assert length == len(tokens)
    assert (fields["prompt"], fields["response"]) == (whole["prompt"], whole["response"])


def test_a_line_with_its_fields_in_another_order_is_parsed_whole():
    text = '{"response_tokens": [1, 2], "reward": 1, "group": "g", "response": "r"}'
    fields, length = parse_line(text.encode())
    assert (fields["group"], length) == ("g", 2)
    nested = line(logged={"deep": [1], "prompt_tokens": [9, 9]})
    assert parse_line(nested.encode())[1] == 3
    assert parse_line(nested.encode())[0]["logged"]["prompt_tokens"] == [9, 9]


def test_offsets_lead_back_to_the_line(tmp_path: Path):
    lines = (line("1:a", "one"), "torn {\n", line("1:b", "zwei ü"), line("1:a", "three"))
    path = write_rollouts(tmp_path, 1, *lines, line("1:b", "cut off")[:50])
    damaged = DamagedLines()
    rollouts = list(iterate_rollouts(path, damaged))
    assert [(each.group, each.index, each.response) for each in rollouts] == [
        ("1:a", 0, "one"),
        ("1:b", 0, "zwei ü"),
        ("1:a", 1, "three"),
    ]
    assert (damaged.count, damaged.first_line) == (2, 2)
    for each in rollouts:
        assert read_head_at(path, each.offset, each.size)["response"] == each.response
        assert read_line_at(path, each.offset, each.size)["response_tokens"] == [3, 4, 5]
    assert read_head_at(path, rollouts[0].offset + 1, 20) is None


def test_what_is_no_rollout_is_none():
    for text in (b"", b"{}", b"[1]", b"null", b'"x"', b"\xff\xfe", b"[" * 100_000, b"{broken"):
        assert parse_line(text) is None
        assert parse_whole_line(text) is None


def test_rewards_and_texts_may_be_anything(tmp_path: Path):
    path = write_rollouts(
        tmp_path,
        1,
        line(reward=None),
        line(reward="2.5"),
        line(reward=float("nan")),
        line(response="\ud800").encode("utf-8", "surrogatepass").decode("utf-8", "replace"),
        json.dumps({"group": 3, "response": ["x"], "reward": True}) + "\n",
    )
    rollouts = list(iterate_rollouts(path))
    assert [each.reward == each.reward for each in rollouts] == [False, True, False, True, True]
    assert rollouts[1].reward == 2.5
    assert (rollouts[4].group, rollouts[4].response) == ("3", '["x"]')
    assert rollouts[4].num_tokens is None
