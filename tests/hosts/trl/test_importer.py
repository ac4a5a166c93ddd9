from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hosts.importing.foreign import advantages, read_lines, trl_file
from transformers import AutoTokenizer

from counterpoise.errors import PoiseError
from counterpoise.hosts.importing.formats import render_text
from counterpoise.hosts.importing.write_folder import import_run
from counterpoise.model.load import EMBEDDED_FOLDER


def imported(folder: Path, out: Path, **options: str) -> list[str]:
    return list(import_run(folder, out, tokenizer="embedded", **options).notes)


def test_rollouts_keep_their_texts_rewards_and_steps(tmp_path: Path) -> None:
    trl_file(tmp_path / "run", step=12)
    result = import_run(tmp_path / "run", tmp_path / "out", tokenizer="embedded")
    lines = read_lines(tmp_path / "out" / "rollouts" / "step_00012.jsonl")
    assert [line["prompt"] for line in lines] == ["How many?"] * 2 + ["How far?"] * 2
    assert [line["response"] for line in lines] == ["3", "4 pens", "5", ""]
    assert [line["reward"] for line in lines] == [1.0, 0.0, 0.0, 1.0]
    groups = [line["group"] for line in lines]
    assert groups[0] == groups[1] != groups[2] == groups[3]
    assert all(group.startswith("12:trl/") for group in groups)
    assert "finished" not in lines[0]
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED_FOLDER)
    encode = [tokenizer.encode(t, add_special_tokens=False) for t in ("3", "4 pens", "5")]
    assert [line["response_tokens"] for line in lines] == [*encode, [tokenizer.eos_token_id]]
    tokens = sum(map(len, encode)) + 1
    assert (result.steps, result.rollouts, result.groups, result.tokens) == (1, 4, 2, tokens)
    (metrics,) = read_lines(tmp_path / "out" / "metrics.jsonl")
    assert (metrics["iteration"], metrics["success"], metrics["reward"]) == (12, 0.5, 0.5)
    assert (metrics["mixed_groups"], metrics["response_length"]) == (1.0, tokens / 4)


def test_a_generation_that_is_logged_again_is_read_once(tmp_path: Path) -> None:
    nan = {"correct": [1.0, 0.0, 0.0, 1.0], "form": [math.nan] * 4}
    for step in (1, 2):
        trl_file(tmp_path / "run", step, rewards=nan)
    trl_file(tmp_path / "run", 3, completions=("1", "2", "3", "4"), rewards=nan)
    notes = imported(tmp_path / "run", tmp_path / "out")
    names = sorted(file.name for file in (tmp_path / "out" / "rollouts").iterdir())
    assert names == ["step_00001.jsonl", "step_00003.jsonl"]
    assert "left out because they repeat the generation before: 1 file" in notes


def test_files_are_read_by_step_also_above_99999(tmp_path: Path) -> None:
    for step in (99999, 100000):
        trl_file(tmp_path / "run", step)
    imported(tmp_path / "run", tmp_path / "out")
    (rollouts,) = (tmp_path / "out" / "rollouts").iterdir()  # the first file counts
    assert rollouts.name == "step_99999.jsonl"


def test_a_file_that_an_evaluation_may_have_overwritten_is_noted(tmp_path: Path) -> None:
    for step in (1, 2):
        trl_file(tmp_path / "run", step, completions=("1", "2", "3", str(step)))
    trl_file(
        tmp_path / "run",
        3,
        prompts=["a", "b"],
        completions=("x", "y"),
        rewards={"correct": [1.0, 0.0]},
    )
    notes = imported(tmp_path / "run", tmp_path / "out")
    assert any("such as completions_00003.parquet: if an evaluation overwrote" in n for n in notes)


def test_a_prompt_that_was_drawn_twice_is_two_groups(tmp_path: Path) -> None:
    """Only then do the advantages follow the sum of both columns in every group."""
    prompts = ["a"] * 4 + ["b"] * 4 + ["a"] * 4
    correct = [1.0, 0, 0, 0, 1, 1, 0, 1, 1, 1, 1, 0]
    form = [0.1, 0.3, 0, 0.2, 0, 0.1, 0.2, 0.3, 0.3, 0, 0.1, 0.2]
    totals = [a + b for a, b in zip(correct, form, strict=True)]
    trl_file(
        tmp_path / "run",
        prompts=prompts,
        completions=[str(i) for i in range(12)],
        rewards={"correct": correct, "form": form},
        advantage=advantages(totals, 4),
    )
    notes = imported(tmp_path / "run", tmp_path / "out")
    assert notes[0] == "reward = correct + form (inferred; --reward names other columns)"
    assert "prompts drawn more than once in a generation: 1 additional group" in notes
    lines = read_lines(tmp_path / "out" / "rollouts" / "step_00001.jsonl")
    groups = [line["group"] for line in lines]
    assert groups == [name for name in dict.fromkeys(groups) for _ in range(4)]
    assert len(set(groups)) == 3
    assert lines[0]["prompt_id"] == lines[8]["prompt_id"] != lines[4]["prompt_id"]
    assert groups[8] == f"{groups[0]}#2"


def test_completions_that_nothing_scored_are_left_out(tmp_path: Path) -> None:
    trl_file(
        tmp_path / "run",
        rewards={"correct": [1.0, 0.0, math.nan, 1.0]},
        advantage=[0.7, -0.7, 0.0, 0.0],
    )
    notes = imported(tmp_path / "run", tmp_path / "out")
    lines = read_lines(tmp_path / "out" / "rollouts" / "step_00001.jsonl")
    assert [line["response"] for line in lines] == ["3", "4 pens", ""]
    assert "left out because nothing scored them: 1 completion" in notes


def test_rewards_are_the_columns_that_the_advantages_follow(tmp_path: Path) -> None:
    trl_file(
        tmp_path / "run",
        prompts=["How many?"] * 4,
        rewards={"correct": [1.0, 0.0, 0.0, 1.0], "form": [0.0, 0.5, 0.0, 0.5]},
        advantage=advantages([1.0, 0.5, 0.0, 1.5], 4),
        length=[3.0, 9.0, 4.0, 1.0],
        note=["a", "b", "c", "d"],
    )
    notes = imported(tmp_path / "run", tmp_path / "out")
    lines = read_lines(tmp_path / "out" / "rollouts" / "step_00001.jsonl")
    assert [line["reward"] for line in lines] == [1.0, 0.5, 0.0, 1.5]
    assert notes[0] == "reward = correct + form (inferred; --reward names other columns)"


def test_weights_that_are_not_one_must_be_named(tmp_path: Path) -> None:
    right, form = np.array([1.0, 0.0, 0.0, 0.0]), np.array([0.0, 1.0, 0.0, 1.0])
    trl_file(
        tmp_path / "run",
        prompts=["How many?"] * 4,
        rewards={"correct": right.tolist(), "form": form.tolist()},
        advantage=advantages((right + 0.2 * form).tolist(), 4),
    )
    with pytest.raises(PoiseError, match=r"as --reward correct,form=0\.5"):
        imported(tmp_path / "run", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    imported(tmp_path / "run", tmp_path / "out", reward="correct,form=0.2")
    lines = read_lines(tmp_path / "out" / "rollouts" / "step_00001.jsonl")
    assert [line["reward"] for line in lines] == [1.0, 0.2, 0.0, 0.2]


def test_more_than_one_choice_is_the_users(tmp_path: Path) -> None:
    """Groups of two: an advantage says no more than which of the two was better."""
    rewards = {"correct": [1.0, 0.0, 0.0, 1.0], "form": [0.5, 0.0, 0.0, 0.5]}
    trl_file(tmp_path / "run", rewards=rewards)
    with pytest.raises(PoiseError, match=r"follow both correct and correct \+ form: "):
        imported(tmp_path / "run", tmp_path / "out")
    trl_file(tmp_path / "other", rewards={**rewards, "form": [0.0] * 4})
    assert imported(tmp_path / "other", tmp_path / "out")[0].startswith("reward = correct (")


def test_messages_become_texts(tmp_path: Path) -> None:
    system = {"role": "system", "content": "Be brief."}
    user = {"role": "user", "content": "How many?"}
    assert render_text([user], "") == "How many?"
    assert render_text([system, user], "") == "system: Be brief.\n\nuser: How many?"
    message_parts = [{"type": "image", "text": None}, {"type": "text", "text": "this?"}]
    assert render_text([{"role": "user", "content": message_parts}], "") == "this?"
    trl_file(
        tmp_path / "run",
        prompts=[[system, user]] * 4,
        completions=[[{"role": "assistant", "content": str(i)}] for i in range(4)],
        advantage=advantages([1.0, 0.0, 0.0, 1.0], 4),
    )
    imported(tmp_path / "run", tmp_path / "out")
    lines = read_lines(tmp_path / "out" / "rollouts" / "step_00001.jsonl")
    assert [line["response"] for line in lines] == ["0", "1", "2", "3"]
    assert len({line["group"] for line in lines}) == 1


def test_faults(tmp_path: Path) -> None:
    cut = trl_file(tmp_path / "cut")
    cut.write_bytes(cut.read_bytes()[:-20])
    with pytest.raises(PoiseError, match="is not a complete parquet file"):
        imported(tmp_path / "cut", tmp_path / "out")
    garbled = trl_file(tmp_path / "garbled")
    table = pq.read_table(garbled)
    texts = pa.array([b"fa\xd4("] * table.num_rows).view(pa.string())
    place = table.column_names.index("completion")
    pq.write_table(table.set_column(place, "completion", texts), garbled)
    with pytest.raises(PoiseError, match=r"garbled.* is damaged \(.*UTF8"):
        imported(tmp_path / "garbled", tmp_path / "out")
    bad_name = trl_file(tmp_path / "name")
    bad_name.write_bytes(bad_name.read_bytes().replace(b"completion", b"comp\xa4etion"))
    with pytest.raises(PoiseError, match=r"name.* is not a complete parquet file"):
        imported(tmp_path / "name", tmp_path / "out")
    no_reward = trl_file(tmp_path / "none", rewards={"step": [1.0] * 4})
    with pytest.raises(PoiseError, match="no column of rewards"):
        imported(no_reward, tmp_path / "out")
    table = pq.read_table(trl_file(tmp_path / "none"))
    whole_numbers = table["correct"].cast(pa.int64())
    place = table.column_names.index("correct")
    pq.write_table(table.set_column(place, "correct", whole_numbers), no_reward)
    with pytest.raises(PoiseError, match="TRL writes them as floating-point numbers"):
        imported(no_reward, tmp_path / "out")
    odd = {"step": [{"a": 1}] * 4, "advantage": ["x"] * 4, "prompt": [1.5] * 4}
    for name, values in odd.items():
        file = trl_file(tmp_path / "none")
        table = pq.read_table(file)
        changed = table.set_column(table.column_names.index(name), name, pa.array(values))
        pq.write_table(changed, file)
        with pytest.raises(PoiseError, match=r"not numbers|1\.5 is neither a text nor a list of"):
            imported(file, tmp_path / "out")
        pq.write_table(table.append_column(name, table[name]), file)
        with pytest.raises(PoiseError, match=f"2 columns are called '{name}'"):
            imported(file, tmp_path / "out")
    trl_file(tmp_path / "two", 1)
    trl_file(tmp_path / "two", 2, rewards={"other": [1.0, 0.0, 0.0, 1.0]})
    with pytest.raises(PoiseError, match="import each run by itself"):
        imported(tmp_path / "two", tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cut", "garbled", "name", "none", "two"]
