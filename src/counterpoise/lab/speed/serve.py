"""Measure `poise serve` on a made-up run: pages, filters, searches and memory, while it grows.

    poise bench --parts serve                                 # a run of 100x102x300
    poise bench --parts serve --run-size 1000x1024x300        # about 13 GB of disk, three minutes

Requests go over HTTP to a server in its own process: first while it makes the index, then while
another process appends an iteration about every second. Every search is for a new word, so no
answer comes from the results that the server keeps. Limits are for the larger run and two free
cores: on a busy machine read the server's CPU seconds, which two cores can halve for a search.
Memory is the peak of the server and of its child processes (the index), added. The delay of a new
iteration runs from its line of metrics to the first event that names it or a later one. All matches
of a planted word are paged through while the run is still growing: a match of an iteration that was
indexed before must be there, once.
"""

from __future__ import annotations

import http.client
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

from counterpoise.errors import PoiseError
from counterpoise.lab.speed.machine_sizes import SpeedSetup
from counterpoise.lab.speed.made_up_run import (
    GROUP_SIZE,
    NEEDLE,
    NEEDLE_EVERY,
    RunSize,
    write_made_up_run,
)
from counterpoise.lab.speed.tables import LimitCheck, MeasurementTable, format_seconds

RUN = "made-up"
APPENDED_SHARE = 0.01  # of the run's iterations, at least APPENDED_LEAST
APPENDED_LEAST = 6
# Not a multiple of the half second between two looks of the server: appending in step with them
# would make all delays equally long, or equally short.
APPEND_EVERY_SECONDS = 1.1
PAGE_SECONDS, FILTER_SECONDS, SEARCH_SECONDS, NEWS_SECONDS = 1.0, 1.0, 3.0, 2.0
MEMORY_BYTES = 1e9
INDEX_LIMIT_SECONDS = 1800
EVENT_LIMIT_SECONDS = 10.0  # an iteration that no event has named by then counts as unannounced
FILTERS: dict[str, dict[str, Any]] = {
    "first page": {},
    "sign": {"sign": "negative"},
    "reward, by length": {"reward_min": 0.5, "sort": "-length"},
    "length": {"length_min": 400},
    "cut off": {"cut": 1},
    "no spread": {"no_spread": 1},
    "dropped": {"dropped": "no_signal"},
    "prompt": {"prompt": "made_up/train/7"},
    "by advantage": {"sort": "advantage"},
    "iterations": {"iteration_min": 5, "iteration_max": 9},
}
SEARCHES = {
    "a rare word": NEEDLE,
    "a word that is nowhere": "zymurgy",
    "a word of many responses": "batika",
    "two words": f"serial {NEEDLE[:6]}",
    "a phrase in prompts": '"question made_up/train/7"',
}


class RequestTiming(NamedTuple):
    """Of one request. The server's CPU seconds hardly depend on what else the machine does."""

    seconds: float
    cpu_seconds: float


@dataclass(slots=True)
class Measurements:
    """The time of every request, by what was asked."""

    pages: dict[str, RequestTiming] = field(default_factory=dict)
    filters: dict[str, RequestTiming] = field(default_factory=dict)
    searches: dict[str, RequestTiming] = field(default_factory=dict)
    news: list[float] = field(default_factory=list)  # delay of each appended iteration
    unannounced: int = 0  # appended iterations that no event named; their delay is the time waited
    write_seconds: float = 0.0
    index_seconds: float = 0.0
    memory: dict[str, float] = field(default_factory=dict)  # process -> peak bytes
    lost: int = 0
    doubled: int = 0


class Client:
    """Asks the server for JSON, one request after another."""

    def __init__(self, address: str, server: int) -> None:
        """`server` is its process."""
        self.host = urlsplit(address).netloc
        self.server = server

    def get(self, path: str, **parameters: Any) -> tuple[Any, RequestTiming]:
        query = f"?{urlencode(parameters)}" if parameters else ""
        connection = http.client.HTTPConnection(self.host, timeout=120)
        started, cpu_before = time.perf_counter(), cpu_seconds(self.server)
        connection.request("GET", path + query)
        response = connection.getresponse()
        text = response.read()
        seconds = time.perf_counter() - started
        timing = RequestTiming(seconds, cpu_seconds(self.server) - cpu_before)
        connection.close()
        if response.status != 200:
            raise PoiseError(f"{path}{query} answered {response.status}: {text[:200]!r}")
        return json.loads(text), timing


def measure(setup: SpeedSetup) -> MeasurementTable:
    try:
        import counterpoise.serve.start  # noqa: F401 (the extra may be missing)
    except ModuleNotFoundError as fault:
        note = f"skipped: {fault.name} is missing; pip install 'counterpoise[serve]'"
        return MeasurementTable(title="serve", columns=(), rows=(), notes=[note])
    size = RunSize.parse(setup.run_size)
    folder = Path(tempfile.mkdtemp(prefix="poise-bench-"))
    try:
        return as_table(measure_in(folder, size, setup), size)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure_in(folder: Path, size: RunSize, setup: SpeedSetup) -> Measurements:
    """Write the run into `folder` unless it is there, serve it and ask for everything."""
    measured = Measurements()
    run = folder / "runs" / RUN
    started = time.perf_counter()
    if not run.exists():
        setup.log(f"serve: writing a run of {size}")
        write_made_up_run(run, size)
    measured.write_seconds = time.perf_counter() - started
    with start_server(folder) as (address, process):
        client = Client(address, process.pid)
        _measure_pages(client, measured)
        setup.log("serve: waiting for the index")
        measured.index_seconds = _wait_for_index(client, size.iterations)
        appended = max(APPENDED_LEAST, int(size.iterations * APPENDED_SHARE))
        growth = RunSize(appended, size.rollouts, size.tokens)
        with follow_events(address) as events, append_iterations(run, growth) as appender:
            _measure_queries(client, measured)
            matches = _page_through(client)
            commits = _wait_for_commits(appender, appended)
            _wait_for_event(events, max(commits))
        measured.news, measured.unannounced = measure_delays(commits, events, time.time())
        _wait_for_index(client, size.iterations + appended)
        total = client.get(f"/runs/{RUN}/rollouts")[0]["total"]
        measured.lost, measured.doubled = count_lost_and_doubled(matches, total, size, appended)
        measured.memory = peak_memory(process.pid)
    return measured


@contextmanager
def start_server(folder: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """(address, process) of a server over the folder's runs."""
    command = [sys.executable, "-m", "counterpoise.cli", "serve", str(folder / "runs")]
    command += ["--port", "0", "--no-token", "--cache", str(folder / "cache")]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        address = process.stdout.readline().strip() if process.stdout else ""
        if not address.startswith("http"):
            raise PoiseError("the server did not start: see poise serve")
        yield address, process
    finally:
        process.terminate()
        process.wait(timeout=30)


@contextmanager
def append_iterations(run: Path, size: RunSize) -> Iterator[subprocess.Popen[str]]:
    """Another process that writes an iteration about every second, as training does."""
    shape = f"{size.iterations}x{size.rollouts}x{size.tokens}"
    command = [sys.executable, "-m", "counterpoise.lab.speed.made_up_run", str(run)]
    process = subprocess.Popen(
        [*command, "--size", shape, "--every", str(APPEND_EVERY_SECONDS)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def _wait_for_commits(appender: subprocess.Popen[str], count: int) -> dict[int, float]:
    """Iteration -> time at which the appending process had written it."""
    output, _ = appender.communicate()
    lines = [line.split() for line in output.splitlines()]
    commits = {int(iteration): float(seconds) for iteration, seconds in lines}
    if appender.returncode or len(commits) != count:
        raise PoiseError(f"{len(commits)} of {count} iterations could be appended to the run")
    return commits


class RunEvent(NamedTuple):
    """An event of the server: when it came, and the newest iteration that it names."""

    received: float  # time.time()
    iteration: int


@contextmanager
def follow_events(address: str) -> Iterator[list[RunEvent]]:
    """The events of the run, added to the list as they arrive."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
    connection.request("GET", "/events")
    response = connection.getresponse()
    events: list[RunEvent] = []
    stopped = threading.Event()

    def listen() -> None:
        while not stopped.is_set():
            try:
                line = response.readline()
            except (OSError, ValueError, http.client.HTTPException):
                return
            if not line.startswith(b"data: "):
                continue
            event = json.loads(line[6:])
            if event["run"] == RUN:
                events.append(RunEvent(time.time(), event["iterations"]))

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    yield events
    stopped.set()


def _wait_for_event(events: list[RunEvent], iteration: int) -> None:
    """Wait until an event names the iteration, at most EVENT_LIMIT_SECONDS."""
    deadline = time.monotonic() + EVENT_LIMIT_SECONDS
    while not any(event.iteration >= iteration for event in events):
        if time.monotonic() > deadline:
            return
        time.sleep(0.05)


def measure_delays(
    commits: dict[int, float], events: Sequence[RunEvent], until: float
) -> tuple[list[float], int]:
    """(seconds from each commit to the first event that names it, iterations never named).

    An event names all iterations up to its own. Where none came by `until`, the delay is the time
    since the commit, which is less than the true one.
    """
    delays, unannounced = [], 0
    for iteration, committed in commits.items():
        times = [event.received for event in events if event.iteration >= iteration]
        unannounced += not times
        delays.append(min(times, default=until) - committed)
    return delays, unannounced


def _measure_pages(client: Client, measured: Measurements) -> None:
    """Every kind of page, before the index is there."""
    _, measured.pages["list of runs"] = client.get("/")
    _, measured.pages["one run"] = client.get(f"/runs/{RUN}")
    _, measured.pages["rollouts, first visit"] = client.get(f"/runs/{RUN}/rollouts")
    batch, measured.pages["one iteration"] = client.get(f"/runs/{RUN}/iterations/3")
    place = batch["steps"][0][0]["place"]
    _, measured.pages["one rollout, its tokens"] = client.get(place)


def _measure_queries(client: Client, measured: Measurements) -> None:
    for name, parameters in FILTERS.items():
        _, measured.filters[name] = client.get(f"/runs/{RUN}/rollouts", **parameters)
    for name, text in SEARCHES.items():
        _, measured.searches[name] = client.get(f"/runs/{RUN}/rollouts", search=text)
    page, _ = client.get(f"/runs/{RUN}/rollouts", limit=1)
    prompt_id = quote(page["rows"][0]["prompt_id"], safe="")
    _, measured.pages["one prompt over time"] = client.get(f"/runs/{RUN}/prompts/{prompt_id}")


def _wait_for_index(client: Client, iterations: int) -> float:
    """Seconds until every rollout can be searched."""
    started = time.perf_counter()
    while time.perf_counter() - started < INDEX_LIMIT_SECONDS:
        page, _ = client.get(f"/runs/{RUN}/rollouts", limit=1, sort="-iteration")
        newest = page["rows"][0]["iteration"] if page["rows"] else 0
        if page["indexed"] == 1.0 and newest == iterations:
            return time.perf_counter() - started
        time.sleep(1.0)  # asking more often would slow the index down
    raise PoiseError(f"the index was not ready after {INDEX_LIMIT_SECONDS} seconds")


def _page_through(client: Client) -> list[int]:
    """Serial numbers of all rollouts with the planted word, while iterations arrive."""
    serials: list[int] = []
    after = ""
    while after is not None:
        page, _ = client.get(
            f"/runs/{RUN}/rollouts", search=NEEDLE, sort="iteration", limit=500, after=after
        )
        serials += [int(row["response"].split()[1].rstrip(".")) for row in page["rows"]]
        after = page["next"]
    return serials


def count_lost_and_doubled(
    serials: Sequence[int], total: int, size: RunSize, appended: int
) -> tuple[int, int]:
    """Rows missing from the pages of matches or from the total, and rows too many there.

    `serials` were paged through while `appended` iterations followed the first `size.iterations`,
    which were indexed before. Matches of the appended ones may be missing at the end only: pages
    are in the order of writing, and those after the last match had perhaps not been written.
    """
    rollouts = size.rollouts // GROUP_SIZE * GROUP_SIZE
    iterations = size.iterations + appended
    planted = {
        serial
        for serial in range(rollouts, rollouts * (iterations + 1))
        if serial % NEEDLE_EVERY == 0
    }
    last_required = max(rollouts * (size.iterations + 1) - 1, *serials, 0)
    required = {serial for serial in planted if serial <= last_required}
    difference = total - rollouts * iterations
    lost = len(required - set(serials)) + max(0, -difference)
    doubled = len(serials) - len(planted & set(serials)) + max(0, difference)
    return lost, doubled


def cpu_seconds(process: int) -> float:
    """CPU time that a process has used, in all its threads."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_memory(server: int) -> dict[str, float]:
    """Peak bytes of the server, and of the processes it started, added."""
    lists = Path(f"/proc/{server}/task").glob("*/children")  # by the thread that started them
    children = [child for each in lists for child in each.read_text().split()]
    return {
        "server": _peak_bytes(server),
        "child processes": sum(_peak_bytes(int(child)) for child in children),
    }


def _peak_bytes(process: int) -> float:
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return float(line.split()[1]) * 1024
    return 0.0


def as_table(measured: Measurements, size: RunSize) -> MeasurementTable:
    kinds = {
        "page": (measured.pages, PAGE_SECONDS),
        "filter": (measured.filters, FILTER_SECONDS),
        "search": (measured.searches, SEARCH_SECONDS),
    }
    memory = sum(measured.memory.values())
    limit_checks = [
        LimitCheck(f"slowest {kind}", max(timing.seconds for timing in times.values()), limit, "s")
        for kind, (times, limit) in kinds.items()
    ]
    limit_checks += [
        LimitCheck(
            "a new iteration is announced after",
            max(measured.news, default=math.inf),
            NEWS_SECONDS,
            "s",
        ),
        LimitCheck("memory, server and index", memory / 1e6, MEMORY_BYTES / 1e6, "MB"),
        LimitCheck("lost or doubled rows", measured.lost + measured.doubled, 0),
    ]
    load = os.getloadavg()[0]
    search_cpu = max(timing.cpu_seconds for timing in measured.searches.values())
    return MeasurementTable(
        title=f"serve, a run of {size} tokens",
        columns=("kind", "what", "time", "CPU"),
        rows=[
            (kind, name, format_seconds(timing.seconds), format_seconds(timing.cpu_seconds))
            for kind, (times, _) in kinds.items()
            for name, timing in times.items()
        ],
        limit_checks=limit_checks,
        notes=[
            f"written in {format_seconds(measured.write_seconds)}, indexed in "
            f"{format_seconds(measured.index_seconds)}; load average {load:.1f} on "
            f"{os.cpu_count()} cores",
            ", ".join(f"{name} {peak / 1e6:.0f} MB" for name, peak in measured.memory.items()),
            f"{len(measured.news)} iterations appended, {measured.unannounced} of them never "
            "announced",
            f"slowest search on two free cores: about {format_seconds(search_cpu / 2)}, half of "
            "its CPU time",
        ],
        data={
            "pages": measured.pages,
            "filters": measured.filters,
            "searches": measured.searches,
            "news": measured.news,
            "memory": measured.memory,
            "index_seconds": measured.index_seconds,
            "size": str(size),
        },
    )
