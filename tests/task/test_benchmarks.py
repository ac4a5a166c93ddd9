"""The table of benchmarks, and files that are missing, empty or named otherwise."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from counterpoise.errors import PoiseError
from counterpoise.lab.evaluate import PAPER
from counterpoise.model.templates import AUTO, TEMPLATES
from counterpoise.task import benchmarks
from counterpoise.task.benchmarks import (
    BENCHMARKS,
    digest_problems,
    find_benchmark,
    load_problems,
)
from counterpoise.task.columns import final_answer
from counterpoise.types import Prompt

DATA = Path(__file__).parents[3] / "shared" / "data"
COUNTS = {
    "aime24": 30, "aime25": 30, "amc23": 40, "olympiadbench": 675, "minerva": 272, "math500": 500,
    "gsm8k": 1319, "amc83": 83, "math": 5000,
}  # fmt: skip


def write(path: Path, *records: object) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def test_the_paper_s_six() -> None:
    samples = {name: BENCHMARKS[name].samples for name in PAPER}
    assert samples == {
        "aime24": 32, "aime25": 32, "amc23": 32, "olympiadbench": 1, "minerva": 1, "math500": 1,
    }  # fmt: skip
    assert all(one.template in (AUTO, *TEMPLATES) for one in BENCHMARKS.values())


@pytest.mark.skipif(not DATA.is_dir(), reason="the benchmark files are not on this machine")
@pytest.mark.parametrize("name", COUNTS)
def test_the_real_files(name: str) -> None:
    assert len(load_problems(find_benchmark(name, DATA), DATA)) == COUNTS[name]


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    write(tmp_path / "mine.jsonl", {"id": 7, "problem": "1 + 1?", "answer": 2})
    mine = find_benchmark("mine", tmp_path)
    assert (mine.samples, mine.template) == (1, AUTO)
    assert load_problems(mine, tmp_path) == [Prompt("7", "1 + 1?", "2")]


def test_other_names_of_fields(tmp_path: Path) -> None:
    write(tmp_path / "mine.jsonl", {"n": 1, "question": "1 + 1?", "gold": "2"})
    fields = {"id": "n", "problem": "question", "answer": "gold"}
    assert load_problems(find_benchmark("mine", tmp_path), tmp_path, fields) == [
        Prompt("1", "1 + 1?", "2")
    ]


def test_other_files_and_columns_are_read_as_training_data_is(tmp_path: Path) -> None:
    rows = [{"question": "1 + 1?", "answer": "1 + 1 = <<1+1=2>>2\n#### 2"}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "gsm8k_test.parquet")
    (prompt,) = load_problems(find_benchmark("gsm8k", tmp_path), tmp_path)
    assert prompt == Prompt("0", "1 + 1?", "2", "1 + 1 = 2\nThe answer is \\boxed{2}.")
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 1?"}]
    (tmp_path / "talk.json").write_text(json.dumps({"data": [{"messages": chat, "target": 2}]}))
    (talk,) = load_problems(find_benchmark("talk", tmp_path), tmp_path)
    assert (talk.problem, talk.answer, len(talk.messages)) == ("1 + 1?", "2", 2)
    assert digest_problems([talk]) != digest_problems([replace(talk, messages=())])
    (tmp_path / "open.json").write_text(json.dumps([{"prompt": "Say something."}]))
    benchmark = find_benchmark("open", tmp_path)
    with pytest.raises(PoiseError, match=r"row 0: no field 'answer' .*nor reward_model.ground_tr"):
        load_problems(benchmark, tmp_path)
    assert load_problems(benchmark, tmp_path, answers_required=False)[0].answer == ""


def test_missing_wrong_and_empty(tmp_path: Path) -> None:
    with pytest.raises(PoiseError, match=r"unknown benchmark 'aime2': did you mean 'aime2[45]'"):
        find_benchmark("aime2", tmp_path)
    write(tmp_path / "my_words.jsonl", {"id": 1, "problem": "1 + 1?", "answer": "2"})
    with pytest.raises(PoiseError, match=r"unknown benchmark 'my_wrds': did you mean 'my_words'"):
        find_benchmark("my_wrds", tmp_path)
    with pytest.raises(PoiseError, match=r"--data .*nowhere: no such folder"):
        find_benchmark("my_words", tmp_path / "nowhere")
    write(tmp_path / "gsm8k_test.jsonl", {"id": 1, "quest": "1 + 1?", "answer": "2"})
    with pytest.raises(
        PoiseError, match=r"aime24: no file aime24.jsonl in .*its files: gsm8k_test"
    ):
        load_problems(find_benchmark("aime24", tmp_path), tmp_path)
    with pytest.raises(PoiseError, match=r"jsonl:1: no field 'problem' .*--fields problem=NAME"):
        load_problems(find_benchmark("gsm8k", tmp_path), tmp_path)
    write(tmp_path / "empty.jsonl")
    with pytest.raises(PoiseError, match=r"empty.jsonl: no records"):
        load_problems(find_benchmark("empty", tmp_path), tmp_path)
    with pytest.raises(PoiseError, match=r"amc83 is not on the hub: give --data"):
        load_problems(find_benchmark("amc83", None), None)


def test_from_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows as the datasets have them: another column's name, several answers, a worked solution."""
    rows = {
        "Hothan/OlympiadBench:OE_TO_maths_en_COMP": [
            {"question": "Find x.", "final_answer": ["$2$", "3"]}
        ],
        "openai/gsm8k:main": [{"question": "How much?", "answer": "9 * 2 = 18\n#### 1,018"}],
        "math-ai/aime25": [{"question": "?", "answer": "70"}],
        "math-ai/amc23": [],
    }
    monkeypatch.setattr(benchmarks.hub, "open_split", lambda name, split: rows[name])
    assert load_problems(find_benchmark("olympiadbench", None), None) == [
        Prompt("olympiadbench-0", "Find x.", "2")
    ]
    assert load_problems(find_benchmark("gsm8k", None), None) == [
        Prompt("gsm8k-0", "How much?", "1018")  # of a table's column only the answer is read
    ]
    with pytest.raises(PoiseError, match="no column 'problem'"):
        load_problems(find_benchmark("aime25", None), None)
    with pytest.raises(PoiseError, match="no rows"):
        load_problems(find_benchmark("amc23", None), None)


def test_a_digest_knows_any_change() -> None:
    one = [Prompt("1", "a", "b"), Prompt("2", "c", "d")]
    others = [one[:1], one[::-1], [Prompt("1", "a", "b"), Prompt("2", "c", "e")]]
    assert len({digest_problems(found) for found in [one, *others]}) == 4
    assert digest_problems(one) == digest_problems(list(one))
    assert final_answer(5) == 5
