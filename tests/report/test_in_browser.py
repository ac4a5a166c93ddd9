"""The page in a real browser, where there is one: it draws, says nothing, asks for nothing, is not
taken over, and the token view answers mouse, keyboard and touch."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from browser_pages import borrowed_page
from lab.studies.test_page import write_other, write_proxy
from report.synthetic import PIECES, write_run

from counterpoise.lab.choose_page import write_report
from counterpoise.lab.credit_view.page import write_credit_page
from counterpoise.lab.credit_view.result import compare_weightings
from counterpoise.report.charts.quantities import PUSH_PARTS
from counterpoise.report.compare.page import write_comparison_page
from counterpoise.report.pages.assemble import assemble_page, write_page
from counterpoise.report.run_data import RunData
from counterpoise.report.traces import read_pushes, read_trace, stored_iterations
from counterpoise.variants import PANELS

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next((found for name in NAMES if (found := shutil.which(name))), None)
PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}
HOSTILE = (
    "</script><script>window.hacked=1</script>",
    "<img src=x onerror='window.hacked=1'>",
    "\u202egnp.exe",
    "A" * 5000,
    "\ud800\ufffd",
    "שלום",
    "\u200b",
    "{{ 7 * 7 }}",
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason=f"no browser: none of {', '.join(NAMES)} is there"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with api.sync_playwright() as playwright:
        # The tests open their own files only; a sandbox inside a container cannot be had.
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write_run(tmp_path_factory.mktemp("made") / "run", tau=0.0, composer="shuffled")
    write_report(path)
    write_page_of(path)
    return path


def write_page_of(run: Path, panels: Sequence[str] = ("mosaic", "tokens")) -> Path:
    """A page of a few panels: a whole report draws 28 charts, which takes a browser two seconds
    each time it is opened."""
    data = RunData.read(run)
    page = assemble_page("run", run.name, {name: PANELS.load(name)(data) for name in panels})
    return write_page(run / f"{'-'.join(panels)}.html", page)


def wait_until(page: Page, condition: str) -> None:
    """Playwright's own waiting compiles the condition inside the page, which its policy forbids."""
    for _ in range(6000):  # two minutes: a page that is drawn at all is drawn by then
        if page.evaluate(condition):
            return
        page.wait_for_timeout(20)
    pytest.fail(f"never came true: {condition}")


@contextmanager
def opened(browser: Browser, file: Path, **options: Any) -> Iterator[Page]:
    """The page, drawn; whatever it logs or asks for is a fault."""
    with borrowed_page(browser, **options) as (page, events):
        page.goto(file.as_uri())
        wanted = page.locator("script.specification").count()
        wait_until(page, f"document.querySelectorAll('svg.marks').length >= {wanted}")
        yield page
        assert [text for text in events if not text.startswith(("data:", file.as_uri()))] == []
        assert page.evaluate("window.hacked") is None


def strip(page: Page) -> list[str]:
    return page.locator(".tokens .strip .token").all_inner_texts()


def spoken(page: Page) -> str:
    return page.locator(".tokens .spoken").inner_text()


def row_shown(page: Page) -> int:
    return int(page.locator(".tokens .chip[aria-checked=true]").get_attribute("data-row") or -1)


def test_the_page_draws_itself(browser: Browser, tmp_path: Path):
    hostile = "</script><script>window.hacked = 1</script>"
    run = write_run(tmp_path / "run", tau=0.0, composer="shuffled", response=hostile)
    with opened(browser, write_report(run)) as page:
        assert page.title() == "run · Counterpoise"
        assert page.locator("svg.marks").count() == 29
        assert page.locator(".mosaic .cell").count() == 24  # every rollout of the batch
        assert page.locator(".mosaic .thread").count()  # shuffled: groups are split


def test_the_policy_stops_scripts_that_came_in_and_every_request(browser: Browser, run: Path):
    script = """async () => {
        const stopped = [];
        document.addEventListener("securitypolicyviolation", (event) => {
            stopped.push(event.effectiveDirective);
        });
        const added = document.createElement("script");
        added.textContent = "window.added = 1";
        document.body.append(added);
        const handler = document.createElement("div");
        handler.setAttribute("onclick", "window.added = 1");
        document.body.append(handler);
        handler.click();
        new Image().src = "https://example.invalid/pixel.png";
        await fetch("https://example.invalid/").catch(() => null);
        await new Promise((done) => setTimeout(done, 200));
        return { stopped: stopped.sort(), added: window.added ?? null };
    }"""
    page = browser.new_page()
    page.goto((run / "mosaic-tokens.html").as_uri())
    assert page.evaluate(script) == {
        "stopped": [
            "connect-src", "img-src", "script-src-attr", "script-src-elem",
        ],
        "added": None,
    }  # fmt: skip
    page.close()


def test_the_script_reads_the_numbers_of_the_run(browser: Browser, run: Path):
    """One iteration decoded by the page against the parquet file it came from."""
    last = stored_iterations(run)[-1]
    columns = read_trace(run, last).columns
    script = """async (name) => {
        const record = poise.tokens.data.iterations.at(-1);
        const view = poise.tokens.view(record, await poise.unpack(record.packed), {});
        return view.token.map((_, place) => view.value(name, place));
    }"""
    with opened(browser, run / "mosaic-tokens.html") as page:
        pushes = page.evaluate(script, "push")
        moved = page.evaluate(script, "displacement")
    names = ("own", *PUSH_PARTS)
    gross = np.sum([np.abs(columns[name]) for name in names], axis=0)
    wanted = np.sum([columns[name].astype(float) for name in names], axis=0)
    assert (np.abs(np.array(pushes) - wanted) <= 0.005 * gross + 1e-6).all()
    assert np.array(moved) == pytest.approx(columns["displacement"], rel=0.005, abs=1e-6)


def test_tokens_by_mouse(browser: Browser, run: Path):
    last = stored_iterations(run)[-1]
    trace, pushes = read_trace(run, last), read_pushes(run, last)
    assert pushes is not None
    with opened(
        browser, run / "mosaic-tokens.html", viewport={"width": 1280, "height": 900}
    ) as page:
        row = row_shown(page)
        assert row in pushes.rows  # a watched rollout comes first
        size = len(trace.row_columns(row)["token"])
        shown = [PIECES[i].replace("\n", "↵") for i in range(size)]
        assert strip(page) == [("·" if text == " " else text) for text in shown]

        tokens = page.locator(".tokens .strip .token")
        before = spoken(page)
        tokens.nth(1).hover()
        assert spoken(page).startswith("answer: displacement")
        page.locator(".tokens .meaning").hover()
        assert spoken(page) == before

        tokens.nth(2).click()
        where = page.locator(".tokens .card .where").inner_text()
        # Counted from 0, as `poise look --token` does.
        assert where.startswith(f"token 2 (first 0, last {size - 1}) ")
        gap = (
            "row => row.cells[1].getBoundingClientRect().left - (r => (r.selectNodeContents("
            "row.cells[0]), r.getBoundingClientRect().right))(document.createRange())"
        )
        for line in page.locator(".tokens .parts tr").all():
            assert line.evaluate(gap) >= 6
        inside = "node => node.parentElement.clientWidth - node.offsetWidth"
        assert page.locator(".tokens .parts").evaluate(inside) >= 0
        assert tokens.nth(2).get_attribute("aria-selected") == "true"
        assert "Tokens that pushed" in page.locator(".tokens .pushers h3").inner_text()
        found = list(pushes.on_token(row, 2))
        assert page.locator(".tokens .pusher").count() == len(found)
        assert page.locator(".tokens .up .pusher").count() == sum(x > 0 for _, _, x in found)

        strongest = max(found, key=lambda push: push[2])
        page.locator(".tokens .up .pusher").first.click()
        assert row_shown(page) == strongest[0]
        focused = page.locator(".tokens .strip .token:focus")
        assert focused.get_attribute("data-position") == str(strongest[1])
        page.locator(".tokens .back").click()
        assert row_shown(page) == row
        assert tokens.nth(2).get_attribute("aria-selected") == "true"

        chip = page.locator(".tokens .chip").last
        chip.click()
        assert row_shown(page) == int(chip.get_attribute("data-row") or -1)
        assert page.locator(".tokens .pushers").is_hidden()


def test_tokens_by_keyboard(browser: Browser, run: Path):
    with opened(browser, run / "mosaic-tokens.html") as page:
        strip_at = page.locator(".tokens .strip .token:focus")
        page.locator(".tokens .strip .token[tabindex='0']").focus()
        page.keyboard.press("Home")
        assert strip_at.get_attribute("data-position") == "0"
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        assert spoken(page).startswith("is: displacement")
        outline = strip_at.evaluate("node => getComputedStyle(node).outlineStyle")
        assert outline == "solid"  # focus can be seen
        page.keyboard.press("Enter")
        assert strip_at.get_attribute("aria-selected") == "true"
        assert page.locator(".tokens .pusher").count()
        page.keyboard.press("Escape")
        assert page.locator(".tokens .pushers").is_hidden()
        first = row_shown(page)
        page.keyboard.press("]")
        second = row_shown(page)
        page.keyboard.press("ArrowDown")
        assert len({first, second, row_shown(page)}) == 3
        page.keyboard.press("[")
        page.keyboard.press("ArrowUp")
        assert row_shown(page) == first
        page.keyboard.press("End")
        assert strip_at.get_attribute("data-position") == str(len(strip(page)) - 1)
        page.keyboard.press("ArrowRight")  # there is no further one
        assert strip_at.get_attribute("data-position") == str(len(strip(page)) - 1)
        assert page.locator(".tokens .strip [tabindex='0']").count() == 1
        assert page.locator(".tokens .chip[tabindex='0']").count() == 1


def test_colour_follows_the_quantity_and_has_a_scale_with_numbers(browser: Browser, run: Path):
    with opened(browser, run / "mosaic-tokens.html") as page:
        ticks = page.locator(".tokens .ticks i")
        assert ticks.count() == 5
        low, *_, high = ticks.all_inner_texts()
        assert low.startswith("−")
        assert high == "+" + low[1:]
        painted = page.locator(".tokens .strip .token").first
        before = painted.evaluate("node => getComputedStyle(node).backgroundColor")
        for family in ("from_negative", PUSH_PARTS[0], "entropy", "logprob", "advantage"):
            page.locator(".tokens select").select_option(family)
            assert page.locator(".tokens .meaning").inner_text()
        page.locator(".tokens select").select_option("entropy")
        assert ticks.count() == 3
        assert painted.evaluate("node => getComputedStyle(node).backgroundColor") != before


def test_one_iteration_for_the_whole_page(browser: Browser, run: Path):
    page_of_three = write_page_of(run, ("learning", "mosaic", "tokens"))
    with opened(browser, page_of_three) as page:
        at = page.locator(".tokens output")
        assert at.inner_text() == "4"
        page.locator(".mosaic input[type=range]").focus()
        page.keyboard.press("ArrowLeft")
        wait_until(page, "document.querySelector('.tokens output').textContent === '3'")
        page.locator(".tokens input[type=range]").focus()
        page.keyboard.press("Home")
        wait_until(page, "document.querySelector('.mosaic output').textContent === '1'")
        chart = page.locator("#learning svg.marks").first
        chart.scroll_into_view_if_needed()
        bar = chart.bounding_box()
        assert bar is not None
        page.mouse.click(bar["x"] + 0.5 * bar["width"] + 20, bar["y"] + bar["height"] / 2)
        wait_until(page, "document.querySelector('.tokens output').textContent !== '1'")
        clicked = page.locator(".mosaic output").inner_text()
        assert at.inner_text() == clicked
        cell = page.locator(".mosaic .cell.positive").last
        cell.click()
        row = cell.get_attribute("data-row")
        wait_until(
            page, f"document.querySelector('.chip[aria-checked=true]').dataset.row === '{row}'"
        )


def test_an_iteration_without_tokens_shows_the_nearest(browser: Browser, tmp_path: Path):
    run = write_run(tmp_path / "run", iterations=6)  # with reward balance some make no update
    stored = stored_iterations(run)
    missing = min(set(range(1, 6)) - set(stored))
    with opened(browser, write_page_of(run)) as page:
        page.locator(".mosaic input[type=range]").focus()
        page.keyboard.press("Home")
        for _ in range(missing - 1):
            page.keyboard.press("ArrowRight")
        wait_until(page, "document.querySelector('.tokens .told').textContent")
        told = page.locator(".tokens .told").inner_text()
        assert told.startswith(f"Iteration {missing} has no tokens on this page")
        assert int(page.locator(".tokens output").inner_text()) in stored


def test_hostile_tokens_stay_text(browser: Browser, tmp_path: Path):
    run = write_run(tmp_path / "run", tau=0.0, prompt=HOSTILE[0], pieces=HOSTILE)
    with opened(browser, write_report(run)) as page:
        longest = page.locator(".tokens .chip").count()
        for _ in range(longest):  # walk to a rollout that has all eight
            if len(strip(page)) == len(HOSTILE):
                break
            page.locator(".tokens .strip .token[tabindex='0']").focus()
            page.keyboard.press("]")
        shown = strip(page)
        assert shown[0] == HOSTILE[0][:24] + "…"
        assert shown[2:] == [
            "⟨U+202E⟩gnp.exe", "A" * 24 + "…", "\ufffd\ufffd", "שלום", "⟨U+200B⟩", "{{ 7 * 7 }}",
        ]  # fmt: skip
        page.locator(".tokens .strip .token").first.click()
        assert HOSTILE[0] in page.locator(".tokens .card .big").inner_text()
        page.locator(".tokens .strip .token").nth(3).click()
        assert page.locator(".tokens .card .big").inner_text() == "A" * 200 + "…"
        assert page.locator(".tokens img, .tokens script:not([type])").count() == 0
        page.set_viewport_size(PHONE["viewport"])  # type: ignore[arg-type]
        wait_until(page, "document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_readable_on_every_colour(browser: Browser, run: Path, scheme: str):
    script = """() => {
        const ink = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
        const rgb = (colour) => {
            ink.fillStyle = colour; ink.fillRect(0, 0, 1, 1);
            return [...ink.getImageData(0, 0, 1, 1).data].slice(0, 3).map((c) => c / 255);
        };
        const light = (colour) => rgb(colour)
            .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
            .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
        const painted = document.querySelectorAll(".tokens .token, .tokens .chip, .tokens td");
        return [...painted].map((node) => {
            const style = getComputedStyle(node);
            const [a, b] = [light(style.color), light(style.backgroundColor)];
            return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        });
    }"""
    with opened(browser, run / "mosaic-tokens.html", color_scheme=scheme) as page:
        assert page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches") == (
            scheme == "dark"
        )
        for quantity in ("displacement", "logprob", "advantage"):
            page.locator(".tokens select").select_option(quantity)
            contrast = page.evaluate(script)
            assert len(contrast) > 30
            assert min(contrast) >= 4.5, quantity


@pytest.fixture(scope="module")
def report_on_phone(browser: Browser, run: Path) -> Iterator[Page]:
    """A whole report, which takes a browser two seconds to draw: once for several tests."""
    with opened(browser, run / "report.html", **PHONE) as page:
        yield page


def test_a_phone(report_on_phone: Page):
    page = report_on_phone
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    page.locator(".tokens .strip .token").nth(1).tap()
    assert spoken(page).startswith("answer")
    strip_box = page.locator(".tokens .strip").bounding_box()
    card_box = page.locator(".tokens .card").bounding_box()
    assert strip_box is not None
    assert card_box is not None
    assert card_box["y"] > strip_box["y"] + strip_box["height"]  # below, not beside
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


@pytest.fixture(scope="module")
def weighed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of two weightings that need no policy, over hostile words."""
    folder = tmp_path_factory.mktemp("weighed") / "run"
    run = write_run(folder, tau=0.0, prompt=HOSTILE[0], pieces=HOSTILE)
    return write_credit_page(
        compare_weightings("uniform,gtpo:penalty=0:ceiling=inf", run, iteration=4)
    )


def test_token_weights(browser: Browser, weighed: Path):
    found = compare_weightings("gtpo:penalty=0:ceiling=inf", weighed.parent, iteration=4)
    signs = {row.group: set() for row in found.rows}
    for row in found.rows:
        signs[row.group].add(row.sign)
    group = next(name for name, of in signs.items() if len(of) == 2)  # the first that is shown
    mine = [i for i, row in enumerate(found.rows) if row.group == group]
    with opened(browser, weighed) as page:
        assert page.locator("svg.marks").count() == 3  # two histograms and the residuals
        rollouts = page.locator(".credit .rollout")
        assert rollouts.count() == len(mine)  # side by side
        assert page.locator(".credit .ticks i").all_inner_texts() == ["1.000"]  # uniform
        page.locator(".weighing select").select_option("1")
        w_N = np.concatenate(found.weightings[0].weights)
        ticks = [float(text) for text in page.locator(".credit .ticks i").all_inner_texts()]
        assert ticks[0] == pytest.approx(min(1.0, w_N.min()), rel=0.02)  # none below what there is
        assert ticks[-1] <= w_N.max() * 1.02
        assert ticks == sorted(set(ticks))
        assert 1.0 in ticks
        for place, i in enumerate(mine):
            tokens = rollouts.nth(place).locator(".token")
            w_T = found.weightings[0].weights[i]
            kinds = tokens.evaluate_all("nodes => nodes.map(node => node.classList[1])")
            strengths = tokens.evaluate_all(
                "nodes => nodes.map(node => Number(node.style.getPropertyValue('--strength')))"
            )
            assert kinds == ["down" if w < 1 else "up" for w in w_T]
            assert [bool(share) for share in strengths] == [w != 1 for w in w_T]
        wrong = sum(found.rows[i].sign < 0 for i in mine)
        page.locator("[name=sign][value='-1']").check()
        assert rollouts.count() == page.locator(".credit .strip.wrong").count() == wrong
        page.locator("[name=sign][value='0']").check()
        page.locator(".credit .strip .token").first.hover()
        told = page.locator(".credit .told").inner_text()
        assert told.startswith(HOSTILE[0])  # as text
        assert "gtpo penalty=0 ceiling=inf 2.00, A w" in told
        page.locator(".credit .strip .token").first.click()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowDown")
        at = page.locator(".credit .token:focus")
        assert at.get_attribute("data-row") == str(mine[1])
        assert at.get_attribute("data-place") == "1"
        page.locator(".weighing select").select_option("all")
        assert page.locator(".credit .strip").count() == 2 * len(mine)
        page.locator(".colouring select").select_option("1")
        assert "Advantage times weight" in page.locator(".credit .meaning").inner_text()
        page.locator(".prompts [data-by='1']").click()
        assert page.locator(".prompts select").input_value() == "1"


def test_token_weights_on_a_phone(browser: Browser, weighed: Path):
    with opened(browser, weighed, **PHONE) as page:
        page.locator(".weighing select").select_option("all")
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


def test_a_prompt_without_stored_pushes_names_the_command(browser: Browser, run: Path):
    pushes = read_pushes(run, stored_iterations(run)[-1])
    assert pushes is not None
    with opened(
        browser, run / "mosaic-tokens.html", viewport={"width": 1280, "height": 900}
    ) as page:
        rows = page.locator(".tokens .chip").evaluate_all(
            "chips => chips.map((chip) => Number(chip.dataset.row))"
        )
        unwatched = next(row for row in rows if row not in pushes.rows)
        page.locator(f".tokens .chip[data-row='{unwatched}']").click()
        page.locator(".tokens .strip .token").first.click()
        why = page.locator(".tokens .pushers").inner_text()
        assert "stored for a few prompts only (monitor.watch)" in why
        assert "--iterations 4 --set monitor.watch=6 --set monitor.tokens=0" in why


def test_words_say_what_they_are_and_sections_are_listed_at_every_width(report_on_phone: Page):
    page = report_on_phone
    assert page.locator("nav a").first.is_visible()
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    facts = page.locator(".facts dt")
    assert facts.count() > 5
    assert page.locator(".facts dt.what").count() == facts.count()  # no word without its line
    rollouts = facts.first
    assert rollouts.inner_text() == "rollouts sampled"
    rollouts.focus()
    assert "Responses that the policy wrote" in rollouts.locator(".what-line").inner_text()
    page.locator(".words-of-the-page summary").click()
    lines = dict(
        zip(
            page.locator(".all-words dt").all_inner_texts(),
            page.locator(".all-words dd").all_inner_texts(),
            strict=True,
        )
    )
    assert lines["cancellation"].startswith("1 − net push / gross push")
    assert all(lines.values())


def test_the_mosaic_by_tokens_fits_the_screen_and_names_iterations_that_waited(
    browser: Browser, tmp_path: Path
):
    run = write_run(tmp_path / "run", iterations=4)
    waiting = json.loads((run / "plans.jsonl").read_text().splitlines()[-1])
    early = {born for born in waiting["born"] if born < waiting["iteration"]}
    assert early == {3}
    plan = {**waiting, "steps": [[row] for row in range(len(waiting["group"]))]}
    logs = (run / "plans.jsonl").read_text().splitlines()[:-1]
    (run / "plans.jsonl").write_text("\n".join([*logs, json.dumps(plan)]) + "\n")
    (run / "checksums.jsonl").unlink()
    for size in ({"width": 1280, "height": 560}, {"width": 390, "height": 844}):
        with opened(browser, write_page_of(run), viewport=size) as page:
            page.locator("input[value=tokens]").check()
            frame = page.locator(".mosaic .frame").bounding_box()
            drawn = page.locator(".mosaic svg").bounding_box()
            assert frame is not None
            assert drawn is not None
            assert page.locator(".mosaic .cell").count() == len(plan["group"])
            assert drawn["width"] <= frame["width"] + 1  # 16 steps, and nothing to scroll
            assert drawn["height"] <= size["height"]
            areas = page.locator(".mosaic .cell").evaluate_all(
                "cells => cells.map((c) => [Number(c.dataset.row), c.width.baseVal.value * "
                "c.height.baseVal.value])"
            )
            per_token = [area / plan["tokens"][row] for row, area in areas]
            assert max(per_token) == pytest.approx(min(per_token), rel=1e-3)
            page.locator("input[value=equal]").check()
            labels = page.locator(".mosaic text.waited").all_text_contents()
            marks = len(labels) + page.locator(".mosaic circle.waited").count()
            assert marks == sum(born == 3 for born in plan["born"])
            assert set(labels) <= {"3"}  # a dot where a cell has no room for the number
            assert labels or size["width"] < 400
            row = next(row for row, born in enumerate(plan["born"]) if born == 3)
            page.locator(f".mosaic .cell[data-row='{row}']").hover(force=True)
            card = page.locator(".mosaic .card").inner_text()
            assert "sampled in iteration 3, waited 1 iteration" in card


def test_without_the_monitor(browser: Browser, tmp_path: Path):
    run = write_run(tmp_path / "run", microscope="off", pieces=None, rollouts=False)
    with opened(browser, write_page_of(run)) as page:
        options = page.locator(".tokens option").all_inner_texts()
        assert options == ["entropy", "log-probability", "advantage"]
        assert strip(page)[0] == "⟨0⟩"
        page.locator(".tokens .strip .token").nth(2).click()
        why = page.locator(".tokens .pushers").inner_text()
        assert "No pushes between tokens are stored for this update" in why
        assert "poise replay run --model embedded --iterations 4 --set monitor.watch=4" in why
        assert page.locator(".tokens .card table").count() == 0


@pytest.mark.parametrize("device", [{}, PHONE])
def test_the_studies_page(browser: Browser, tmp_path: Path, device: dict[str, Any]):
    write_proxy(tmp_path)
    write_other(tmp_path, "masking", "not replicated", claim=HOSTILE[1])
    with opened(browser, write_report(tmp_path), **device) as page:
        assert page.locator("svg.marks").count() == 1
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        page.locator("summary").first.click()
        assert page.locator("details p").first.is_visible()


@pytest.fixture(scope="module")
def laid_over(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs; the second one's folder has a name that would be a script."""
    made = tmp_path_factory.mktemp("compared")
    hostile = made / "<img src=x onerror='window.hacked=1'>"
    runs = [
        write_run(made / "at", iterations=6),
        write_run(hostile, tau=0.0, composer="shuffled"),
    ]
    return write_comparison_page(runs, made / "comparison.html")


@pytest.fixture(scope="module")
def comparison(browser: Browser, laid_over: Path) -> Iterator[Page]:
    """22 charts of two runs on a wide screen, drawn once for several tests."""
    with opened(browser, laid_over, viewport={"width": 1280, "height": 900}) as page:
        wanted = page.locator("script.specification").count()
        wait_until(page, f"poise.views.length === {wanted}")
        assert wanted == 22
        yield page


def along(page: Page) -> list[list[float]]:
    """Of every chart: where x begins and ends, and the last number along it."""
    return page.evaluate(
        """() => poise.views.map((view) => {
            return [...view.scale("x").domain(), view.signal("ends")[view.signal("along")]];
        })"""
    )


def test_runs_laid_over_each_other(comparison: Page):
    page = comparison
    for choice, end in (("rollouts", 144), ("steps", 8), ("iteration", 6)):
        page.locator(f".along [value={choice}]").check(force=True)
        wait_until(page, f"poise.views.every((v) => v.signal('along') === '{choice}')")
        for low, high, last in along(page):
            assert last == end
            assert -0.1 * end < low <= 0  # room for a point at the end
            assert end <= high < 1.1 * end
    chart = page.locator("#learning svg.marks").nth(1)  # training success, by iteration
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    assert box is not None
    middle = page.evaluate("poise.views[1].scale('x')(3) + poise.views[1].origin()[0]")
    for shift in (0, 1):  # the pointer has to move
        page.mouse.move(box["x"] + middle + shift, box["y"] + box["height"] / 2)
    wait_until(page, "poise.views.every((view) => view.signal('at') === 3)")
    told = page.locator("#vg-tooltip-element tr").all_inner_texts()
    # of prompt p, p + now - 3 of four are right: (0 + 1 + 2 + 3 + 4 + 4) / 24 in the third
    assert [line.split("\t")[1].strip() for line in told] == ["3 iterations", "58.3%", "58.3%"]
    assert told[1].startswith("at")  # a run may be called so


def test_a_run_can_be_faded(comparison: Page):
    faint = """() => [...document.querySelectorAll("#learning svg.marks")[2]
        .querySelectorAll(".mark-line path")].map((path) => Number(path.getAttribute("opacity")))"""
    page = comparison
    assert page.evaluate(faint) == [1, 1]
    second = page.locator(".bar button").nth(1)
    second.click()
    assert second.get_attribute("aria-pressed") == "false"
    wait_until(page, f"({faint})()[1] < 0.1")
    assert page.evaluate(faint)[0] == 1
    second.click()
    wait_until(page, f"({faint})()[1] === 1")
    page.locator(".along [value=rollouts]").focus()
    page.keyboard.press("ArrowRight")  # by keyboard
    wait_until(page, "poise.views.every((v) => v.signal('along') === 'steps')")


def check_names_stay_in_view(page: Page) -> None:
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    page.locator("#cancellation").scroll_into_view_if_needed()
    page.evaluate("scrollTo(0, document.body.scrollHeight / 2)")
    bar = page.locator(".bar").bounding_box()
    assert bar is not None
    assert bar["y"] == 0
    assert bar["height"] < 150


def test_a_comparison_fits_and_keeps_its_names_in_view(comparison: Page):
    check_names_stay_in_view(comparison)


def test_a_comparison_on_a_phone(browser: Browser, laid_over: Path):
    with opened(browser, laid_over, **PHONE) as page:
        check_names_stay_in_view(page)
