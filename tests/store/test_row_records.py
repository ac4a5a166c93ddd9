"""Rollouts as lines, rows as tensors: what is put away comes back bit for bit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import tiny
from safetensors.torch import load_file, save_file

from counterpoise.store.rollout_lines import rollout_lines
from counterpoise.store.row_records import rows_from_tensors, rows_to_tensors
from counterpoise.types import Group, Rollout, Row


def assert_same(a: Row, b: Row) -> None:
    for name in ("group", "advantage", "num_tokens", "index", "born"):
        assert getattr(a, name) == getattr(b, name)
        assert type(getattr(a, name)) is type(getattr(b, name))
    for name in (
        "prompt_id", "prompt", "answer", "response", "reward", "finished",
        "extra_rewards", "anchor",
    ):  # fmt: skip
        assert getattr(a.content, name) == getattr(b.content, name)
    for x, y in (
        (a.weights_T, b.weights_T),
        (a.trainer_logprobs_T, b.trainer_logprobs_T),
        (a.content.prompt_tokens, b.content.prompt_tokens),
        (a.content.response_tokens, b.content.response_tokens),
        (a.content.sampled_logprobs, b.content.sampled_logprobs),
    ):
        assert (x is None) == (y is None)
        if x is not None:
            assert x.dtype == y.dtype
            assert x.tobytes() == y.tobytes()


def test_rows_survive_json_and_safetensors_bit_for_bit(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = []
    for i, row in enumerate(tiny.rows(groups=4, size=3)):
        awkward = rng.random(row.num_tokens, dtype=np.float32) * np.float32(1e-38)  # denormal
        rows.append(
            replace(
                row,
                advantage=0.1 + i / 3,
                born=i,
                trainer_logprobs_T=awkward if i % 2 else None,
                weights_T=awkward if i % 3 == 0 else None,
                rollout=replace(
                    row.content,
                    response="½ \u2028 \\boxed{\n",
                    reward=1 / 3,
                    extra_rewards={"overlong": -1 / 7} if i % 2 else {},
                    anchor=i % 3 == 2,
                ),
            )
        )
    plain, tensors = rows_to_tensors(rows)
    save_file(tensors, tmp_path / "rows.safetensors")
    again = rows_from_tensors(
        json.loads(json.dumps(plain)), load_file(tmp_path / "rows.safetensors")
    )
    assert len(again) == len(rows)
    for a, b in zip(rows, again, strict=True):
        assert_same(a, b)


def test_rows_without_scores_or_weights() -> None:
    rows = tiny.rows(groups=1)
    again = rows_from_tensors(*rows_to_tensors(rows))
    assert all(row.trainer_logprobs_T is None and row.weights_T is None for row in again)
    for a, b in zip(rows, again, strict=True):
        assert_same(a, b)


def test_no_rows(tmp_path: Path) -> None:
    plain, tensors = rows_to_tensors([])
    save_file(tensors, tmp_path / "rows.safetensors")
    assert rows_from_tensors(plain, load_file(tmp_path / "rows.safetensors")) == []


def test_a_restored_row_owns_its_arrays() -> None:
    """Views of one flat tensor would change together."""
    plain, tensors = rows_to_tensors(tiny.rows(groups=1))
    rows = rows_from_tensors(plain, tensors)
    rows[0].content.sampled_logprobs[:] = 7.0
    assert not (tensors["sampled_logprobs"] == 7.0).any()


def test_the_line_of_a_rollout() -> None:
    rollout = Rollout(
        prompt_id="w/1",
        prompt="Ana has ½ …",
        answer="11",
        response='a "quote"\nand \\boxed{11}\u2028',
        reward=0.5,
        prompt_tokens=np.array([5, 6], np.int32),
        response_tokens=np.array([7, 8, 1], np.int32),
        sampled_logprobs=np.array([-0.12345678, -1e-9, -30.0], np.float32),
        finished=False,
    )
    (line,) = rollout_lines([Group("3:w/1", 3, (rollout,))])
    assert "\n" not in line
    assert json.loads(line) == {
        "schema": 1,
        "group": "3:w/1",
        "prompt_id": "w/1",
        "prompt": "Ana has ½ …",
        "response": 'a "quote"\nand \\boxed{11}\u2028',
        "answer": "11",
        "reward": 0.5,
        "finished": False,
        "prompt_tokens": [5, 6],
        "response_tokens": [7, 8, 1],
        "sampled_logprobs": [-0.123457, -0.0, -30.0],
    }


def test_lines_are_those_of_json_one_number_at_a_time() -> None:
    rng = np.random.default_rng(0)
    groups = []
    for g in range(3):
        rollouts = []
        for i in range(4):
            size = int(rng.integers(1, 40))
            logprobs = -(10.0 ** rng.uniform(-8, 2, size)).astype(np.float32)
            if (g, i) == (2, 3):
                logprobs[0] = -np.inf  # then JSON's own words are written
            rollouts.append(
                Rollout(
                    f"p{g}",
                    "?",
                    "1",
                    "é",
                    1.0,
                    np.arange(g + 1, dtype=np.int32),
                    rng.integers(0, 50_000, size).astype(np.int32),
                    logprobs,
                )
            )
        groups.append(Group(f"1:p{g}", 1, tuple(rollouts)))
    for chosen in (groups[:2], groups):
        found = [json.loads(line) for line in rollout_lines(chosen)]
        rollouts = [r for group in chosen for r in group.rollouts]
        assert [r["prompt_tokens"] for r in found] == [r.prompt_tokens.tolist() for r in rollouts]
        assert [r["response_tokens"] for r in found] == [
            r.response_tokens.tolist() for r in rollouts
        ]
        for record, rollout in zip(found, rollouts, strict=True):
            assert record["sampled_logprobs"] == [
                round(float(x), 6) for x in rollout.sampled_logprobs
            ]
    assert rollout_lines([]) == []


def test_a_line_names_what_is_special_about_a_rollout_and_nothing_else() -> None:
    ((plain, *_),) = [tiny.rows(groups=1)]
    anchor = replace(plain.content, extra_rewards={"overlong": -0.25}, anchor=True)
    first, second = map(json.loads, rollout_lines([Group("1:w", 1, (plain.content, anchor))]))
    assert "further" not in first
    assert "anchor" not in first
    assert (second["further"], second["anchor"]) == ({"overlong": -0.25}, True)


def test_rows_of_older_checkpoints_lack_what_they_could_not_have() -> None:
    plain, tensors = rows_to_tensors(tiny.rows(groups=1))
    older = [{k: v for k, v in r.items() if k not in ("further", "anchor")} for r in plain]
    assert all(not r.content.extra_rewards for r in rows_from_tensors(older, tensors))
