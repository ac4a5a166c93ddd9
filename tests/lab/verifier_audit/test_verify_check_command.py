"""`poise verify-check`: what it counts, and one line for each fault."""

import json
import sys
from pathlib import Path

import pytest

from counterpoise.cli import main
from counterpoise.lab.verifier_audit.cases import AuditCase
from counterpoise.lab.verifier_audit.measure import tally_algebra, tally_cases
from counterpoise.verify.exact import ExactVerifier
from counterpoise.verify.scores import Scores

DATA = Path(__file__).parents[4] / "shared" / "data"


def poise(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["poise", "verify-check", *map(str, arguments)])
    try:
        main()
    except SystemExit as stopped:
        return stopped.code or 0
    return 0


def test_a_tally_counts_both_errors():
    """The exact verifier refuses 1/2 for \\frac{1}{2}: a false reject; and accepts what is meant
    to be wrong when the case is: a false accept."""
    given = [
        AuditCase("forms", "slash", r"\boxed{1/2}", r"\frac{1}{2}", right=True),
        AuditCase("itself", "", r"\boxed{5}", "5", right=True),
        AuditCase("shuffled", "", r"\boxed{5}", "5", right=False),
        AuditCase("shuffled", "", r"\boxed{6}", "5", right=False),
    ]
    tallies = tally_cases(given, ExactVerifier())
    wrong = {kind: len(tally.wrong) for kind, tally in tallies.items() if tally.cases}
    assert wrong == {"forms": 1, "itself": 0, "shuffled": 1}
    assert tallies["shuffled"].cases == 2
    assert tallies["shuffled"].slowest > 0


def test_crashes_are_counted_though_their_reward_is_the_expected_one():
    class CrashingVerifier(ExactVerifier):
        def score(self, responses, answers, *rest):
            return Scores([0.0] * len(responses), crashes=len(responses))

    given = [AuditCase("shuffled", "", r"\boxed{6}", "5", right=False)] * 3
    tally = tally_cases(given, CrashingVerifier())["shuffled"]
    assert (tally.cases, tally.wrong, tally.timeouts, tally.crashes) == (3, [], 0, 3)


def test_algebra_is_asked_of_what_is_no_number():
    tally = tally_algebra(["5", "0.5", r"2\sqrt{3}", r"2\sqrt{3}", "x^2+1"], timeout_seconds=10.0)
    assert (tally.cases, tally.wrong, tally.timeouts) == (2, [], 0)
    assert tally.crashes == 0


def test_a_made_up_benchmark(tmp_path, monkeypatch, capsys):
    golds = ["11", r"\frac{3}{4}", "1, 2, 3", r"2\sqrt{3}", "52_8", r"\text{east}"]
    records = [{"id": i, "problem": "?", "answer": gold} for i, gold in enumerate(golds)]
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(json.dumps(record) for record in records))
    assert poise(monkeypatch, path, "--json", "--timeout", "20") == 0
    told = json.loads(capsys.readouterr().out)["mine"]
    assert told["references"] == 6
    assert {kind: one["wrong"] for kind, one in told["kinds"].items()} == dict.fromkeys(
        told["kinds"], 0
    )
    assert told["kinds"]["shuffled"]["cases"] == 30
    assert told["kinds"]["parts"]["cases"] == 4
    assert told["timeouts"] == 0
    assert poise(monkeypatch, path, "--items", "1", "--pairs", "2") == 0
    assert "0/6" in capsys.readouterr().out


def test_files_of_one_name_have_a_row_each(tmp_path, monkeypatch, capsys):
    """The table fits into 80 columns: no heading is folded."""
    for folder in ("a", "olymp"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "t.jsonl").write_text('{"id": 1, "problem": "?", "answer": "11"}')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    assert poise(monkeypatch, "a/t.jsonl", "olymp/t.jsonl", "--items", "1", "--pairs", "0") == 0
    lines = capsys.readouterr().out.splitlines()
    titles = "benchmark itself forms algebra shuffled misses parts echoes asked unboxed"
    assert titles.split() in [line.split() for line in lines]
    rows = [line.split()[:2] for line in lines if "0/1 " in line]
    assert rows == [["a/t.jsonl", "0/1"], ["olymp/t.jsonl", "0/1"]]
    assert sum("ms a verdict" in line for line in lines) == 2


@pytest.mark.parametrize(
    ("arguments", "content", "message"),
    [
        ([], None, "nothing to check"),
        (["{w}/none.jsonl"], None, "no such file"),
        (["{w}/bad.jsonl"], "", "no records"),
        (["{w}/bad.jsonl"], "no json", "bad.jsonl:1: not JSON"),
        (["{w}/bad.jsonl"], '{"id": 1, "problem": "x"}', "no field 'answer'"),
        (["{w}/bad.jsonl", "--data", "{w}"], "{}", "name files or --data, not both"),
        (["--data", "{w}"], None, "holds none of aime24.jsonl"),
        (["--data", "{w}/none"], None, "no such folder"),
    ],
)
def test_faults_are_one_line(tmp_path, monkeypatch, capsys, arguments, content, message):
    if content is not None:
        (tmp_path / "bad.jsonl").write_text(content)
    code = poise(monkeypatch, *(one.format(w=tmp_path) for one in arguments))
    captured = capsys.readouterr()
    assert code == 2
    assert captured.err.startswith("poise: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["aime24", "amc23", "math500", "olympiadbench", "gsm8k_test"])
def test_a_benchmark_verifies_itself_and_nothing_else(name, monkeypatch, capsys):
    """No reference fails itself, at most 1 in 1,000 shuffled pairs passes, no call is cut off."""
    path = DATA / f"{name}.jsonl"
    if not path.exists():
        pytest.skip(f"{path} is not there: benchmark answers are not part of the repository")
    assert poise(monkeypatch, path, "--json", "--items", "20", "--timeout", "20") == 0
    told = json.loads(capsys.readouterr().out)[name]
    kinds = told["kinds"]
    assert kinds["itself"]["wrong"] == 0
    assert kinds["algebra"]["wrong"] == 0
    assert kinds["shuffled"]["wrong"] <= kinds["shuffled"]["cases"] / 1000
    assert kinds["echoes"]["wrong"] == kinds["unboxed"]["wrong"] == kinds["parts"]["wrong"] == 0
    assert told["timeouts"] == 0
