"""Tables of rollouts that any script may have logged: recognised and named columns, all formats."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hosts.importing.foreign import read_lines

from counterpoise.errors import PoiseError
from counterpoise.hosts.importing.formats import identify_trainer
from counterpoise.hosts.importing.write_folder import ImportSummary, import_run

# Two steps of two prompts with two responses each.
ROWS: list[dict[str, Any]] = [
    {"step": step, "prompt": f"{n} + {step}?", "response": text, "reward": reward}
    for step in (3, 4)
    for n in (1, 2)
    for text, reward in ((f"{n + step}", 1.0), ("none", 0.0))
]


def write_rows(file: Path, rows: list[dict[str, Any]]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif file.suffix == ".json":
        file.write_text(json.dumps(rows))
    elif file.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), file)
    else:
        with file.open("w", newline="") as lines:
            writer = csv.DictWriter(lines, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return file


def import_table(path: Path, out: Path, **options: str) -> ImportSummary:
    return import_run(path, out, tokenizer="embedded", **options)


def rollouts_of_step(out: Path, step: int) -> list[dict[str, Any]]:
    return read_lines(out / "rollouts" / f"step_{step:05d}.jsonl")


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".parquet", ".csv"])
def test_all_formats_give_the_same_rollouts(suffix: str, tmp_path: Path) -> None:
    summary = import_table(write_rows(tmp_path / f"log{suffix}", ROWS), tmp_path / "out")
    assert (summary.source, summary.steps, summary.rollouts) == ("your own trainer", 2, 8)
    assert summary.groups == 4
    assert (
        summary.notes[0]
        == "columns: prompt = prompt, response = response, step = step, reward = reward"
    )
    lines = rollouts_of_step(tmp_path / "out", 4)
    assert [line["reward"] for line in lines] == [1.0, 0.0, 1.0, 0.0]
    assert [line["response"] for line in lines] == ["5", "none", "6", "none"]
    assert len({line["group"] for line in lines}) == 2
    first_of_3 = rollouts_of_step(tmp_path / "out", 3)[0]
    assert first_of_3["prompt"] == "1 + 3?"
    assert first_of_3["prompt_id"] != lines[0]["prompt_id"]  # 1 + 4?
    assert all(line["response_tokens"] for line in lines)


def test_rows_of_a_step_may_lie_apart(tmp_path: Path) -> None:
    """As two ranks write them, each to a file of its own; prime-rl's files have the same names."""
    write_rows(tmp_path / "logs" / "rank_0.jsonl", ROWS[::2])
    write_rows(tmp_path / "logs" / "rank_1.jsonl", ROWS[1::2])
    summary = import_table(tmp_path / "logs", tmp_path / "out")
    assert (summary.steps, summary.rollouts, summary.groups) == (2, 8, 4)
    assert len({line["group"] for line in rollouts_of_step(tmp_path / "out", 3)}) == 2


def test_columns_are_named(tmp_path: Path) -> None:
    rows = [
        {"q": row["prompt"], "text": row["response"], "info": {"it": row["step"]},
         "scores": {"right": row["reward"], "form": 0.5}}
        for row in ROWS
    ]  # fmt: skip
    log = write_rows(tmp_path / "log.jsonl", rows)
    with pytest.raises(PoiseError, match=r"no column of prompts .*\(columns: q, text, info\.it"):
        import_table(log, tmp_path / "out", name="table")
    names = "prompt=q,response=text,step=info.it"
    with pytest.raises(PoiseError, match="no column of rewards is recognised"):
        import_table(log, tmp_path / "out", columns=names)
    summary = import_table(log, tmp_path / "out", columns=f"{names},reward=scores.right")
    assert (summary.steps, summary.rollouts) == (2, 8)
    summary = import_table(
        log, tmp_path / "sum", columns=names, reward="scores.right,scores.form=0.2"
    )
    assert summary.notes[0].endswith("reward = scores.right + 0.2 scores.form")
    rewards = [line["reward"] for line in rollouts_of_step(tmp_path / "sum", 3)]
    assert rewards == pytest.approx([1.1, 0.1, 1.1, 0.1])
    with pytest.raises(PoiseError, match="both name the reward"):
        import_table(
            log, tmp_path / "both", columns=f"{names},reward=scores.right", reward="scores.form"
        )
    with pytest.raises(PoiseError, match=r"'scores\.rigth'"):
        import_table(log, tmp_path / "typo", columns=f"{names},reward=scores.rigth")
    with pytest.raises(PoiseError, match="'promt'"):
        import_table(log, tmp_path / "typo", columns="promt=q")
    with pytest.raises(PoiseError, match="--columns is for tables"):
        import_table(log, tmp_path / "typo", columns=names, name="trl")


def test_a_row_may_hold_all_responses_of_a_prompt(tmp_path: Path) -> None:
    rows = [
        {"global_step": 1, "question": "1 + 1?", "outputs": ["2", "3", "22"],
         "scores": [1, 0, None], "finish_reason": ["stop", "length", "stop"]}
    ]  # fmt: skip
    summary = import_table(write_rows(tmp_path / "log.jsonl", rows), tmp_path / "out")
    assert (summary.rollouts, summary.groups) == (2, 1)
    assert "left out because they have no reward: 1 rollout" in summary.notes
    lines = rollouts_of_step(tmp_path / "out", 1)
    assert [(line["response"], line["reward"], line["finished"]) for line in lines] == [
        ("2", 1.0, True),
        ("3", 0.0, False),
    ]
    rows[0]["scores"] = [1, 0]
    log = write_rows(tmp_path / "short.jsonl", rows)
    with pytest.raises(
        PoiseError, match="line 1, response 1: the row has 3 responses, so 'scores'"
    ):
        import_table(log, tmp_path / "short")


def test_messages_hold_the_response(tmp_path: Path) -> None:
    """What the assistant says is the response; what others say in between is the environment's."""
    single = {"messages": [{"role": "user", "content": "1 + 1?"},
                           {"role": "assistant", "content": "2"}], "correct": True}  # fmt: skip
    sharegpt = {"messages": [{"from": "human", "value": "1 + 1?"}, {"from": "gpt", "value": "3"},
                             {"from": "human", "value": "Sure?"}, {"from": "gpt", "value": "2"}],
                "correct": False}  # fmt: skip
    log = write_rows(tmp_path / "log.jsonl", [single, sharegpt])
    summary = import_table(log, tmp_path / "out")
    assert (summary.steps, summary.rollouts, summary.groups) == (1, 2, 1)
    assert any(note.startswith("the rows name no step") for note in summary.notes)
    one, two = rollouts_of_step(tmp_path / "out", 1)
    assert (one["prompt"], one["response"], one["reward"]) == ("1 + 1?", "2", 1.0)
    assert two["response"] == "3\n\nSure?\n\n2"
    assert two["reward"] == 0.0
    assert [turn["start"] for turn in two["turns"]] == [0, 1]  # "3" and "2" are a token each
    assert len(two["response_tokens"]) == 2


def test_tokens_of_the_table_are_kept(tmp_path: Path) -> None:
    """Then no tokenizer is needed; a column of that name may also hold their number."""
    row = {"prompt": "1 + 1?", "completion": "2", "reward": 1.0, "prompt_ids": [5, 6]}
    ids = {**row, "completion_ids": [7, 8], "logprobs": [-0.5, -0.25], "advantages": 0.5}
    log = write_rows(tmp_path / "ids.jsonl", [ids])
    import_run(log, tmp_path / "ids")
    (line,) = rollouts_of_step(tmp_path / "ids", 1)
    assert (line["prompt_tokens"], line["response_tokens"]) == ([5, 6], [7, 8])
    assert (line["sampled_logprobs"], line["advantage"]) == ([-0.5, -0.25], 0.5)
    log = write_rows(tmp_path / "counts.jsonl", [{**row, "completion_tokens": 12}])
    import_run(log, tmp_path / "counts")
    (line,) = rollouts_of_step(tmp_path / "counts", 1)
    assert line["num_tokens"] == 12
    log = write_rows(tmp_path / "some.jsonl", [ids, row])
    with pytest.raises(PoiseError, match="line 2: no tokens: name the tokenizer"):
        import_run(log, tmp_path / "some")
    log = write_rows(tmp_path / "texts.jsonl", [row])
    with pytest.raises(PoiseError, match="texts without token counts: name the tokenizer"):
        import_run(log, tmp_path / "texts")


def test_groups_may_be_named(tmp_path: Path) -> None:
    rows = [{**row, "group": index // 4, "prompt_id": "p"} for index, row in enumerate(ROWS)]
    summary = import_table(write_rows(tmp_path / "log.jsonl", rows), tmp_path / "out")
    assert summary.groups == 2
    assert {line["prompt_id"] for line in rollouts_of_step(tmp_path / "out", 4)} == {"p"}


def test_files_are_steps_where_rows_name_none(tmp_path: Path) -> None:
    rows = [{name: row[name] for name in row if name != "step"} for row in ROWS]
    for number in (9, 10):
        write_rows(tmp_path / "logs" / f"rollouts_{number}.jsonl", rows)
    (tmp_path / "logs" / "metrics.jsonl").write_text('{"loss": 1.0}\n')
    summary = import_table(tmp_path / "logs", tmp_path / "out")
    assert (summary.steps, summary.rollouts) == (2, 16)
    assert len(rollouts_of_step(tmp_path / "out", 10)) == 8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reward": "good"}, "line 2: the reward 'reward' 'good' is not a number"),
        ({"reward": float("nan")}, "left out"),
        ({"step": 1.5}, "line 2: the step '1.5' is not a whole number"),
        ({"prompt": None}, "line 2: no prompt in the column 'prompt'"),
        ({"response": None}, "line 2: no response: name its column"),
        ({"response": 5}, "line 2: 5 is neither a text nor a list of messages"),
    ],
)
def test_bad_values_are_named(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    log = write_rows(tmp_path / "log.jsonl", [ROWS[0], {**ROWS[1], **change}])
    if message == "left out":
        notes = import_table(log, tmp_path / "out").notes
        assert "left out because they have no reward: 1 rollout" in notes
        return
    with pytest.raises(PoiseError) as caught:
        import_table(log, tmp_path / "out")
    assert message in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_damaged_files_are_one_line(tmp_path: Path) -> None:
    torn = write_rows(tmp_path / "torn.jsonl", ROWS)
    torn.write_text(torn.read_text()[:-10])
    summary = import_table(torn, tmp_path / "torn")
    assert summary.rollouts == 7
    assert f"left out because it is cut off: the last line of {torn}" in summary.notes
    for suffix in (".parquet", ".json", ".csv"):
        file = tmp_path / f"damaged{suffix}"
        file.write_bytes(b'PAR1{"a": \xff\n')
        with pytest.raises(PoiseError):
            import_table(file, tmp_path / "out")
    ragged = tmp_path / "ragged.csv"
    ragged.write_text("prompt,response,reward\n1?,2,1.0\n1?,2\n")
    with pytest.raises(PoiseError, match="row 2: another number of cells"):
        import_table(ragged, tmp_path / "out")
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    with pytest.raises(PoiseError, match="no rows in it"):
        import_table(empty, tmp_path / "out", name="table")


def test_other_trainers_are_recognised_first(tmp_path: Path) -> None:
    """Any JSON lines could be a table, so a table is what nothing else recognises."""
    row = {"input": "1?", "output": "1", "score": 1.0, "step": 7, "gts": "1"}
    log = write_rows(tmp_path / "logs" / "7.jsonl", [row])
    assert import_table(tmp_path / "logs", tmp_path / "out").source == "verl"
    assert import_table(log, tmp_path / "named", name="table").source == "your own trainer"
    write_rows(tmp_path / "table" / "log.jsonl", ROWS)
    assert identify_trainer(tmp_path / "table") == "your own trainer"
    write_rows(tmp_path / "notes" / "log.jsonl", [{"text": "hello"}])
    assert identify_trainer(tmp_path / "notes") == ""
    with pytest.raises(PoiseError, match="names of columns: --columns prompt=NAME"):
        import_table(tmp_path / "notes", tmp_path / "other")


@pytest.mark.parametrize(
    ("column", "cut_off", "ended"),
    [
        ("truncated", True, False),
        ("finished", False, True),
        ("finish_reason", "length", "stop"),
        ("stop_reason", "max_tokens", "eos"),
        ("truncated", "True", "False"),  # as a CSV file of pandas has them
    ],
)
def test_how_responses_ended(column: str, cut_off: Any, ended: Any, tmp_path: Path) -> None:
    rows = [{**ROWS[0], column: cut_off}, {**ROWS[1], column: ended}]
    import_table(write_rows(tmp_path / "log.jsonl", rows), tmp_path / "out")
    lines = rollouts_of_step(tmp_path / "out", 3)
    assert [line["finished"] for line in lines] == [False, True]
