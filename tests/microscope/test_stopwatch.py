from __future__ import annotations

import time

import pytest
import torch

from counterpoise.microscope.stopwatch import Stopwatch


def test_only_what_runs_inside_is_counted() -> None:
    watch = Stopwatch()
    assert watch.seconds == 0
    for _ in range(2):
        with watch.running(torch.device("cpu")):
            time.sleep(0.01)
        time.sleep(0.05)
    assert watch.seconds >= 0.02
    assert watch.seconds == watch.seconds


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_is_timed_although_nothing_waits_for_it() -> None:
    watch, x = Stopwatch(), torch.randn(4096, 4096, device="cuda")
    torch.cuda.synchronize()
    start = time.perf_counter()
    with watch.running(x.device):
        for _ in range(50):
            x @ x
    queued = time.perf_counter() - start
    assert watch.seconds > queued
