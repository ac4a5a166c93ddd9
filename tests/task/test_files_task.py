"""Problems from a file: every fault named with its line, and a split that ignores the order."""

import json
import random
import re
from dataclasses import replace

import pytest

from counterpoise.config.load import load_config
from counterpoise.errors import PoiseError
from counterpoise.run.estimate import describe_task
from counterpoise.task.columns import FieldOptions
from counterpoise.task.contamination.items import read_items
from counterpoise.task.files_task import load
from counterpoise.task.split_heldout import normalize_problem
from counterpoise.types import NO_COLUMNS, Prompt
from counterpoise.variants import TASKS

GOOD = '{"id": "a", "problem": "1 + 1 = ?", "answer": "2"}'


def write(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return str(path)


def records(count):
    return [{"id": k, "problem": f"{k} + 1 = ?", "answer": k + 1} for k in range(count)]


def test_records_become_prompts(tmp_path):
    path = tmp_path / "sums.jsonl"
    path.write_bytes(
        b'\xef\xbb\xbf{"id": 7, "problem": " 1 + 1 = ? ", "answer": 2, "solution": "2.", "x": []}\n'
        b"\n"
        b'{"id": "b", "problem": "\\u00bd?", "answer": 0.10, "solution": null}\r\n'
    )
    task = load(str(path), heldout=0)
    assert task.name == "sums"
    assert task.heldout == []
    assert task.train == [
        Prompt(id="7", problem="1 + 1 = ?", answer="2", solution="2.\nThe answer is \\boxed{2}."),
        Prompt(id="b", problem="½?", answer="0.10"),
    ]


def test_fields_can_have_other_names(tmp_path):
    path = write(
        tmp_path / "a.jsonl", [{"key": 1, "q": "1 + 1 = ?", "a": "2", "how": "\\boxed{2}"}]
    )
    names = FieldOptions(problem="q", answer="a", id="key")
    assert load(path, heldout=0, fields=names).train == [Prompt("1", "1 + 1 = ?", "2")]
    task = load(path, heldout=0, fields=replace(names, solution="how"))
    assert task.train == [Prompt("1", "1 + 1 = ?", "2", "\\boxed{2}")]


@pytest.mark.parametrize(
    ("solution", "kept"),
    [
        ("So 3 + 4 = 7. ", "So 3 + 4 = 7.\nThe answer is \\boxed{7}."),
        ("So \\boxed{7}.", "So \\boxed{7}."),
        ("So \\boxed{3 + \\boxed{4}}.", "So \\boxed{3 + \\boxed{4}}."),  # the author's own affair
        ("They boxed 7 pears.", "They boxed 7 pears.\nThe answer is \\boxed{7}."),
        ("Cut off: \\boxed{7", "Cut off: \\boxed{7\nThe answer is \\boxed{7}."),
        (" \n", ""),
        (7, ""),
        (None, ""),
    ],
)
def test_solutions_end_in_a_box_that_the_verifier_reads(tmp_path, solution, kept):
    record = {"id": 1, "problem": "3 + 4 = ?", "answer": 7, "solution": solution}
    (prompt,) = load(write(tmp_path / "a.jsonl", [record]), heldout=0).train
    assert prompt.solution == kept


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no records"),
        (b"\n \n", "no records"),
        (GOOD.encode() + b"\n\xff\xfe\n", r":2: not UTF-8"),
        (GOOD.encode() + b"\n{", r":2: not JSON"),
        (b'{"id": 1, "problem": "p", "answer": NaN}', r":1: not JSON \(NaN"),
        (b"[" * 100_000, r":1: not JSON"),
        (b"[1]", r":1: not an object"),
        (b'{"id": 1, "answer": 2}', r":1: no field 'problem' .*task\.problem_field"),
        (b'{"id": 1, "problem": "p"}', r":1: no field 'answer' \(fields: id, problem\)"),
        (
            b'{"problem": "p", "answer": 2, "id": 1}\n{"problem": "q", "answer": 2}',
            r":2: no field 'id' .*task\.id_field",
        ),
        (b'{"id": 1, "problem": " ", "answer": 2}', r":1: field 'problem' is empty"),
        (b'{"id": 1, "problem": "p", "answer": ""}', r":1: field 'answer' is empty"),
        (b'{"id": 1, "problem": "p", "answer": null}', r":1: field 'answer' is neither"),
        (b'{"id": 1, "problem": "p", "answer": true}', r":1: field 'answer' is neither"),
        (f"{GOOD}\n\n{GOOD}".encode(), r":3: id 'a' is also on line 1"),
    ],
)
def test_faults_name_file_and_line(tmp_path, content, message):
    path = tmp_path / "bad.jsonl"
    path.write_bytes(content)
    with pytest.raises(PoiseError, match=message) as caught:
        load(str(path), heldout=0)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_all_records_with_an_empty_field_are_counted(tmp_path):
    answers = [1, "", 3, " ", 5, ""]
    records = [{"id": n, "problem": f"p{n}", "answer": answer} for n, answer in enumerate(answers)]
    path = write(tmp_path / "gaps.jsonl", records)
    with pytest.raises(PoiseError) as caught:
        load(path, heldout=0)
    assert str(caught.value) == (
        f"{path}:2: field 'answer' is empty, as in 2 other records ({path}:4, {path}:6): "
        "fill in the field, or remove these records"
    )
    with pytest.raises(PoiseError, match="is empty: fill in the field, or remove this record"):
        load(write(tmp_path / "gap.jsonl", records[:2]), heldout=0)


def test_a_relative_path_is_of_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = f" in {tmp_path} \\(paths of data are relative to the current folder\\)"
    with pytest.raises(PoiseError, match=f"none.jsonl: no such file{folder}; name a"):
        load("none.jsonl")
    config = load_config("demo", ["task.name=files", "task.path=none.jsonl"])
    assert re.search(f"none.jsonl does not exist{folder}: the run", describe_task(config)[0])


def test_a_csv_file_names_what_is_read(tmp_path):
    path = tmp_path / "sheet.csv"
    path.write_text("problem,answer\n1 + 1 = ?,2\n")
    message = r"sheet\.csv: \.csv is not read here: write \.jsonl, \.json or \.parquet, or .*hub$"
    with pytest.raises(PoiseError, match=message):
        load(str(path))
    with pytest.raises(PoiseError, match=message):
        read_items(path)


def test_missing_files_and_folders(tmp_path):
    with pytest.raises(PoiseError, match="no such file"):
        load(str(tmp_path / "none.jsonl"))
    with pytest.raises(PoiseError, match=r"a folder without \.jsonl, \.json or \.parquet files"):
        load(str(tmp_path))
    with pytest.raises(PoiseError, match=r"task\.path"):
        TASKS.load("jsonl")("")


def test_the_held_out_problems_do_not_depend_on_the_order(tmp_path):
    rows = records(50)
    first = load(write(tmp_path / "a.jsonl", rows), heldout=10)
    random.Random(0).shuffle(rows)
    second = load(write(tmp_path / "b.jsonl", rows), heldout=10)
    assert first.heldout == second.heldout
    assert len(first.heldout) == 10
    assert {p.id for p in first.train} == {p.id for p in second.train}
    assert [p.id for p in second.train] == [
        str(row["id"]) for row in rows if str(row["id"]) not in {p.id for p in first.heldout}
    ]


def test_adding_a_record_moves_at_most_one(tmp_path):
    before = load(write(tmp_path / "a.jsonl", records(50)), heldout=10)
    after = load(write(tmp_path / "b.jsonl", records(51)), heldout=10)
    assert len({p.id for p in before.heldout} - {p.id for p in after.heldout}) <= 1


@pytest.mark.parametrize("second_file", [False, True])
def test_no_problem_text_is_on_both_sides(tmp_path, second_file):
    rows = records(30) + [
        {"id": f"again{k}", "problem": f" {k}  +\n1 = ? ", "answer": k + 1} for k in range(30)
    ]
    path = write(tmp_path / "a.jsonl", rows)
    other = write(tmp_path / "b.jsonl", records(5)) if second_file else ""
    task = load(path, heldout_path=other, heldout=5)
    assert len(task.heldout) == 5
    assert {normalize_problem(p.problem) for p in task.train}.isdisjoint(
        normalize_problem(p.problem) for p in task.heldout
    )
    assert 50 <= len(task.train) <= 55


def test_nothing_left_to_train_on(tmp_path):
    path = write(tmp_path / "a.jsonl", records(5))
    with pytest.raises(PoiseError, match=r"5 of 5 records.*lower task\.heldout"):
        load(path, heldout=5)
    with pytest.raises(PoiseError, match="also held out"):
        load(path, heldout_path=path)


def test_the_generic_text_of_a_problem_is_kept_for_anchors(tmp_path):
    records = [
        {"id": 1, "problem": "You are Ana. Hi!", "answer": 7, "generic": " Hi! ", "short": "Hi?"},
        {"id": 2, "problem": "3 + 4 = ?", "answer": 7, "generic": None},
    ]
    path = tmp_path / "some.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert [p.generic for p in load(str(path), heldout=0).train] == ["Hi!", ""]
    renamed = load(str(path), heldout=0, fields=FieldOptions(generic="short")).train
    assert [p.generic for p in renamed] == ["Hi?", ""]


def test_all_columns_are_kept(tmp_path):
    rows = [{**row, "marks": [0.50, 1], "level": k} for k, row in enumerate(records(3))]
    del rows[1]["marks"]
    path = write(tmp_path / "a.jsonl", rows)
    kept = load(path, heldout=0, fields=FieldOptions(needed_columns=("marks", "level"))).train
    marks = [[0.5, 1], None, [0.5, 1]]
    assert [p.columns for p in kept] == [
        {**row, "marks": m} for row, m in zip(rows, marks, strict=True)
    ]
    bare = load(path, heldout=0).train
    assert [p.columns for p in bare] == [p.columns for p in kept]
    assert [replace(p, columns=NO_COLUMNS) for p in kept] == bare  # columns are not compared
    assert len({hash(p) for p in kept}) == 3


def test_a_column_that_no_record_has_is_refused_with_those_there_are(tmp_path):
    path = write(tmp_path / "a.jsonl", [{**records(1)[0], "marks": 1}])
    other = write(tmp_path / "b.jsonl", records(2))
    with pytest.raises(PoiseError) as fault:
        load(path, heldout_path=other, fields=FieldOptions(needed_columns=("marks",)))
    assert str(fault.value) == (
        f"{other}: unknown column 'marks' (choices: answer, id, problem), and a reward function's "
        "parameter or update.kl_settings names 'marks': a parameter must be responses, answers, "
        "prompts or the name of a column"
    )


@pytest.mark.parametrize("role", ["id", "problem", "answer", "solution", "generic"])
def test_half_a_surrogate_pair_is_refused(tmp_path, role):
    """JSON can hold it; neither a hash, nor a tokenizer, nor a file of UTF-8 can."""
    record = {"id": "a", "problem": "1 + 1 = ?", "answer": "2", "solution": "s", "generic": "g"}
    path = tmp_path / "problems.jsonl"
    path.write_text(json.dumps({**record, role: "x\ud800"}) + "\n")
    with pytest.raises(PoiseError, match=f"jsonl:1: the {role} holds half a surrogate pair"):
        load(str(path), heldout=0)
    path.write_text(json.dumps({**record, role: "\U0001f600"}) + "\n")  # a whole pair
    assert len(load(str(path), heldout=0).train) == 1
