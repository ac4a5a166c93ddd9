"""The page of an evaluation: its table, map and responses, foreign text, and in a browser."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from made_up_results import HEADER, cell, evaluation, judged

from counterpoise.errors import PoiseError
from counterpoise.lab.choose_page import write_report
from counterpoise.lab.evaluate import page
from counterpoise.lab.evaluate.page import (
    benchmark_map,
    choose_response_limits,
    choose_responses,
    write_evaluation_page,
)
from counterpoise.lab.evaluate.pass_curves import pass_curves_panel
from counterpoise.lab.evaluate.result_files import ResultFile, read_result_files
from counterpoise.lab.evaluate.summary import summarise
from counterpoise.report.charts.figures import write_svg

if TYPE_CHECKING:
    from playwright.sync_api import Page

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next((found for name in NAMES if (found := shutil.which(name))), None)
HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror='window.hacked=1'>\u202e\x00"


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """Two models on two benchmarks; the second solves more of the first one."""
    cells = [
        cell(tmp_path, {f"p{i}": [1.0] * r + [0.0] * (4 - r) for i, r in enumerate(rights)},
             model=model, benchmark=name, title=title)
        for model, name, title, rights in (
            ("before", "aime24", "AIME24", (0, 1, 2, 4)),
            ("after", "aime24", "AIME24", (4, 1, 3, 4)),
            ("before", "math500", "Math", (4, 4)),
            ("after", "math500", "Math", (4, 0)),
        )
    ]  # fmt: skip
    return evaluation(tmp_path, cells)


def test_the_table_is_the_paper_s(made: Path) -> None:
    html = write_report(made).read_text(encoding="utf-8")
    table = html.partition('class="scores"')[2].partition("</table>")[0]
    text = re.sub(r"<[^>]+>", " ", table)
    numbers = re.findall(r"\b\d+\.\d\b", text)
    assert text.index("AIME24") < text.index("Math") < text.index("Avg")
    # before: (0 + 1 + 2 + 4) / 16 = 43.8 and 100; after: 12/16 = 75 and 50
    assert [numbers[i] for i in (0, 3, 6, 9, 12, 15)] == [
        "43.8", "100.0", "71.9", "75.0", "50.0", "62.5",
    ]  # fmt: skip
    assert "avg@4" in text


def test_the_map_counts_what_is_right(made: Path) -> None:
    cells = [c for c in read_result_files(made) if c.header.benchmark == "aime24"]
    drawn = benchmark_map("aime24", summarise(cells), cells, max_responses=2, max_characters=100)
    assert drawn["right"] == [[0, 1, 2, 4], [4, 1, 3, 4]]
    assert (drawn["rows"], drawn["ids"]) == (["before", "after"], ["p0", "p1", "p2", "p3"])


def test_models_that_share_a_colour_have_lines_of_their_own(tmp_path: Path) -> None:
    """More lines than colours: two models in one colour were drawn as one zigzag."""
    models = 10
    cells = [
        cell(tmp_path, {"p0": [1, 0], "p1": [float(i % 2), 0]}, model=f"m{i}")
        for i in range(models)
    ]
    panel = pass_curves_panel(summarise(cells))
    assert panel is not None
    assert isinstance(panel.body, tuple)
    write_svg(panel.body, tmp_path / "curves.svg")
    drawn = (tmp_path / "curves.svg").read_text().count('aria-roledescription="line mark"')
    assert drawn == 2 * models  # pass@k and maj@k


def test_rows_of_the_map_have_their_own_samples_and_rewards(tmp_path: Path) -> None:
    nothing = [math.nan] * 2
    cells = [
        cell(tmp_path, {"p0": [1.0, 1.0], "p1": nothing}, model="few"),
        cell(tmp_path, {"p0": [1.0, 0.0, 0.0, 0.0], "p1": nothing * 2}, model="many"),
    ]
    drawn = benchmark_map("aime24", summarise(cells), cells, max_responses=2, max_characters=100)
    assert drawn["samples"] == [2, 4]
    assert drawn["right"] == [[2, None], [1, None]]


def test_both_outcomes_are_shown_where_there_are_both() -> None:
    one = judged("p", [1, 1, 1, 1, 1, 1, 0, 1])
    assert [r[:2] for r in choose_responses(one, max_responses=3, max_characters=10)] == [
        [0, 1],
        [1, 1],
        [6, 0],
    ]
    assert len(choose_responses(one, max_responses=8, max_characters=10)) == 8
    assert [
        r[0] for r in choose_responses(judged("p", [0, 0, 0]), max_responses=2, max_characters=10)
    ] == [0, 1]


def test_a_page_has_room_for_so_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    many = cell(tmp_path, {f"p{i}": [1.0] * 8 for i in range(10)})  # 13 characters a response
    assert choose_response_limits([many]) == (8, 4000)
    monkeypatch.setattr(page, "TEXT_CHARACTERS", 10 * 4 * 13)
    assert choose_response_limits([many]) == (4, 4000)
    monkeypatch.setattr(page, "TEXT_CHARACTERS", 100)
    assert choose_response_limits([many]) == (2, page.MIN_RESPONSE_CHARACTERS)


def test_unfinished_and_empty(tmp_path: Path) -> None:
    made = cell(tmp_path, {"p0": [1, 0]}, problems=30)
    html = write_evaluation_page(evaluation(tmp_path, [made])).read_text(encoding="utf-8")
    assert "not finished" in html
    assert "1 of 30" in html
    empty = tmp_path / "empty"
    empty.mkdir()
    evaluation(empty, [ResultFile(empty, HEADER)])
    with pytest.raises(PoiseError, match="no judged problem"):
        write_report(empty)


def test_a_benchmark_without_any_reward_has_no_score(tmp_path: Path) -> None:
    cells = [
        cell(tmp_path, {"p0": [1.0]}, benchmark="x", title="X"),
        cell(tmp_path, {"p0": [math.nan]}, benchmark="y", title="Y"),
    ]
    html = write_evaluation_page(evaluation(tmp_path, cells)).read_text(encoding="utf-8")
    table = html.partition('class="scores"')[2].partition("</table>")[0]
    assert re.sub(r"(<[^>]+>|\s)+", " ", table).split()[-4:] == ["100.0", "0.0–100.0", "–", "–"]


def test_one_sample_has_no_curve(tmp_path: Path) -> None:
    made = cell(tmp_path, {"p0": [1], "p1": [0]})
    html = write_evaluation_page(evaluation(tmp_path, [made])).read_text(encoding="utf-8")
    assert "More samples" not in html
    assert "vega" not in html.partition("<body>")[2].partition("<script")[0]


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason=f"no browser: none of {', '.join(NAMES)} is there")
def test_the_details_fit_and_one_sample_is_one(tmp_path: Path) -> None:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    long = "Qwen3-1.7B-Base-grpo-shuffled"
    cells = [cell(tmp_path, {"p0": [1], "p1": [0]}, model=model) for model in ("base", long)]
    file = write_evaluation_page(evaluation(tmp_path, cells))
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        opened = browser.new_page(viewport={"width": 1280, "height": 800})
        opened.goto(file.as_uri())
        assert "2 problems, 1 sample each" in opened.inner_text(".evaluation .told")
        cut = "node => node.parentElement.scrollWidth - node.parentElement.clientWidth"
        assert opened.locator(".scores.small").evaluate(cut) <= 0
        assert "top-p 0.95" in opened.inner_text(".scores.small")
        browser.close()


@pytest.fixture
def shown(made: Path) -> Iterator[Page]:
    """The page in a browser, with a hostile problem and model; whatever it says is a fault."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    hostile = ResultFile(made, read_result_files(made)[0].header)
    hostile.open()
    hostile.judged = {}
    hostile.write(judged(HOSTILE, [1.0, 0, 0, 0], text=HOSTILE))
    said: list[str] = []
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        opened = browser.new_page(viewport={"width": 1000, "height": 800})
        opened.on("console", lambda message: said.append(message.text))
        opened.on("pageerror", lambda fault: said.append(str(fault)))
        file = write_report(made)
        opened.goto(file.as_uri())
        yield opened
        assert said == []
        assert opened.evaluate("window.hacked") is None
        browser.close()


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason=f"no browser: none of {', '.join(NAMES)} is there")
def test_in_a_browser(shown: Page) -> None:
    cells = shown.locator(".evaluation button.cell")
    assert cells.count() == 5 + 4  # the hostile problem was put to the first model alone
    cells.nth(1).click()
    shown.wait_for_selector(".evaluation .shown pre")
    assert "p1, before: 1 of 4 right · reference 1" in shown.inner_text(".evaluation .shown")
    assert shown.locator(".evaluation .shown pre").all_inner_texts()[0] == "so \\boxed{1}"
    cells.nth(4).click()
    shown.wait_for_selector(".evaluation .shown .outcome:has-text('hacked')")
    assert "<script>" in shown.locator(".evaluation .shown pre").first.inner_text()
    cells.nth(0).focus()
    shown.keyboard.press("ArrowDown")
    assert "p0, after: 4 of 4 right" in shown.inner_text(".evaluation .told")
    shown.select_option(".evaluation .order", "change")
    first = shown.locator(".evaluation button.cell").first.get_attribute("aria-label")
    assert first == "p0, before: 0 of 4 right"  # 0 to 4: the one that changed most
    shown.select_option(".evaluation .which", label="Math")
    assert shown.locator(".evaluation button.cell").count() == 4
