"""One thread a process (pytest-xdist runs two), no network, whatever the machine."""

from __future__ import annotations

import gc
import os
import signal

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # also in the processes that tests start
# Two workers and every process that tests start would compile our modules again each time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

from collections import Counter
from collections.abc import Iterator

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


def pytest_configure(config: pytest.Config) -> None:
    """One thread for torch, before anything computes: a forked child inherits what threads left.

    The process that only hands out tests to others does not need torch, which takes seconds.
    """
    hands_out_tests = getattr(config.option, "numprocesses", None)
    if not hands_out_tests or "PYTEST_XDIST_WORKER" in os.environ:
        import torch

        torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first, so that no worker begins a long file when the other is
    about to end."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])  # stable: the order within a file is kept


def pytest_collection_finish() -> None:
    """Half a million objects of imported modules live as long as the process. Frozen, they are not
    visited again by every garbage collection, nor copied by a forked child's."""
    gc.collect()
    gc.freeze()
    gc.enable()


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

    from counterpoise.lab.experiments import processes

    monkeypatch.setattr(processes, "subprocess", ForkingSubprocess)
    monkeypatch.setattr(processes, "POLL_SECONDS", 0.05)  # they end within a second or two
