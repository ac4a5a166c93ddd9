from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from pathlib import Path

import pytest
from report.synthetic import Page, write_run
from serve.served import line, write_rollouts

from counterpoise.cli.token_view import read_token_view
from counterpoise.errors import PoiseError
from counterpoise.lab.choose_page import write_report
from counterpoise.report.charts.vega import javascript_bundle
from counterpoise.report.pages.assemble import split_body
from counterpoise.report.pages.imported import write_imported_page
from counterpoise.report.run_data import RunData
from counterpoise.store.folder import RunFolder
from counterpoise.variants import PANELS


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(write_run(tmp_path_factory.mktemp("made") / "run"))


def test_the_page_lies_in_the_run_folder(written: Path):
    assert written.name == "report.html"
    assert (written.parent / "config.toml").exists()
    assert not list(written.parent.glob(".*part"))
    assert written.stat().st_size < 1_500_000


def test_sections_come_in_the_order_of_the_registry(written: Path):
    # The summary has no heading, and this run has no benchmarks, probes or memory of prompts.
    absent = ("summary", "benchmarks", "memory", "heldout")
    order = [name for name in PANELS if name not in absent]
    assert Page(written).sections == order


def test_summary_says_what_was_trained_and_what_it_was_worth(written: Path):
    text = " ".join(Page(written).text.split())
    assert "The model embedded on word_problems: 4 of 9 iterations, 6 prompts × 4" in text
    assert "optimizer steps, with reward balance τ = 0.25 by rollout" in text
    assert "before training 25.0 %" in text
    assert "after iteration 4 50.0 %" in text
    assert "95 % interval 40.0 % to 60.0 %" in text


def test_nothing_outside_the_file_is_asked_for(written: Path):
    page = Page(written)
    for name, value in page.attributes:
        without_digests = re.sub(r"'sha256-[^']*'", "", value)  # base64 has slashes
        assert "//" not in without_digests, (name, value)
        if name in ("src", "href", "action", "poster", "data"):
            assert value.startswith(("#", "data:")), (name, value)
    assert "url(" not in page.styles
    assert "@import" not in page.styles
    assert not {"img", "iframe", "object", "embed", "base", "form"} & set(page.tags)


def test_the_bundle_cannot_end_its_script_element():
    assert not re.search(r"</script|<!--|<script", javascript_bundle(), re.IGNORECASE)


def test_every_chart_is_valid_vega_lite(written: Path):
    run = RunData.read(written.parent)
    panels = [PANELS.load(name)(run) for name in PANELS]
    figures = [figure for panel in panels if panel for figure in split_body(panel)[1]]
    assert len(figures) >= 28
    for figure in figures:
        figure.chart.to_dict(validate=True)
        assert figure.chart.description


def test_the_same_run_gives_the_same_bytes(written: Path, tmp_path: Path):
    again = write_report(written.parent, tmp_path / "again.html")
    assert again.read_bytes() == written.read_bytes()


def test_a_run_without_finished_iterations_says_so(tmp_path: Path):
    page = Page(write_report(write_run(tmp_path / "run", iterations=0, evaluations=False)))
    assert "No finished iteration." in page.text
    assert page.sections == ["configuration"]


def test_a_run_without_evaluations(tmp_path: Path):
    page = Page(write_report(write_run(tmp_path / "run", evaluations=False)))
    assert "Held-out success was not measured." in page.text
    assert "held-out, with" not in page.text


def test_without_reward_balance_there_is_no_buffer(tmp_path: Path):
    page = Page(write_report(write_run(tmp_path / "run", tau=0.0, composer="shuffled")))
    assert "buffer" not in page.sections
    assert "dropped as surplus" not in page.text
    assert "without reward balance" in page.text


def test_a_run_that_stored_no_rollouts(tmp_path: Path):
    page = Page(write_report(write_run(tmp_path / "run", rollouts=False)))
    assert "rollouts" not in page.sections
    assert "mosaic" in page.sections
    assert "no texts are shown" in page.text


def test_a_run_that_kept_no_rows_of_its_plans(tmp_path: Path):
    """store.report=false: only their numbers (run/write_iteration.py)."""
    run = write_run(tmp_path / "run")
    plans = RunFolder(run).read("plans")
    short = [{k: plan[k] for k in ("schema", "iteration", "describe")} for plan in plans]
    (run / "plans.jsonl").write_text("".join(json.dumps(plan) + "\n" for plan in short))
    page = Page(write_report(run))
    assert {"mosaic", "tokens", "plans"}.isdisjoint(page.sections)
    assert {"learning", "buffer", "rollouts"} <= set(page.sections)
    with pytest.raises(PoiseError, match=r"store\.report=true"):
        read_token_view(run)


def test_a_run_that_the_adapter_planned_has_its_panels_without_a_config(tmp_path: Path):
    """As `run_folder` of hosts/trl leaves it: imported.json tells the few options pages read."""
    run = write_run(tmp_path / "run")
    (run / "config.toml").unlink()
    known = {"source": "TRL 1.16.0", "notes": ["composer=grouped"], "tokenizer": None}
    options = {"balance": {"tau": 0.4, "max_age": 3}, "update": {"max_grad_norm": 0.0}}
    (run / "imported.json").write_text(json.dumps({**known, "options": options}))
    page = Page(write_report(run))
    panels = ["learning", "mosaic", "tokens", "monitor", "buffer", "plans", "timing", "rollouts"]
    assert page.sections == [*panels, "words"]
    text = " ".join(page.text.split())
    assert "A run of TRL 1.16.0. One iteration is one generation of rollouts." in text
    waiting = "Until then rollouts wait, at most 3 iterations"
    assert f"with each sign of the advantage making up at least 40 %. {waiting}" in text
    assert read_token_view(run).quantity.name == "displacement"
    for file in (run / "tokens").iterdir():
        file.unlink()
    with pytest.raises(PoiseError, match="stored no tokens: train with monitor_every=1"):
        read_token_view(run)
    (run / "imported.json").write_text(json.dumps({**known, "options": {"balance": {"tao": 1}}}))
    with pytest.raises(PoiseError, match=r"is damaged: .*'tao'"):
        write_report(run)


def test_faults_are_told_in_a_line(tmp_path: Path):
    with pytest.raises(PoiseError, match="holds no run, no studies and no evaluation"):
        write_report(tmp_path)
    with pytest.raises(PoiseError, match="nowhere does not exist: name the folder of a run"):
        write_report(tmp_path / "nowhere")
    run = write_run(tmp_path / "run", iterations=0)
    with pytest.raises(PoiseError, match=f"no evaluation.json; try {run}$"):
        write_report(tmp_path)
    with pytest.raises(PoiseError, match="is a file: name the folder"):
        write_report(run / "config.toml")
    with pytest.raises(PoiseError, match=r"cannot be written: .*; choose another --out"):
        write_report(run, tmp_path / "nowhere" / "page.html")
    with pytest.raises(PoiseError, match="cannot be written"):
        write_report(run, tmp_path)
    (run / "metrics.jsonl").write_text("{broken\n")
    with pytest.raises(PoiseError, match=r"metrics\.jsonl is damaged"):
        write_report(run)


def test_numbers_that_are_not_finite_leave_a_page(tmp_path: Path):
    run = write_run(tmp_path / "run")
    charts = len(Page(write_report(run)).json)
    last = RunData.read(run).metrics[-1]
    RunFolder(run).append("metrics", {**last, "iteration": 5, "grad_norm": float("nan")})
    page = Page(write_report(run))
    assert len(page.json) == charts >= 31  # 28 charts, the mosaic, the tokens, the theme
    for text in page.json:
        json.loads(text, parse_constant=pytest.fail)


def test_the_policy_names_every_script_of_the_page(tmp_path: Path):
    """Any other script would not run; nothing may be fetched from anywhere."""
    source = write_report(write_run(tmp_path / "run")).read_text(encoding="utf-8")
    (policy,) = re.findall(r'="Content-Security-Policy" content="(.*?)"', source)
    rules = dict(rule.split(" ", 1) for rule in html.unescape(policy).split("; "))
    scripts = re.findall(r"<script>(.*?)</script>", source, flags=re.DOTALL)
    assert len(scripts) == 10
    digests = (hashlib.sha256(script.encode()).digest() for script in scripts)
    assert rules.pop("script-src").split() == [
        f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests
    ]
    assert rules == {
        "default-src": "'none'", "style-src": "'unsafe-inline'", "img-src": "data:",
        "base-uri": "'none'", "form-action": "'none'",
    }  # fmt: skip
    assert source.index("Content-Security-Policy") < source.index("<style>")


@pytest.mark.parametrize(("success", "is_graded"), [(0.5, False), (1.0, True)])
def test_the_caption_of_an_imported_run_is_about_what_its_curve_shows(
    tmp_path: Path, success: float, is_graded: bool
):
    run = write_rollouts(tmp_path / "run", 1, line()).parents[1]
    record = {"reward": 0.5, "success": success, "rollouts": 1, "groups": 1, "rollout_tokens": 3}
    (run / "metrics.jsonl").write_text(
        "".join(json.dumps({"iteration": number, **record}) + "\n" for number in (1, 2))
    )
    text = Page(write_imported_page(run, tmp_path / "page.html")).text
    assert ("Mean reward is measured on the prompts" in text) == is_graded
    assert ("A rollout counts as a success" in text) != is_graded


def test_pairs_that_do_not_fit_into_the_report_are_counted(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("counterpoise.report.panels.contamination.MAX_PAIRS_IN_RUN", 0)
    page = Page(write_report(write_run(tmp_path / "run", iterations=1)))
    assert "1 more pairs are not shown; contamination.json of the run has all of them." in page.text
