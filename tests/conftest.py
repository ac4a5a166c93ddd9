"""One thread a process (pytest-xdist runs two), no network, whatever the machine."""

from __future__ import annotations

import os
import signal

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from collections.abc import Iterator

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def mkldnn_as_it_was() -> Iterator[None]:
    """A bfloat16 product that a CPU lacks makes torch round otherwise for the rest of a process."""
    with torch.backends.mkldnn.flags(enabled=torch.backends.mkldnn.enabled):
        yield


@pytest.fixture(autouse=True)
def ctrl_c_is_heard() -> Iterator[None]:
    """In the background of a script it is ignored, and whatever tests start would be deaf to it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
