"""One thread a process (pytest-xdist runs two), no network, whatever the machine."""

from __future__ import annotations

import fcntl
import functools
import gc
import importlib.util
import os
import signal
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # also in the processes that tests start
# Two workers and every process that tests start would compile our modules again each time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

gc.disable()  # until the tests are collected: what is imported stays
settings.register_profile("any machine", deadline=None)  # two workers on a busy machine are slow
settings.load_profile("any machine")


def check_descriptor(descriptor: int) -> None:
    """Instead of a flush to the disk, which waits milliseconds and shows only after a power cut."""
    os.fstat(descriptor)


# Tests of what is flushed, and when, count the calls; `make torture` cuts the power of real ones.
os.fsync = check_descriptor


COMPILING = pytest.StashKey[int]()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Where nothing is compiled yet, as in a fresh clone, the workers of xdist take turns until
    their tests are collected: the first compiles 4,000 modules, and the others load them. At once,
    each of them would compile them all."""
    torch_bytecode = getattr(importlib.util.find_spec("torch"), "cached", None)
    if torch_bytecode and not Path(torch_bytecode).exists():
        name = f"poise-tests-{node.workerinput['testrunuid']}"
        node.workerinput["compile_lock"] = str(Path(tempfile.gettempdir(), name))


def pytest_configure(config: pytest.Config) -> None:
    """One thread for torch, before anything computes: a forked child inherits what threads left.

    The process that only hands out tests to others does not need torch, which takes seconds.
    """
    if path := getattr(config, "workerinput", {}).get("compile_lock"):
        config.stash[COMPILING] = os.open(path, os.O_CREAT | os.O_WRONLY)
        fcntl.flock(config.stash[COMPILING], fcntl.LOCK_EX)
    hands_out_tests = getattr(config.option, "numprocesses", None)
    if not hands_out_tests or "PYTEST_XDIST_WORKER" in os.environ:
        import torch

        torch.set_num_threads(1)
        build_commands_once()


def build_commands_once() -> None:
    """Typer makes its 22 commands and their options of our functions in every call: 40 ms that a
    user waits once, and a thousand tests of `poise` would wait each."""
    import typer.main
    import typer.testing

    build = typer.main.get_command
    build_once = functools.cache(lambda app, commands: build(app))

    def get_command(app: typer.Typer) -> object:
        commands = [(command.name, command.callback) for command in app.registered_commands]
        return build_once(app, tuple(commands))  # some tests register commands of their own

    typer.main.get_command = typer.testing._get_command = get_command


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first, so that no worker begins a long file when the other is
    about to end."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])  # stable: the order within a file is kept


def pytest_collection_finish(session: pytest.Session) -> None:
    """Half a million objects of imported modules live as long as the process. Frozen, they are not
    visited again by every garbage collection, nor copied by a forked child's."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)  # seldom: a twentieth of the time went into collections
    gc.enable()
    if COMPILING in session.config.stash:
        Path(session.config.workerinput["compile_lock"]).unlink(missing_ok=True)
        os.close(session.config.stash[COMPILING])


@pytest.fixture(autouse=True)
def mkldnn_as_it_was() -> Iterator[None]:
    """A bfloat16 product that a CPU lacks makes torch round otherwise for the rest of a process."""
    import torch

    before = torch.backends.mkldnn.enabled
    yield
    # Not by `flags`, which sets further switches and warns of one of them before every test.
    if torch.backends.mkldnn.enabled != before:
        torch.backends.mkldnn.enabled = before


@pytest.fixture(autouse=True)
def ctrl_c_is_heard() -> Iterator[None]:
    """In the background of a script it is ignored, and whatever tests start would be deaf to it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def forked_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of studies and experiments are forked: the same processes, without ten CPU seconds of
    imports each."""
    from forked import ForkingSubprocess

    from counterpoise.lab.experiments import fork_server, processes

    monkeypatch.setattr(fork_server, "subprocess", ForkingSubprocess)
    monkeypatch.setattr(processes, "POLL_SECONDS", 0.05)  # they end within a second or two


@pytest.fixture
def blank_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are made and written, but not drawn, which takes a second each: for tests of the
    words around them."""
    from types import SimpleNamespace

    from counterpoise.report.charts import figures

    drawing = SimpleNamespace(
        vegalite_to_png=lambda specification, **_: b"",
        vegalite_to_svg=lambda specification, **_: "",
    )
    monkeypatch.setattr(figures, "vl_convert", drawing)
