"""The page of `poise serve` in a real browser, where there is one, on a real server: it follows a
run, finds rollouts, shows who pushed a token, and is not taken over by what it shows.

`POISE_PICTURES=RUNS_FOLDER` writes the pictures of docs/guide/serve.md: see `test_the_pictures`.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
import uvicorn
from browser_pages import PATIENCE_SECONDS, borrowed_page
from hosts.importing.foreign import read_lines, trl_file
from report.audit.made_up_run import Faults, write_made_up_run
from report.synthetic import PIECES, G, P, write_run
from report.test_in_browser import CHROMIUM, HOSTILE, NAMES, PHONE
from serve.served import AuditInThisProcess, IndexInThisProcess, line, write_rollouts
from serve.test_audit_view import CountedAudits

from counterpoise.hosts.importing.write_folder import import_run
from counterpoise.serve.access import LOOPBACK, AccessGate
from counterpoise.serve.app import make_app
from counterpoise.serve.audit.shelf import AuditLauncher
from counterpoise.serve.library import RunLibrary
from counterpoise.serve.start import listen
from counterpoise.serve.views import prompts

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason=f"no browser: none of {', '.join(NAMES)} is there"),
]
DESKTOP = {"viewport": {"width": 1440, "height": 900}}
SCRIPT_NAME = "<img src=x onerror='window.hacked=1'>"
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
SUM_LAYOUT_SHIFTS = """
window.shifted = 0;
new PerformanceObserver((list) => {
    for (const entry of list.getEntries()) window.shifted += entry.value;
}).observe({ type: "layout-shift", buffered: true });
"""
TOLD = "document.querySelector('.head .told')?.textContent"
# A run that is read while it grows: files that gain lines, and folders that gain a file.
TABLES = ("rollouts", "tokens", "pushes")
LOGS = ("plans", "drops", "evaluations", "metrics")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with api.sync_playwright() as playwright:
        # The tests open their own server only; a sandbox inside a container cannot be had.
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield chromium
        chromium.close()


@contextmanager
def served(
    *folders: Path, cache: Path, patience: float = 60, auditor: AuditLauncher | None = None
) -> Iterator[str]:
    """The address of a real server over these folders, on a port of its own."""
    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    library = RunLibrary(folders, cache, IndexInThisProcess(cache), patience, auditor)
    gate = AccessGate(make_app(library), LOOPBACK, port, None)
    config = uvicorn.Config(
        gate, log_level="error", ws="none", lifespan="on", timeout_graceful_shutdown=0
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(timeout=10)
    library.close()
    listener.close()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four runs: whole, cut groups, still growing (its last iteration is held back), hostile."""
    folder = tmp_path_factory.mktemp("served") / "out"
    repeat_prompts(write_run(folder / "whole", iterations=6))
    write_run(folder / "cut", tau=0.0, composer="shuffled")
    write_run(folder / "growing", iterations=3, tau=0.0)
    write_run(
        folder / SCRIPT_NAME,
        tau=0.0,
        composer="shuffled",
        response="\n".join(HOSTILE[:3]) + "\x1b[31m",
        prompt=HOSTILE[1] + "\u202e",
        prompt_id=HOSTILE[1].replace("/", "-"),
        pieces=(*HOSTILE, *PIECES[len(HOSTILE) :]),
    )
    return folder


def repeat_prompts(run: Path) -> None:
    """Let every iteration sample the same prompts; write_run makes new ones each time."""
    for path in (run / "rollouts").iterdir():
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        for record in records:
            record["prompt_id"] = record["group"].partition(":")[2]
        path.write_text("".join(f"{json.dumps(record)}\n" for record in records), encoding="utf-8")


@pytest.fixture(scope="module")
def site(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    cache = tmp_path_factory.mktemp("cache")
    with served(runs, cache=cache, auditor=AuditInThisProcess()) as address:
        yield address


@contextmanager
def opened(browser: Browser, site: str, address: str, **options: Any) -> Iterator[Page]:
    """The page at an address; whatever it logs, and every request elsewhere, is a fault."""
    with borrowed_page(browser, **(options or DESKTOP)) as (page, events):
        page.goto(site + address)
        page.locator("main > *").first.wait_for()
        yield page
        assert [text for text in events if not text.startswith(f"{site}/")] == []
        assert page.evaluate("window.hacked") is None


def texts(page: Page, selector: str) -> list[str]:
    return page.locator(selector).all_inner_texts()


def wait_until(page: Page, condition: str) -> None:
    """Wait for a condition: the page's policy forbids Playwright's own waiting."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if page.evaluate(condition):
            return
        page.wait_for_timeout(20)
    pytest.fail(f"never came true: {condition}")


def fits(page: Page) -> bool:
    """Nothing is wider than the screen."""
    width = page.viewport_size["width"] if page.viewport_size else 0
    return page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_newest_alerts_come_first_and_keys_have_names(browser: Browser, tmp_path: Path):
    run = write_run(tmp_path / "out" / "run", iterations=12)
    (run / "config.toml").write_text("torn [")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").open()]
    records = [json.dumps({**line, "verifier_timeouts": 1}) for line in lines]
    (run / "metrics.jsonl").write_text("\n".join([*records, ""]))
    with (
        served(tmp_path / "out", cache=tmp_path / "c") as site,
        opened(browser, site, "/runs/run") as page,
    ):
        page.locator(".alerts li").nth(7).wait_for()
        alerts = texts(page, ".alerts li")
        assert "config.toml is damaged" in alerts[0]
        assert [re.findall(r"iteration (\d+)", text)[0] for text in alerts[1:]] == [
            str(number) for number in range(12, 5, -1)
        ]
        assert "The newest 8 of" in page.locator(".alerts").inner_text()
        page.goto(f"{site}/runs/run/rollouts/4/4%3Amade%2Fup%2F2/1")
        page.locator(".token").first.wait_for()
        page.keyboard.press("?")
        page.locator("dialog[open]").wait_for()
        assert "Space Space" not in page.locator("dialog[open]").inner_text().replace("\n", " ")


def test_runs_can_be_chosen_and_laid_over_each_other(browser: Browser, site: str):
    with opened(browser, site, "/") as page:
        assert page.title() == "Counterpoise"
        page.locator(".runs tbody tr").nth(3).wait_for()
        assert sorted(texts(page, ".runs .name")) == sorted(
            ["whole", "cut", "growing", SCRIPT_NAME]
        )
        assert page.locator(".runs .spark path").count() == 8  # a line and an area each
        page.locator("[data-run=whole] input").check()
        overlay = page.locator(".head a.strong")
        assert overlay.get_attribute("href") is None  # one is not enough
        page.locator("[data-run=cut] input").check()
        overlay.click()
        page.locator(".legend-run").nth(1).wait_for()
        assert page.url == f"{site}/overlay?run=whole&run=cut"
        assert "batch.composer" in page.locator(".options-table").inner_text()
        success = page.locator("figure.plot", has_text="Share of rollouts with a reward above 0")
        success.locator(".line").nth(1).wait_for()
        # of prompt p, p + n - 3 of four are right: 23 of 24 in iteration 6, 18 in iteration 4
        values = success.locator(".value").all_inner_texts()
        assert [text.split() for text in values] == [["whole", "95.8", "%"], ["cut", "75.0", "%"]]
        page.locator(".legend-run button").nth(1).click()
        success.locator("g.faded").wait_for(state="attached")
        assert success.locator("g.faded").count() == 1
        page.go_back()
        page.locator(".runs tbody tr").nth(3).wait_for()


def test_curves_share_a_crosshair_and_have_a_table(browser: Browser, site: str):
    with opened(browser, site, "/runs/whole") as page:
        charts = page.locator("figure.plot")
        assert charts.count() > 20
        page.locator(".stage:visible").first.wait_for()  # some stages take no time at all
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        wait_until(page, "document.querySelector('.stages th').textContent === 'iteration 2'")
        lines = page.locator(".cursor[visibility=visible]")
        assert lines.count() == charts.count() + 1  # and time by stage
        title = page.locator("figure.plot", has_text="Share of rollouts with a reward above 0")
        assert title.locator(".value").inner_text() == "41.7 %"  # 0 + 0 + 1 + 2 + 3 + 4 of 24
        page.locator(".numbers-behind summary").first.click()
        rows = page.locator(".figures-table").first.locator("tbody tr")
        assert rows.first.locator("th").inner_text() == "6"
        assert charts.nth(1).locator("svg").get_attribute("aria-label")
        page.keyboard.press("?")
        assert "open the newest iteration" in page.locator("dialog").inner_text()
        page.keyboard.press("Escape")
        page.locator("main").focus()
        page.keyboard.press("Enter")
        page.locator(".view-iteration .facts").wait_for()
        assert page.url == f"{site}/runs/whole/iterations/2"


def test_from_the_mosaic_to_a_group_to_a_token_to_who_pushed_it(browser: Browser, site: str):
    with opened(browser, site, "/runs/cut") as page:
        chart = page.locator("figure.plot .canvas").nth(1)
        box = chart.bounding_box()
        assert box is not None
        page.mouse.click(box["x"] + box["width"] - 8, box["y"] + box["height"] / 2)
        page.locator(".mosaic .cell").nth(P * G - 1).wait_for()
        assert page.url == f"{site}/runs/cut/iterations/4"
        assert page.locator(".mosaic .thread").count()  # shuffled: groups are cut
        cell = page.locator(".mosaic .cell").first
        cell.hover()
        assert "advantage" in page.locator(".mosaic .card").inner_text()
        cell.click()
        page.locator(".group-panel .response").nth(G - 1).wait_for()
        edges = page.locator(".group-panel .response").evaluate_all(
            "cards => cards.map((card) => card.getBoundingClientRect().right)"
        )
        assert max(edges) <= page.evaluate("document.documentElement.clientWidth")  # none is hidden
        assert "/iterations/4/groups/4%3Amade%2Fup%2F" in page.url
        page.locator(".response .more").first.click()
        page.locator(".tokens .strip .token").first.wait_for()
        assert texts(page, ".tokens .strip .token")[:3] == ["The", " answer", " is"]
        options = page.locator(".view-rollout select option").all_inner_texts()
        assert {"displacement", "advantage", "entropy", "ratio"} <= set(options)
        page.locator(".view-rollout select").select_option("entropy")
        assert page.locator(".strip .token.size").count() == page.locator(".strip .token").count()
    # Pushes are stored for the first group of the batch.
    place = watched_place(site)
    with opened(browser, site, place) as page:
        page.locator(".strip .token").nth(1).click()
        page.locator(".pusher").nth(5).wait_for()
        assert page.url == f"{site}{place}/tokens/1"
        heads = texts(page, ".pushers h4")
        assert heads[0].startswith("Up, 3 strongest: +")
        assert heads[1].startswith("Down, 3 strongest: −")
        likely = page.locator(".likely tbody tr").all_inner_texts()
        assert [line.split("\t")[:3] for line in likely] == [
            ["·answer sampled", "60.0 %", "70.0 %"],
            ["·is", "30.0 %", "20.0 %"],
        ]
        page.locator(".pusher:enabled").last.click()
        wait_until(page, f"!location.pathname.startsWith({json.dumps(place + '/tokens/1')})")
        assert re.search(r"/rollouts/4/[^/]+/\d/tokens/\d+$", page.url)
        page.go_back()
        wait_until(page, f"location.pathname === {json.dumps(place + '/tokens/1')}")
        wait_until(page, "!document.body.classList.contains('loading')")
        page.keyboard.press("Escape")
        wait_until(page, f"location.pathname === {json.dumps(place)}")


def watched_place(site: str, run: str = "cut", iteration: int = 4) -> str:
    """The address of a rollout whose pushes are stored."""
    batch = read(site, f"/runs/{quote(run, safe='')}/iterations/{iteration}")
    first = min((cell for step in batch["steps"] for cell in step), key=lambda cell: cell["row"])
    return str(read(site, first["place"])["watched_places"][0])


def read(site: str, address: str) -> Any:
    from urllib.request import Request, urlopen

    request = Request(site + address, headers={"Accept": "application/json"})
    with urlopen(request) as response:
        return json.load(response)


def test_rollouts_are_searched_filtered_sorted_and_paged(browser: Browser, site: str):
    with opened(browser, site, "/runs/whole/rollouts") as page:
        told = page.locator(".head .told")
        wait_until(page, f"{TOLD} === '144 rollouts'")
        assert page.locator(".rollouts tbody tr").count() == 50
        first = page.locator(".rollouts tbody tr").first
        seen = set(texts_of_places(page))
        page.keyboard.press("n")
        wait_until(page, "location.search.includes('after=')")
        wait_until(page, "!document.querySelector('.paging button').disabled")
        assert not seen & set(texts_of_places(page))  # no row twice
        second = page.url
        page.keyboard.press("n")
        wait_until(page, f"location.href !== '{second}'")
        wait_until(page, "document.querySelectorAll('.paging button')[1].disabled")
        page.go_back()
        wait_until(page, "!document.querySelectorAll('.paging button')[1].disabled")
        assert page.url == second
        page.keyboard.press("p")
        wait_until(page, "!location.search.includes('after=')")
        wait_until(page, "document.querySelector('.paging button').disabled")
        assert set(texts_of_places(page)) == seen
        boxes = page.locator(".rollouts tbody input")
        for k in range(3):
            boxes.nth(k).check()
        assert [boxes.nth(k).is_checked() for k in range(3)] == [False, True, True]
        assert page.locator(".head-tools a").inner_text() == "Compare these two"
        page.keyboard.press("/")
        page.keyboard.type("answer is nowhere")
        page.locator(".empty").wait_for()
        assert "Take a filter away" in page.locator(".empty").inner_text()
        page.locator("input[name=search]").fill("answer is 3")
        page.locator(".rollouts mark").first.wait_for()
        assert told.inner_text() == "144 rollouts"
        bars = page.locator(".histogram g")
        assert bars.count() == 2
        box = bars.nth(1).bounding_box()
        assert box is not None
        page.mouse.click(box["x"] + box["width"] / 2, box["y"] + 4)  # rewards of 1
        wait_until(page, "location.search.includes('reward_min=1')")
        right = sum(max(0, min(G, p + n - 3)) for p in range(P) for n in range(1, 7))
        wait_until(
            page, f"document.querySelector('.head .told').textContent === '{right} rollouts'"
        )
        assert set(texts(page, ".rollouts .reward")) == {"✓"}
        page.locator(".sort").nth(2).click()  # the longest first
        wait_until(page, "location.search.includes('sort=-length')")
        page.locator("[data-by=length][aria-sort=descending]").wait_for()
        lengths = [int(text) for text in texts(page, ".rollouts tbody td:nth-child(5)")]
        assert lengths == sorted(lengths, reverse=True)
        address = page.url
        save = page.locator("a.save")
        assert save.get_attribute("href") == address.replace(site, "").replace(
            "rollouts?", "rollouts.html?"
        )
        with page.expect_download() as download:
            save.click()
        assert "answer is 3" in download.value.path().read_text(encoding="utf-8")
        page.reload()  # the address is the view
        first.wait_for()
        assert page.locator("input[name=search]").input_value() == "answer is 3"
        assert told.inner_text() == f"{right} rollouts"


def texts_of_places(page: Page) -> list[str]:
    return page.locator(".rollouts tbody tr").evaluate_all(
        "rows => rows.map((r) => r.dataset.place)"
    )


def test_one_prompt_over_time_and_two_of_its_responses(browser: Browser, site: str):
    with opened(browser, site, "/runs/whole/prompts") as page:
        page.locator(".prompts tbody tr").nth(P - 1).wait_for()
        page.locator(".prompts a", has_text="How many?").first.click()
        page.locator(".visit").nth(5).wait_for()
        number = int(page.url.rpartition("%2F")[2])
        page.locator("figure.plot .point").first.wait_for()
        label = page.locator("figure.plot svg").first.get_attribute("aria-label")
        start, end = (max(0, min(G, number + n - 3)) / G for n in (1, 6))
        assert label is not None
        assert label.startswith(f"success: from {100 * start:.1f} % to {100 * end:.1f} %")
        page.locator(".visit").first.locator("input").first.check()
        page.locator(".visit").last.locator("input").first.check()
        page.keyboard.press("d")
        page.locator(".two-sides .response").nth(1).wait_for()
        assert "100 % of the longer text in common" in page.locator(".told").inner_text()


def test_a_prompt_with_more_visits_than_the_page_holds_is_followed(
    browser: Browser, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(prompts, "MOST_ITERATIONS", 2)
    growing = tmp_path / "out" / "growing"
    grow(runs / "whole", growing, iterations=2)
    with (
        served(tmp_path / "out", cache=tmp_path / "cache") as site,
        opened(browser, site, "/runs/growing/prompts") as page,
    ):
        page.locator(".prompts a", has_text="How many?").first.click()
        page.locator(".visit[data-iteration='2']").wait_for()
        page.locator(".live[data-state=live]").wait_for()
        grow(runs / "whole", growing, iterations=3)
        page.locator(".visit[data-iteration='3']").wait_for()
        assert page.locator(".visit").count() == 2  # as many as before
        assert "1 earlier visit left out" in page.locator(".told").inner_text()


def test_the_audit_appears_when_it_is_ready_and_leads_to_the_evidence(
    browser: Browser, tmp_path: Path
):
    write_made_up_run(tmp_path / "out" / "sick", Faults(composer="shuffled"))
    auditor = CountedAudits(is_free=False)
    with (
        served(tmp_path / "out", cache=tmp_path / "c", patience=0.05, auditor=auditor) as site,
        opened(browser, site, "/runs/sick") as page,
    ):
        page.locator(".head a", has_text="Audit this run").click()
        page.locator(".empty", has_text="3 of 12 files of rollouts").wait_for()
        assert page.url == f"{site}/runs/sick/audit"
        auditor.gate.set()
        alarm = page.locator(".finding.level-alarm").first
        alarm.wait_for()
        assert alarm.locator("h3").inner_text() == "Groups split over optimizer steps"
        assert (
            "First: Groups split over optimizer steps."
            in page.locator(".first-finding").inner_text()
        )
        assert texts(page, ".finding.level-alarm dt") == [
            "what to do",
            "what it costs",
            "threshold",
        ]
        assert "100.0 %" in alarm.locator(".measured td").first.inner_text()
        assert page.locator(".facts b").first.inner_text() == "1"  # alarm
        unchecked = page.locator(".panel", has_text="Not checked").locator("tbody tr")
        assert unchecked.count() == len(
            [
                finding
                for finding in read(site, "/runs/sick/audit")["report"]["findings"]
                if finding["level"] == "unsupported"
            ]
        )
        assert page.locator(".tabs [aria-current]").inner_text() == "Audit"
        with page.expect_download() as download:
            page.locator("a.save").click()
        assert "Groups split over optimizer steps" in download.value.path().read_text(
            encoding="utf-8"
        )
        alarm.locator(".examples a").first.click()
        page.locator(".group-panel .response").first.wait_for()
        assert "/runs/sick/iterations/1/groups/1%3Amade%2F" in page.url
        page.keyboard.press("g")
        page.keyboard.press("a")
        alarm.wait_for()


def test_an_iteration_that_is_written_appears_by_itself(
    browser: Browser, runs: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
):
    growing = tmp_path / "out" / "growing"
    grow(runs / "growing", growing, iterations=2)
    with (
        served(tmp_path / "out", cache=tmp_path_factory.mktemp("cache")) as site,
        opened(browser, site, "/runs/growing") as page,
        opened(browser, site, "/overlay?run=growing") as overlay,
    ):
        for each in (page, overlay):
            each.locator(".live[data-state=live]").wait_for()
        facts = "document.querySelector('.facts dd b').textContent"
        assert page.evaluate(facts) == "2"
        tops = "[...document.querySelectorAll('.panel')].map((panel) => panel.offsetTop).join()"
        before = page.evaluate(tops)
        grow(runs / "growing", growing, iterations=3)
        wait_until(page, f"{facts} === '3'")
        assert page.evaluate(tops) == before  # nothing jumped
        overlay.locator(".legend-run", has_text="3 iterations").wait_for()
        page.locator(".tabs a", has_text="Rollouts").click()
        wait_until(page, f"{TOLD} === '72 rollouts'")
        with (growing / "evaluations.jsonl").open("a") as log:
            log.write('{"schema": 1, "iteration": 3, "mean": 0.5}\n')
        overlay.locator(".brand").click()  # an overlay would ask for a run that is gone
        overlay.locator(".runs tbody tr").wait_for()
        shutil.rmtree(growing)
        page.locator(".notes", has_text="The run was deleted").wait_for()
        assert page.locator(".fresh").is_hidden()  # an evaluation is no new iteration
        page.locator(".brand").click()
        page.locator(".empty", has_text="No runs yet").wait_for()


def grow(source: Path, run: Path, iterations: int) -> None:
    """Write what the source has up to an iteration and the run has not, as training does."""
    run.mkdir(parents=True, exist_ok=True)
    for name in ("config.toml", "vocabulary.json"):
        shutil.copy(source / name, run / name)
    for name in TABLES:
        (run / name).mkdir(exist_ok=True)
        for path in (source / name).iterdir():
            if (
                int(path.stem.rpartition("_")[2]) <= iterations
                and not (run / name / path.name).exists()
            ):
                shutil.copy(path, run / name / path.name)
    for name in LOGS:
        log = run / f"{name}.jsonl"
        written = log.read_text(encoding="utf-8").count("\n") if log.exists() else 0
        if not (source / log.name).exists():
            continue
        lines = (source / log.name).read_text(encoding="utf-8").splitlines(keepends=True)
        with log.open("a", encoding="utf-8") as file:
            file.writelines(
                line for line in lines[written:] if json.loads(line)["iteration"] <= iterations
            )


def test_nothing_that_a_run_holds_is_executed(browser: Browser, site: str):
    name = quote(SCRIPT_NAME, safe="")
    place = watched_place(site, SCRIPT_NAME)
    prompt = read(site, f"/runs/{name}/prompts")["rows"][0]["prompt_id"]
    group = read(site, f"/runs/{name}/iterations/4")["groups"][0]["group"]
    shown = {
        f"/runs/{name}": ".plot",
        f"/runs/{name}/iterations/4/groups/{quote(group, safe='')}": ".response",
        f"/runs/{name}/rollouts?search=script": ".rollouts tbody tr",
        f"/runs/{name}/prompts/{quote(prompt, safe='')}": ".visit",
        f"{place}/tokens/1": ".strip .token",
        f"/runs/{name}/types": ".types tbody tr",
        f"/runs/{name}/audit": ".finding",
        f"/overlay?runs={name},whole": ".legend-run",
    }
    with opened(browser, site, "/") as page:
        for address, selector in shown.items():
            page.goto(site + address)
            page.locator(selector).first.wait_for()
            assert page.locator("main :is(img, script, iframe)").count() == 0
            assert page.evaluate("window.hacked") is None
        page.goto(f"{site}/runs/{name}/rollouts?search=script")
        page.locator(".rollouts mark").first.wait_for()
        row = page.locator(".rollouts tbody tr").first.inner_text()
        assert "window.hacked=1" in row  # as text
        assert "⟨U+202E⟩" in row  # spelled out, so that it reorders nothing


def test_the_policy_stops_scripts_that_came_in_and_every_request(browser: Browser, site: str):
    context = browser.new_context()
    page = context.new_page()
    page.goto(site)
    stopped = page.evaluate(
        """async () => {
            const stopped = new Set();
            document.addEventListener("securitypolicyviolation", (event) => {
                stopped.add(event.effectiveDirective);
            });
            const attempt = (act) => { try { act(); } catch {} };
            const added = document.createElement("div");
            document.body.append(added);
            attempt(() => added.setAttribute("onclick", "window.hacked = 2"));
            attempt(() => added.insertAdjacentHTML("beforeend", "<b>x</b>"));
            added.click();
            new Image().src = "https://example.invalid/pixel.png";
            await fetch("https://example.invalid/").catch(() => null);
            await new Promise((done) => setTimeout(done, 100));
            return { stopped: [...stopped].sort(), markup: added.childElementCount };
        }"""
    )
    assert {"connect-src", "img-src"} <= set(stopped["stopped"])
    assert stopped["markup"] == 0
    assert page.evaluate("window.hacked") is None
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_in_light_and_dark(browser: Browser, site: str, scheme: str):
    place = watched_place(site)
    with opened(browser, site, "/", **PHONE, color_scheme=scheme) as page:
        light = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert light == ("rgb(255, 254, 251)" if scheme == "light" else "rgb(21, 23, 26)")
        views = {
            "/": ".runs tbody tr",
            "/runs/whole": ".plot",
            "/runs/cut/iterations/4": ".mosaic .cell",
            "/runs/whole/rollouts": ".rollouts tbody tr",
            f"{place}/tokens/1": ".pusher",
            "/runs/whole/prompts/made%2Fup%2F3": ".visit",
            "/runs/whole/types": ".types tbody tr",
            "/runs/cut/audit": ".finding",
        }
        page.add_init_script(SUM_LAYOUT_SHIFTS)
        for address, selector in list(views.items())[: None if scheme == "light" else 1]:
            page.goto(site + address)
            page.locator(selector).first.wait_for()
            assert fits(page), address
            assert page.evaluate("window.shifted") < 0.05, address  # web vitals call 0.1 good
            if address != "/":  # navigation at every width
                assert page.locator(".tabs a").count() == 6
                assert page.locator(".tabs a").first.is_visible()


def test_what_is_not_there_says_what_to_do(browser: Browser, site: str):
    context = browser.new_context(**DESKTOP)
    page = context.new_page()
    page.goto(f"{site}/runs/nowhere")
    page.locator(".empty", has_text="there is no run nowhere").wait_for()
    page.locator(".empty a", has_text="All runs").click()
    page.locator(".runs tbody tr").first.wait_for()
    context.close()


# -- pictures of the guide ---------------------------------------------------------------------

PICTURE = {"viewport": {"width": 1200, "height": 720}}
SHORT = {"viewport": {"width": 1200, "height": 640}}  # a table of texts makes a large file
SCROLLED = {"group": 230, "token": 190}  # pixels
PICTURES = Path(__file__).parents[2] / "docs" / "images"


@pytest.mark.skipif("POISE_PICTURES" not in os.environ, reason="writes docs/images/serve_*.png")
def test_the_pictures(browser: Browser, tmp_path: Path):
    """POISE_PICTURES names a folder of runs of `poise demo`; the newest is shown.

    `poise demo --set task.size=64` samples its prompts several times.
    """
    folder = Path(os.environ["POISE_PICTURES"])
    picture_of_training(browser, folder, tmp_path)
    with served(folder, cache=tmp_path / "cache") as site:
        newest = read(site, "/")["runs"][0]
        run = f"/runs/{quote(newest['name'], safe='')}"
        batch = next(
            batch
            for n in range(newest["iterations"], 0, -1)
            if (batch := read(site, f"{run}/iterations/{n}"))["steps"]
        )
        rewards = {
            (cell["group"], cell["index"]): cell["reward"]
            for step in batch["steps"]
            for cell in step
        }
        # A group whose first two responses differ shows more than one of equals.
        mixed = [g for g, i in rewards if i == 0 and rewards.get((g, 1), 0) != rewards[g, 0]]
        group = quote(batch["groups"][(mixed or [0])[0]]["group"], safe="")
        prompt = read(site, f"{run}/prompts?sort=-times&limit=1")["rows"][0]["prompt_id"]
        iteration = f"{run}/iterations/{batch['iteration']}"
        place = watched_place(site, newest["name"], batch["iteration"])
        token = f"{place}/tokens/{strongest_token(site, place)}"
        search = f"{run}/rollouts?search=half&sign=negative"
        for name, address, selector, options in (
            ("group", f"{iteration}/groups/{group}", ".response", PICTURE),
            ("search", search, ".rollouts mark", SHORT),
            ("prompt", f"{run}/prompts/{quote(prompt, safe='')}", ".visit", PICTURE),
            ("token", token, ".pusher", {**PICTURE, "color_scheme": "dark"}),
            ("phone", run, ".plot", {**PHONE, "device_scale_factor": 1.5}),
        ):
            with opened(browser, site, address, **options) as page:
                page.locator(selector).first.wait_for()
                page.wait_for_timeout(500)
                page.evaluate(f"scrollTo(0, {SCROLLED.get(name, 0)})")
                page.screenshot(path=PICTURES / f"serve_{name}.png")
            assert (PICTURES / f"serve_{name}.png").stat().st_size < 150_000


@pytest.mark.skipif("POISE_PICTURES" not in os.environ, reason="writes docs/images/serve_audit*")
def test_the_pictures_of_an_audit(browser: Browser, tmp_path: Path):
    """The first run of the folder with an alarm; `poise study audit` leaves some in its --out."""
    folder = Path(os.environ["POISE_PICTURES"])
    with served(folder, cache=tmp_path / "cache", auditor=AuditInThisProcess()) as site:
        addresses = [
            f"/runs/{quote(run['name'], safe='')}/audit" for run in read(site, "/")["runs"]
        ]
        alarming = (
            each for each in sorted(addresses) if read(site, each)["report"]["facts"]["alarms"]
        )
        address = next(alarming)
        for name, options in (
            ("audit", SHORT),
            ("audit_phone", {**PHONE, "device_scale_factor": 1.5, "color_scheme": "dark"}),
        ):
            with opened(browser, site, address, **options) as page:
                page.locator(".finding.level-alarm").first.wait_for()
                page.wait_for_timeout(500)
                page.screenshot(path=PICTURES / f"serve_{name}.png")
            assert (PICTURES / f"serve_{name}.png").stat().st_size < 150_000


def picture_of_training(browser: Browser, folder: Path, tmp_path: Path) -> None:
    """The newest run again as it was two thirds on, written while the page is open."""
    source = max(folder.glob("*/metrics.jsonl"), key=lambda log: log.stat().st_mtime).parent
    run = tmp_path / "out" / source.name
    iterations = 2 * len((source / "metrics.jsonl").read_text(encoding="utf-8").splitlines()) // 3
    grow(source, run, iterations - 1)
    descriptor = os.open(run, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)  # as a run that is being trained
    address = f"/runs/{quote(run.name, safe='')}"
    with (
        served(run.parent, cache=tmp_path / "live") as site,
        opened(browser, site, address, **PICTURE) as page,
    ):
        page.locator(".live[data-state=live]").wait_for()
        grow(source, run, iterations)
        wait_until(page, f"document.querySelector('.facts dd b').textContent === '{iterations}'")
        for _ in range(4):
            page.keyboard.press("ArrowLeft")
        page.wait_for_timeout(500)
        page.screenshot(path=PICTURES / "serve_run.png")
    os.close(descriptor)
    assert (PICTURES / "serve_run.png").stat().st_size < 150_000


def strongest_token(site: str, place: str) -> int:
    moved = [abs(x or 0.0) for x in read(site, place)["tokens"]["displacement"]]
    return moved.index(max(moved))


def test_a_run_with_graded_rewards_is_drawn_as_rewards(browser: Browser, tmp_path: Path):
    runs = tmp_path / "runs"
    evaluations = [
        {"iteration": 0, "mean": 1.0, "low": 0.9, "high": 1.0, "reward": 1.25, "reward_low": 1.0,
         "reward_high": 1.5},
        {"iteration": 2, "mean": 0.5, "low": 0.4, "high": 0.6, "reward": 2.5, "reward_low": 2.0,
         "reward_high": 3.0},
    ]  # fmt: skip
    benchmarks = [{"benchmark": "theirs", "title": "Theirs", **record} for record in evaluations]
    for log, records in (("evaluations", evaluations), ("benchmarks", benchmarks)):
        write_rollouts(runs / "graded", 1, line())
        text = "".join(f"{json.dumps(record)}\n" for record in records)
        (runs / "graded" / f"{log}.jsonl").write_text(text)
    with served(runs, cache=tmp_path / "cache") as site:
        # Before the first iteration there are evaluations only.
        with opened(browser, site, "/runs/graded") as page:
            page.locator("#benchmarks .plot").wait_for()
            assert texts(page, ".plot-title") == ["held-out reward", "Theirs"]
            wait_until(page, "[...document.querySelectorAll('.readout')].every((e) => e.innerText)")
            assert texts(page, ".readout") == ["2.50", "2.50"]
        with (runs / "graded" / "metrics.jsonl").open("a") as log_file:
            for iteration in (1, 2):
                record = {"iteration": iteration, "reward": 1.5, "success": 1.0, "graded": True}
                log_file.write(f"{json.dumps(record)}\n")
        with opened(browser, site, "/runs/graded") as page:
            facts = page.locator(".facts").inner_text().replace("\n", " ")
            assert "held-out reward 2.50 +1.25" in facts
            assert "mean reward 1.50 mean of the last 2" in facts
            page.goto(f"{site}/runs/graded/iterations/2")
            page.locator(".scrubber .plot-title", has_text="mean reward").wait_for()
            page.goto(f"{site}/overlay?run=graded")
            page.locator(".plot-title", has_text="held-out reward").wait_for()
            assert "mean reward 1.50" in page.locator(".legend-bar").inner_text()


def test_an_import_that_counts_from_zero_and_has_many_rewards(browser: Browser, tmp_path: Path):
    run = tmp_path / "runs" / "theirs"
    rewards = [k / 20 for k in range(21)]  # on the edges of the bars
    for iteration in (0, 1):
        lines = [line(f"{iteration}:a", "yes", reward) for reward in rewards]
        write_rollouts(run, iteration, *lines)
        record = {"iteration": iteration, "reward": 0.5, "truncated_share": 0.9}
        with (run / "metrics.jsonl").open("a") as log:
            log.write(f"{json.dumps(record)}\n")
    with (
        served(tmp_path / "runs", cache=tmp_path / "cache") as site,
        opened(browser, site, "/runs/theirs") as page,
    ):
        page.locator(".alerts a", has_text="iteration 0").wait_for()
        page.goto(f"{site}/runs/theirs/iterations/1")
        page.locator("a[aria-label='Previous iteration'][href]").click()
        wait_until(page, "location.pathname.endsWith('/iterations/0')")
        page.goto(f"{site}/runs/theirs/rollouts")
        bar = page.locator(".histogram g").nth(10)
        box = bar.bounding_box()
        assert box is not None
        page.mouse.click(box["x"] + box["width"] / 2, box["y"] + 4)
        page.locator(".histogram g.left-out").first.wait_for()
        assert page.locator(".histogram g.kept").count() == 1
        (count,) = re.findall(r": (\d+) rollouts", bar.locator("title").text_content() or "")
        wait_until(page, f"{TOLD} === '{count} rollouts'")
        written = page.evaluate(
            "import('/assets/format.js').then((f) => [f.seconds(119.7), f.number(2.5e9)])"
        )
        assert written == ["2 min 0 s", "2.5e+9"]


def test_an_imported_run_says_what_its_files_lack(browser: Browser, tmp_path: Path) -> None:
    """A run of one step, without plans and times: nothing is empty without a reason."""
    trl_file(tmp_path / "trl", step=9)
    import_run(tmp_path / "trl", tmp_path / "runs" / "theirs", tokenizer="embedded")
    (group, *_) = read_lines(tmp_path / "runs/theirs/rollouts/step_00009.jsonl")
    with (
        served(tmp_path / "runs", cache=tmp_path / "cache") as site,
        opened(browser, site, "/runs/theirs", **PHONE) as page,
    ):
        page.locator(".plot .point").first.wait_for()  # a line of one value is a dot
        assert page.locator(".facts").inner_text().split("\n")[:2] == [
            "iterations",
            "1 the last is 9",
        ]
        assert "mean of the last" not in page.locator(".facts").inner_text()
        assert "Its files hold no times" in page.locator("#time").inner_text()
        # The trail is one line of text: the report's rules for narrow screens are not for it.
        tops = page.evaluate(
            "[...document.querySelectorAll('.trail li > *')].map((e) => e.getBoundingClientRect())"
            ".filter((box) => box.width).map((box) => Math.round(box.top))"
        )
        assert len(set(tops)) == 1
        page.goto(f"{site}/")
        assert page.locator(".progress-cell").inner_text() == "1 the last is 9"
        page.goto(f"{site}/runs/theirs/iterations/9")
        page.locator(".empty", has_text="imported rollouts do not tell the steps").wait_for()
        page.locator(".empty a", has_text="Its rollouts").click()
        page.locator(".rollouts tbody tr").first.wait_for()
        assert page.locator(".rollouts tbody tr").count() == 4
        name = quote(group["group"], safe="")
        page.goto(f"{site}/runs/theirs/rollouts/9/{name}/0")
        page.locator(".strip .token").first.wait_for()
        assert texts(page, ".strip .token") == ["3"]  # spelled out by the tokenizer
        assert "its optimizer step is not known" in page.locator("main").inner_text()
