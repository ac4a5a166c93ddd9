"""`poise contamination` as users meet it: counts, pages, cleaned files, one line for each fault."""

import json
import re
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from task.contamination.test_copy_rules import BEEKEEPER, CHINESE, LATTICE, NOISE, REWORDED

from counterpoise.cli import main


def line(item, **more):
    return json.dumps({"id": item.id, "problem": item.problem, "answer": item.answer, **more})


@pytest.fixture
def files(tmp_path):
    train = [line(item) for item in NOISE[:40]]
    train[3:3] = [json.dumps({"problem": REWORDED, "answer": 8, "more": "<b>\u2028"})]
    train += ["", json.dumps({"id": "zh", "problem": CHINESE, "answer": "23"}, ensure_ascii=False)]
    (tmp_path / "train.jsonl").write_text("\n".join(train), encoding="utf-8")
    (tmp_path / "one.jsonl").write_text(line(BEEKEEPER), encoding="utf-8")
    (tmp_path / "two.jsonl").write_text(line(LATTICE) + "\n", encoding="utf-8")
    return tmp_path


def poise(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["poise", "contamination", *map(str, arguments)])
    try:
        main()
    except SystemExit as stopped:
        return stopped.code or 0
    return 0


def test_counts_page_and_clean_file(files, monkeypatch, capsys):
    page, clean = files / "pairs.html", files / "clean.jsonl"
    code = poise(
        monkeypatch, "--train", files / "train.jsonl", "--bench", files / "one.jsonl",
        files / "two.jsonl", "--out", page, "--write-clean", clean,
    )  # fmt: skip
    out = capsys.readouterr().out
    assert code == 0
    assert "2 of 42 training prompts are copies" in out
    train = (files / "train.jsonl").read_text(encoding="utf-8").split("\n")
    kept = [raw for raw in train if raw and "Ghent" not in raw and "数列" not in raw]
    assert clean.read_text(encoding="utf-8").split("\n")[:-1] == kept
    html = page.read_text(encoding="utf-8")
    assert all(text in html for text in ("<mark>", "求最小的", "line 4"))
    assert not re.search(r"""(?:src|href)=["']https?:""", html)


@pytest.mark.parametrize("name", ["train.jsonl", "one.jsonl"])
@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--write-clean", "would replace a file that this command reads"),
        ("--out", "exists and is not an HTML page"),
    ],
)
def test_no_output_replaces_what_is_read(files, monkeypatch, capsys, name, option, message):
    before = (files / name).read_bytes()
    code = poise(
        monkeypatch, "--train", files / "train.jsonl", "--bench", files / "one.jsonl",
        option, files / name,
    )  # fmt: skip
    assert code == 2
    assert message in capsys.readouterr().err
    assert (files / name).read_bytes() == before


def test_json(files, monkeypatch, capsys):
    code = poise(
        monkeypatch, "-t", files / "train.jsonl", "-b", files / "one.jsonl", "-b",
        files / "two.jsonl", "--json",
    )  # fmt: skip
    told = json.loads(capsys.readouterr().out)
    assert code == 0
    assert [(b["name"], b["copied"]) for b in told["benchmarks"]] == [("one", 1), ("two", 1)]
    assert [(m["kind"], m["item"]["id"], m["train"]["line"]) for m in told["matches"]] == [
        ("reworded", "bees", 4),
        ("translated", "lattice", 43),
    ]


def test_hostile_text_is_escaped(files, monkeypatch, capsys):
    evil = "</script><script>alert(1)</script> find the 12 swans of $x^2$ that swim by tonight"
    for name in ("train", "one"):
        (files / f"{name}.jsonl").write_text(json.dumps({"problem": evil}), encoding="utf-8")
    page = files / "p.html"
    poise(monkeypatch, "-t", files / "train.jsonl", "-b", files / "one.jsonl", "-o", page)
    assert "<script>alert" not in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"bad\.jsonl: no such file"),
        ("", r"bad\.jsonl: no records"),
        ("\n \n", r"bad\.jsonl: no records"),
        ("{}\n", r"bad\.jsonl:1: no field 'problem' \(fields: none\)"),
        ('{"quest": "x"}', r"bad\.jsonl:1: no field 'problem' \(fields: quest\).*; name it with"),
        ('{"problem": {}}', r"bad\.jsonl:1: field 'problem' is neither text nor a number"),
        ('{"problem": " "}', r"bad\.jsonl:1: field 'problem' is empty"),
        ('{"problem": "x"}\nhello', r"bad\.jsonl:2: not JSON"),
        ("[1]", r"bad\.jsonl:1: not an object"),
        (b"\xff\xfe", r"bad\.jsonl:1: not UTF-8"),
    ],
)
@pytest.mark.parametrize("option", ["--train", "--bench"])
def test_bad_files_are_one_line(files, monkeypatch, capsys, option, content, message):
    if content is not None:
        raw = content if isinstance(content, bytes) else content.encode()
        (files / "bad.jsonl").write_bytes(raw)
    other = {"--train": "--bench", "--bench": "--train"}[option]
    code = poise(monkeypatch, option, files / "bad.jsonl", other, files / "one.jsonl")
    captured = capsys.readouterr()
    assert (code, captured.out) == (2, "")
    assert re.fullmatch(rf"poise: .*{message}.*\n", captured.err)


def test_a_folder_and_a_file_named_twice(files, monkeypatch, capsys):
    assert poise(monkeypatch, "-t", files, "-b", files / "one.jsonl") == 0
    assert "2 of 44 training prompts are copies" in capsys.readouterr().out
    (files / "test.jsonl").write_text(line(BEEKEEPER))
    assert poise(monkeypatch, "-t", files, "-b", files / "one.jsonl") == 2
    assert "a folder with several splits (one.jsonl, test.jsonl" in capsys.readouterr().err
    one = files / "one.jsonl"
    assert poise(monkeypatch, "-t", one, "-b", one, one) == 2
    assert "is named twice" in capsys.readouterr().err


def test_a_page_that_cannot_be_written(files, monkeypatch, capsys):
    one = files / "one.jsonl"
    assert poise(monkeypatch, "-t", one, "-b", one, "-o", files / "none" / "page.html") == 2
    assert poise(monkeypatch, "-t", one, "-b", one, "--write-clean", files / "no" / "x") == 2
    assert capsys.readouterr().err.count("cannot be written") == 2


def test_old_spellings_work_with_a_line_that_names_the_new_ones(files, monkeypatch, capsys):
    train, one = files / "train.jsonl", files / "one.jsonl"
    assert poise(monkeypatch, "-t", train, "-b", one, "--fields", "problem=problem", "--json") == 0
    new = capsys.readouterr()
    assert poise(monkeypatch, "-t", train, "--eval", one, "--eval-field", "problem", "--json") == 0
    old = capsys.readouterr()
    without_time = [{**json.loads(text.out), "seconds": 0} for text in (new, old)]
    assert without_time[0] == without_time[1]
    assert new.err == ""
    assert old.err == (
        "poise: --eval is now --bench, as in poise eval\n"
        "poise: --eval-field is now --fields problem=problem, as in poise eval\n"
    )


def test_benchmarks_by_name_as_in_eval(files, monkeypatch, capsys):
    train = files / "train.jsonl"
    assert poise(monkeypatch, "-t", train, "--bench", "one,two", "--data", files) == 0
    assert "2 of 42 training prompts are copies" in capsys.readouterr().out
    assert poise(monkeypatch, "-t", train, "--bench", "three", "--data", files) == 2
    assert "three.jsonl" in capsys.readouterr().err
    assert poise(monkeypatch, "-t", train) == 2
    assert "--bench is missing" in capsys.readouterr().err


def test_parquet_and_chat_data_are_compared_and_cleaned(files, monkeypatch, capsys):
    prompts = [BEEKEEPER.problem, *(item.problem for item in NOISE[:5])]
    rows = [
        {
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": text},
            ]
        }
        for text in prompts
    ]
    pq.write_table(pa.Table.from_pylist(rows), files / "chat.parquet")
    (files / "bees.json").write_text(json.dumps([{"question": BEEKEEPER.problem, "answer": 8}]))
    clean = files / "clean.jsonl"
    arguments = ("-t", files / "chat.parquet", "-b", "bees", "--data", files, "--write-clean")
    assert poise(monkeypatch, *arguments, clean) == 0
    assert "1 of 6 training prompts are copies" in capsys.readouterr().out
    assert [json.loads(raw) for raw in clean.read_text().splitlines()] == rows[1:]
    assert poise(monkeypatch, *arguments, clean, "--json") == 0
    (match,) = json.loads(capsys.readouterr().out)["matches"]
    assert [(match[side]["id"], match[side]["line"]) for side in ("item", "train")] == [
        ("row 0", None), ("row 0", None)
    ]  # fmt: skip
    assert poise(monkeypatch, *arguments, files / "clean.parquet") == 2
    assert "choose a name that ends in .jsonl" in capsys.readouterr().err


def test_the_numbers_of_a_json_list_are_written_as_they_were(files, monkeypatch):
    rows = [{"problem": item.problem, "about": {"level": [1.5], "é": None}} for item in NOISE[:2]]
    text = json.dumps(rows, indent=1, ensure_ascii=False).replace("1.5", "1.50e0")
    (files / "listed.json").write_text(text)
    clean = files / "clean.jsonl"
    arguments = ("-t", files / "listed.json", "-b", files / "one.jsonl", "--write-clean", clean)
    assert poise(monkeypatch, *arguments) == 0
    lines = clean.read_text(encoding="utf-8").splitlines()
    assert [json.loads(written) for written in lines] == rows
    assert all('"about": {"level": [1.50e0], "é": null}' in written for written in lines)


def test_a_line_in_a_folder_of_several_files_is_named_with_its_file(files, monkeypatch, capsys):
    folder = files / "parts"
    folder.mkdir()
    for name, item in (("a", NOISE[0]), ("b", BEEKEEPER)):
        (folder / f"{name}.jsonl").write_text(json.dumps({"problem": item.problem}))
    assert poise(monkeypatch, "-t", folder, "-b", files / "one.jsonl", "--json") == 0
    (match,) = json.loads(capsys.readouterr().out)["matches"]
    assert (match["train"]["id"], match["train"]["line"]) == ("line 1 of b", 1)


def test_the_answer_in_the_box_of_a_solution_is_compared(files, monkeypatch, capsys):
    record = {"problem": REWORDED, "solution": "There are \\boxed{8} such hives."}
    lines = [json.dumps(record), *(json.dumps({"problem": item.problem}) for item in NOISE)]
    (files / "boxed.jsonl").write_text("\n".join(lines))
    assert poise(monkeypatch, "-t", files / "boxed.jsonl", "-b", files / "one.jsonl", "--json") == 0
    (match,) = json.loads(capsys.readouterr().out)["matches"]
    assert (match["kind"], match["answers"], match["train"]["answer"]) == ("reworded", "same", "8")
