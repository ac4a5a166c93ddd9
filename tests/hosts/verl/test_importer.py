from __future__ import annotations

from pathlib import Path

import pytest
from hosts.importing.foreign import read_lines, verl_file, write_lines

from counterpoise.errors import PoiseError
from counterpoise.hosts.importing.write_folder import import_run
from counterpoise.hosts.verl.importer import find_files


def lines_of(folder: Path, out: Path, step: int = 1) -> list[dict]:
    import_run(folder, out, tokenizer="embedded")
    return read_lines(out / "rollouts" / f"step_{step:05d}.jsonl")


def test_rollouts_of_one_uid_are_a_group_though_prompts_are_equal(tmp_path: Path) -> None:
    verl_file(tmp_path / "run", step=7)
    lines = lines_of(tmp_path / "run", tmp_path / "out", 7)
    assert [line["group"] for line in lines] == ["7:a-0", "7:a-0", "7:a-1", "7:a-1"]
    assert len({line["prompt_id"] for line in lines}) == 1
    assert [line["reward"] for line in lines] == [0.0, 1.0, 0.0, 1.0]
    assert {line["answer"] for line in lines} == {"3"}
    assert [line["response"] for line in lines] == [f"{i} pens" for i in range(4)]


def test_without_uid_equal_inputs_are_a_group(tmp_path: Path) -> None:
    verl_file(tmp_path / "run", uid=False)
    lines = lines_of(tmp_path / "run", tmp_path / "out")
    groups = [line["group"] for line in lines]
    assert groups[0] == groups[1] != groups[2] == groups[3]


def test_references_need_not_be_texts(tmp_path: Path) -> None:
    verl_file(tmp_path / "run", gts={"numbers": [1, 2]})
    assert lines_of(tmp_path / "run", tmp_path / "out")[0]["answer"] == '{"numbers": [1, 2]}'
    verl_file(tmp_path / "other", gts=None)
    assert lines_of(tmp_path / "other", tmp_path / "out2")[0]["answer"] == ""


def test_half_a_surrogate_pair_is_replaced(tmp_path: Path) -> None:
    verl_file(tmp_path / "run", output="a \ud83d b")
    assert lines_of(tmp_path / "run", tmp_path / "out")[0]["response"] == "a \ufffd b"


def test_steps_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for step in (10, 9, 100):
        verl_file(tmp_path / "run", step)
    assert [file.name for file in find_files(tmp_path / "run")] == [
        "9.jsonl",
        "10.jsonl",
        "100.jsonl",
    ]
    import_run(tmp_path / "run", tmp_path / "out", tokenizer="embedded")
    metrics = read_lines(tmp_path / "out" / "metrics.jsonl")
    assert [record["iteration"] for record in metrics] == [9, 10, 100]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"score": "good"}, "line 1: the reward 'good' is not a number"),
        ({"score": float("nan")}, "line 1: the reward nan is not finite"),
        ({"score": 1e101}, r"line 1: the reward 1e\+101 is not finite, or beyond 1e\+100: remove"),
        ({"step": -1}, "line 1: the step '-1' is not a whole number from 0"),
        ({"output": None}, "line 1: 'output' is not a text"),
    ],
)
def test_faulty_values(tmp_path: Path, change: dict, message: str) -> None:
    (record, *other_records) = read_lines(verl_file(tmp_path / "run"))
    write_lines(tmp_path / "run" / "1.jsonl", [record | change, *other_records])
    with pytest.raises(PoiseError, match=message):
        import_run(tmp_path / "run", tmp_path / "out", tokenizer="embedded")
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_two_files_of_one_step(tmp_path: Path) -> None:
    verl_file(tmp_path / "run", 1)
    write_lines(tmp_path / "run" / "2.jsonl", read_lines(tmp_path / "run" / "1.jsonl"))
    with pytest.raises(PoiseError, match="holds step 1 twice"):
        import_run(tmp_path / "run", tmp_path / "out", tokenizer="embedded")


def test_a_reward_function_may_log_a_field_of_another_format(tmp_path: Path) -> None:
    file = verl_file(tmp_path / "run", 3, sample_idx=0)
    assert find_files(tmp_path / "run") == find_files(file) == [file]
