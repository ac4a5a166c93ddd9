"""Datasets through the `datasets` package, from local folders and without a network."""

import builtins
import json
from dataclasses import replace
from pathlib import Path

import pytest

from counterpoise.errors import PoiseError
from counterpoise.task.columns import FieldOptions
from counterpoise.task.hub import load
from counterpoise.variants import TASKS

datasets = pytest.importorskip("datasets", reason="the hub extra is not installed")


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    import huggingface_hub

    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


def rows(start, count):
    return [
        {"question": f"{k} + 1 = ?", "final": k + 1, "solution": f"{k + 1}."}
        for k in range(start, start + count)
    ]


FIELDS = FieldOptions(problem="question", answer="final")


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "sums"
    folder.mkdir()
    for split, start, count in (("train", 0, 20), ("test", 18, 4)):
        lines = [json.dumps(row) for row in rows(start, count)]
        (folder / f"{split}.jsonl").write_text("\n".join(lines))
    return str(folder)


def test_two_splits(folder):
    task = load(folder, heldout_split="test", fields=FIELDS)
    assert [p.id for p in task.heldout] == [f"test/{k}" for k in range(4)]
    assert [p.problem for p in task.train] == [f"{k} + 1 = ?" for k in range(18)]  # 18, 19 held out
    assert (task.train[3].id, task.train[3].answer, task.train[3].solution) == (
        "train/3",
        "4",
        "4.\nThe answer is \\boxed{4}.",
    )


def test_one_split_is_divided(folder):
    task = TASKS.load("hub")(folder, heldout=5, fields=FIELDS)
    assert (len(task.train), len(task.heldout)) == (15, 5)
    assert {p.id for p in task.train}.isdisjoint(p.id for p in task.heldout)


def test_parquet(tmp_path):
    folder = tmp_path / "parquet"
    folder.mkdir()
    table = [{"id": f"r{k}", "problem": f"{k}?", "answer": f"{k}"} for k in range(4)]
    datasets.Dataset.from_list(table).to_parquet(str(folder / "train.parquet"))
    task = load(str(folder), heldout=1)
    assert sorted(p.id for p in [*task.train, *task.heldout]) == [f"train/r{k}" for k in range(4)]


@pytest.mark.parametrize("with_splits", [False, True])
def test_a_folder_written_by_save_to_disk(tmp_path, with_splits):
    saved = datasets.Dataset.from_list(rows(0, 4))
    if with_splits:
        saved = datasets.DatasetDict({"train": saved})
    saved.save_to_disk(str(tmp_path / "saved"))
    assert len(load(str(tmp_path / "saved"), heldout=1, fields=FIELDS).train) == 3
    with pytest.raises(PoiseError, match=r"no split 'dev' \(splits: train\)"):
        load(str(tmp_path / "saved"), train_split="dev", fields=FIELDS)


def test_faults_are_one_line_with_the_remedy(folder):
    faults = [
        ({"train_split": "dev"}, r"no split 'dev' \(splits: .*test.*\); set task\.train_split"),
        (
            {"fields": replace(FIELDS, problem="text")},
            r"no column 'text' \(columns: question.*task\.problem_field",
        ),
        ({"heldout_split": "train"}, r"both 'train'"),
        ({"fields": replace(FIELDS, id="source")}, r"column 'source' repeats"),
        ({"heldout": 20}, r"20 of 20 records.*task\.heldout"),
    ]
    lines = [json.dumps({**row, "source": "x"}) for row in rows(0, 20)]
    Path(folder, "train.jsonl").write_text("\n".join(lines))
    for options, message in faults:
        with pytest.raises(PoiseError, match=message) as caught:
            load(folder, **{"fields": FIELDS, **options})
        assert "\n" not in str(caught.value)


def test_unknown_dataset_and_no_network():
    with pytest.raises(PoiseError, match=r"nobody/nothing: cannot be loaded.*check task\.path"):
        load("nobody/nothing")
    with pytest.raises(PoiseError, match=r"set task\.path"):
        load("")


def test_the_missing_package_is_named(monkeypatch, folder):
    real_import = builtins.__import__

    def without_datasets(name, *args, **kwargs):
        if name == "datasets":
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_datasets)
    with pytest.raises(PoiseError, match=r"pip install 'counterpoise\[hub\]'"):
        load(folder, fields=FIELDS)


def test_all_columns_are_kept(folder):
    task = load(
        folder, heldout_split="test", fields=replace(FIELDS, needed_columns=("final", "solution"))
    )
    assert [p.columns for p in task.heldout] == rows(18, 4)
    assert load(folder, heldout=0, fields=FIELDS).train[0].columns == rows(0, 1)[0]
    with pytest.raises(PoiseError, match=r"'finals': did you mean 'final'\? \(choices: final, que"):
        load(folder, heldout=5, fields=replace(FIELDS, needed_columns=("finals",)))


def test_columns_are_recognised(tmp_path):
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 1?"}]
    table = [{"messages": chat, "reward_model": {"ground_truth": "2"}, "uuid": "x"}] * 2
    datasets.Dataset.from_list(table).save_to_disk(str(tmp_path / "saved"))
    task = load(str(tmp_path / "saved"), heldout=0)
    assert [p.id for p in task.train] == ["train/0", "train/1"]  # the uuids repeat
    assert [(p.problem, p.answer) for p in task.train] == [("1 + 1?", "2")] * 2
    assert [m.role for m in task.train[0].messages] == ["system", "user"]
    assert task.columns_line.startswith("reading prompts from 'messages' (chat), answers from 'rew")
    rows = [{**row, "uuid": f"u{k}", "extra": {"index": 7 * k}} for k, row in enumerate(table)]
    datasets.Dataset.from_list(rows).save_to_disk(str(tmp_path / "named"))
    for name, ids in (("id", ["u0", "u1"]), ("extra.index", ["0", "7"]), ("", ["0", "1"])):
        named = load(str(tmp_path / "named"), heldout=0, fields=FieldOptions(id=name))
        assert [p.id for p in named.train] == [f"train/{value}" for value in ids]
    with pytest.raises(PoiseError, match=r"no column 'uid' .*; set task\.id_field"):
        load(str(tmp_path / "named"), heldout=0, fields=FieldOptions(id="uid"))
    flat = datasets.Dataset.from_list(rows).flatten()  # its columns have names such as extra.index
    flat.save_to_disk(str(tmp_path / "flat"))
    named = load(str(tmp_path / "flat"), heldout=0, fields=FieldOptions(id="extra.index"))
    assert [p.id for p in named.train] == ["train/0", "train/7"]
    datasets.Dataset.from_list([{"text": "?"}]).save_to_disk(str(tmp_path / "bare"))
    with pytest.raises(PoiseError, match=r"row 0: no field 'problem' \(fields: text\), nor prompt"):
        load(str(tmp_path / "bare"), heldout=0)
