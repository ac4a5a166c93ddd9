"""A run that trains on a benchmark says so, at the terminal, in its folder and in its report."""

import json

import pytest
from task.contamination.test_copy_rules import BEEKEEPER, LATTICE, NOISE, REWORDED

from counterpoise.config import RunConfig
from counterpoise.config.load import load_config
from counterpoise.errors import PoiseError
from counterpoise.lab.choose_page import write_report
from counterpoise.loop import train
from counterpoise.run.observer import RunObserver
from counterpoise.store.folder import RunFolder
from counterpoise.task.contamination.items import BenchmarkItems
from counterpoise.task.contamination.training_overlap import (
    load_benchmarks,
    overlap_warnings,
    warn_of_overlap,
)
from counterpoise.types import Prompt


class Heard(RunObserver):
    def __init__(self):
        self.lines = []

    def notify(self, message):
        self.lines.append(message)


def sets(path, benchmarks):
    names = ", ".join(f"'{name}'" for name in benchmarks)
    return [
        "loop.iterations=1", "task.name='jsonl'", f"task.path='{path}'", "task.heldout=4",
        f"task.benchmarks=[{names}]", "sample.prompts=2", "sample.group_size=2",
        "sample.max_new_tokens=4", "balance.tau=0", "batch.steps=1", "evaluate.prompts=0",
        "model.device='cpu'",
    ]  # fmt: skip


@pytest.fixture
def files(tmp_path):
    prompts = [{"id": i.id, "problem": i.problem, "answer": i.answer} for i in NOISE[:20]]
    prompts.append({"id": "copy", "problem": REWORDED, "answer": "8"})
    # held-out prompts are not trained on; of these ids, `copy` is none
    (tmp_path / "train.jsonl").write_text("\n".join(json.dumps(p) for p in prompts))
    for item in (BEEKEEPER, LATTICE):
        (tmp_path / f"{item.id}.jsonl").write_text(
            json.dumps({"problem": item.problem, "answer": item.answer})
        )
    return tmp_path


def test_a_run_warns_stores_and_reports_it(files):
    config = load_config(
        "demo", sets(files / "train.jsonl", [files / "bees.jsonl", files / "lattice.jsonl"])
    )
    heard = Heard()
    folder = train(config, files / "run", observer=heard)
    assert heard.lines[:2] == [
        "train: reading prompts from 'problem', answers from 'answer'",
        "looking for 2 benchmark problems among 17 training prompts",
    ]
    assert "WARNING: 1 of 1 problems of bees are in the training set (1 reworded)" in heard.lines
    assert not any("lattice" in line for line in heard.lines)
    stored = json.loads((folder.path / "contamination.json").read_text())
    assert [(b["name"], b["copied"]) for b in stored["benchmarks"]] == [("bees", 1), ("lattice", 0)]
    assert "Benchmarks in the training set" in write_report(folder.path).read_text()


def test_the_remedy_of_a_run_is_one_that_it_has(tmp_path):
    (tmp_path / "bench.jsonl").write_text(json.dumps({"text": "1 + 1?", "answer": "2"}))
    with pytest.raises(PoiseError, match=r"no field 'problem' .*; rename the field to problem"):
        load_benchmarks([str(tmp_path / "bench.jsonl")])


def test_a_resumed_run_repeats_what_is_stored(tmp_path):
    folder, told = RunFolder.create(tmp_path / "run", RunConfig()), ([], [])
    prompts, benchmarks = (
        [Prompt("p", BEEKEEPER.problem, "8")],
        [BenchmarkItems("bees", [BEEKEEPER])],
    )
    for lines in told:
        warn_of_overlap(prompts, benchmarks, folder, lines.append)
    assert told[0][0].startswith("looking for 1 benchmark problems")
    assert told[0][1:] == told[1]
    assert len(told[1]) == 2


def test_a_run_without_benchmarks_looks_for_none(files):
    heard = Heard()
    folder = train(
        load_config("demo", sets(files / "train.jsonl", [])), files / "r", observer=heard
    )
    assert not (folder.path / "contamination.json").exists()
    assert not any("benchmark" in line for line in heard.lines)
    assert "Benchmarks in the training set" not in write_report(folder.path).read_text()


def test_a_missing_benchmark_ends_a_run_before_it_begins(files):
    config = load_config("demo", sets(files / "train.jsonl", [files / "none.jsonl"]))
    with pytest.raises(PoiseError, match=r"none\.jsonl: no such file"):
        train(config, files / "run")
    assert not (files / "run").exists()


def test_no_copies_no_warning():
    data = {"train": 9, "train_copies": 0, "benchmarks": [
        {"name": "x", "items": 5, "copied": 0, "exact": 0, "near": 0, "reworded": 0,
         "translated": 0, "related": 3}]}  # fmt: skip
    assert overlap_warnings(data) == []
