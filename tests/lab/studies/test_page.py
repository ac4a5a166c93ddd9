from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest
from report.synthetic import Page

from counterpoise.errors import PoiseError
from counterpoise.lab.choose_page import write_report
from counterpoise.lab.studies.page import (
    VERDICT_MARKS,
    VISIBLE_NUMBERS,
    format_number,
    read_results,
    write_studies_page,
)
from counterpoise.lab.studies.records import write_records
from counterpoise.lab.studies.run import write_finding
from counterpoise.lab.studies.study import Study, load_study
from counterpoise.statistics.finding import (
    ClaimVerdict,
    Finding,
    Number,
    Verdict,
    finding_to_json,
)

SETTINGS = {"model": "embedded", "budget": "quick", "seed": 0, "sizes": {"prompts": 3, "k": [1, 2]}}


def needs_a_model(*_: object) -> Any:
    raise AssertionError("a page needs no model")


def made_up(name: str, claim: str = "It is so.") -> Study:
    return Study(
        name=name,
        title=f"Title of {name}",
        shows="Fig. 3",
        claim=claim,
        rule="The rule.",
        budgets={},
        measure=needs_a_model,
        judge=needs_a_model,
        draw=needs_a_model,
    )


def write_proxy(folder: Path) -> None:
    """The real study, judged and drawn from made-up records."""
    study = load_study("proxy")
    records = [
        {"optimizer": name, "batch": 1, "prompt": f"1:{p}", "tokens": 10, "agree": 7}
        for name in ("sgd", "adamw")
        for p in range(6)
    ]
    write_records(folder / "proxy.parquet", records, SETTINGS, 75.0)
    write_finding(folder / "proxy.json", study, study.judge(records), SETTINGS, 75.0)


def write_other(folder: Path, name: str, verdict: str, **changes: str) -> None:
    numbers = (
        Number("of a share", 0.46, 0.44, 0.49, paper=0.45, unit="share"),
        Number("of another", -0.5, None, None, paper=None, unit="nats"),
        Number("unknown", float("nan")),
    )
    finding = Finding(verdict, "Because of <b>this</b>.", numbers, ("A limit.",))  # type: ignore[arg-type]
    write_finding(folder / f"{name}.json", made_up(name, **changes), finding, SETTINGS, 5.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_proxy(tmp_path)
    write_other(tmp_path, "unheard_of", "inconclusive")
    write_other(tmp_path, "masking", "not replicated", claim="</script><script>x()</script>")
    (tmp_path / "notes.json").write_text('{"mine": 1}')
    return tmp_path


def test_every_study_is_a_section_under_an_overview(folder: Path):
    page = Page(write_report(folder))
    assert [one["study"] for one in read_results(folder)] == ["masking", "proxy", "unheard_of"]
    assert page.sections[:3] == ["masking", "proxy", "unheard_of"]  # the list of sections
    assert page.sections[3:] == ["masking", "proxy", "unheard_of"]  # the overview
    text = " ".join(page.text.split())
    assert "1 ✓ replicated 1 ✗ not replicated 1 ? inconclusive" in text
    assert "Fig. 10 The output layer stands in for all parameters ✓ replicated 1 min 15 s" in text
    assert (folder / "report.html").exists()


def test_a_verdict_is_told_by_word_and_mark_not_by_colour_alone(folder: Path):
    assert len(set(VERDICT_MARKS.values())) == len(VERDICT_MARKS) == 4
    assert set(VERDICT_MARKS) == set(get_args(Verdict))
    text = " ".join(Page(write_report(folder)).text.split())
    for verdict, mark in VERDICT_MARKS.items():
        assert f"{mark} {verdict}" in text


def test_numbers_stand_beside_the_papers(folder: Path):
    text = " ".join(Page(write_report(folder)).text.split())
    assert "of a share 46.0 % 44.0 % to 49.0 % 45.0 %" in text
    assert "of another, nats −0.5 –" in text
    assert "sign agreement, adamw 70.0 % 70.0 % to 70.0 % 70.0 %" in text
    assert "The rule." in text
    assert "A limit." in text
    assert "model embedded budget quick seed 0 prompts 3 k 1, 2 measuring time 5 s" in text


def test_figures_are_drawn_from_the_table_where_there_is_one(folder: Path):
    page = Page(write_report(folder))
    assert len(page.json) == 2  # the proxy's chart, the theme
    assert "masking.parquet is missing" in page.text
    assert "has no study called unheard_of" in page.text


def test_one_study_alone(folder: Path):
    page = Page(write_studies_page(folder, folder / "proxy.html", only="proxy"))
    assert page.sections == ["proxy"]
    assert "Counterpoise study" in page.text
    with pytest.raises(PoiseError, match="holds no study value"):
        write_studies_page(folder, folder / "x.html", only="value")


def test_words_of_a_study_are_text(folder: Path):
    page = Page(write_report(folder))
    assert "<script>x()</script>" in page.text
    assert "<script>x()" not in page.source
    assert "Because of <b>this</b>." in page.text


def test_the_page_asks_nothing_of_the_network_and_repeats(folder: Path):
    written = write_report(folder)
    for name, value in Page(written).attributes:
        assert "//" not in value, (name, value)
    assert write_report(folder, folder / "again.html").read_bytes() == written.read_bytes()


def test_a_damaged_finding_is_told_in_a_line(folder: Path):
    (folder / "proxy.json").write_text("{")
    with pytest.raises(PoiseError, match=r"proxy\.json is damaged"):
        write_report(folder)


def test_a_verdict_nobody_knows_is_no_study(folder: Path):
    path = folder / "masking.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"verdict": "sort of"}))
    assert "masking" not in {one["study"] for one in read_results(folder)}


def test_numbers_as_text():
    assert format_number(0.4612, "share") == "46.1\u2009%"
    assert format_number(0.000048, "share") == "0.0048\u2009%"
    assert format_number(0.0, "share") == "0.0\u2009%"
    assert format_number(-0.00123, "nats") == "−0.00123"
    assert format_number(88312.0, "") == "88,312"
    assert format_number(None, "") == "–"


def write_experiment(folder: Path, **changes: Any) -> None:
    """NAME.json as lab/experiments/run.py writes it."""
    about = {
        "study": "clip", "title": "Clip higher or not", "shows": "", "claim": "",
        "rule": "My words.", "executed": "The rule.",
        "hypotheses": [{"hypothesis": "a > b", "verdict": "inconclusive"}],
        **changes,
    }  # fmt: skip
    finding = Finding("inconclusive", "So.", (Number("of a share", 0.4, 0.3, 0.5, unit="share"),))
    (folder / "clip.json").write_text(finding_to_json(about, finding, 5.0))


def test_an_experiment_of_ones_own_speaks_of_no_paper(tmp_path: Path):
    write_experiment(tmp_path)
    page = Page(write_report(tmp_path))
    text = " ".join(page.text.split())
    assert "Counterpoise experiment Clip higher or not ? inconclusive Here So." in text
    assert "paper" not in text
    assert (
        "value, 95 % interval of a share 40.0 % 30.0 % to 50.0 % Decision criterion, fixed" in text
    )
    assert "The rule. In the author's words, which decide nothing: My words." in text
    assert 'class="shows"' not in page.source
    assert 'class="claim"' not in page.source


def test_a_claim_is_the_papers_where_a_paper_is_named(tmp_path: Path):
    write_experiment(tmp_path, claim="It is so.")
    assert "Claim It is so. Here So." in " ".join(Page(write_report(tmp_path)).text.split())
    write_experiment(tmp_path, claim="It is so.", shows="Fig. 3")
    text = " ".join(Page(write_report(tmp_path)).text.split())
    assert "Fig. 3 ? inconclusive The paper It is so. Here So." in text


def test_every_hypothesis_has_its_badge(folder: Path, tmp_path: Path):
    stated = [("a > b", "replicated"), ("c < b", "not replicated")]
    several = [{"hypothesis": name, "verdict": verdict} for name, verdict in stated]
    (tmp_path / "alone").mkdir()
    badges = "✓ a > b replicated ✗ c < b not replicated"
    write_experiment(tmp_path / "alone", hypotheses=several)
    text = " ".join(Page(write_report(tmp_path / "alone")).text.split())
    assert f"Counterpoise experiment Clip higher or not {badges} Here So." in text
    write_experiment(folder, hypotheses=several)  # among studies: in the overview as well
    text = " ".join(Page(write_report(folder)).text.split())
    assert text.count(badges) == 2
    assert f"Clip higher or not {badges} 5 s" in text


def test_every_claim_of_a_study_has_its_badge(tmp_path: Path):
    claims = (ClaimVerdict("up", "replicated"), ClaimVerdict("down", "untestable here"))
    finding = Finding("inconclusive", "So.", (), claims=claims)
    write_finding(tmp_path / "masking.json", made_up("masking"), finding, SETTINGS, 5.0)
    page = Page(write_report(tmp_path))
    assert "Counterpoise studies" in page.text  # a study alone is no experiment
    text = " ".join(page.text.split())
    assert text.count("✓ up replicated – down untestable here") == 2  # overview and section


def test_many_numbers_unfold(tmp_path: Path):
    numbers = tuple(Number(f"number {k}", float(k)) for k in range(VISIBLE_NUMBERS + 3))
    finding = Finding("inconclusive", "So.", numbers)
    write_finding(tmp_path / "masking.json", made_up("masking"), finding, SETTINGS, 5.0)
    page = Page(write_report(tmp_path))
    assert "3 more numbers" in page.text
    assert page.text.count("number 0") == page.text.count(f"number {VISIBLE_NUMBERS + 2}") == 1
