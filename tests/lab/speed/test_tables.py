"""Bars and tables: what is printed is what is written."""

from __future__ import annotations

import io
import json

import pytest
import torch
from rich.console import Console

from counterpoise.lab.speed.clock import Deadline, Timing, time_in_turns
from counterpoise.lab.speed.tables import (
    LimitCheck,
    MeasurementTable,
    format_gigabytes,
    print_table,
)


@pytest.mark.parametrize(
    ("value", "at_least", "passed"),
    [(0.30, False, True), (0.31, False, False), (0.30, True, True), (0.29, True, False)],
)
def test_a_check_passes_at_its_limit(value: float, at_least: bool, passed: bool) -> None:
    assert LimitCheck("x", value, 0.30, "s", at_least).passed is passed


def test_a_limit_check_says_its_side_and_verdict() -> None:
    assert (
        str(LimitCheck("sampling", 0.4123, 0.3, "s")) == "MISS  sampling: 0.4123 s, at most 0.3 s"
    )
    assert str(LimitCheck("speed", 9.0, 8.0, "x", True)) == "pass  speed: 9x, at least 8x"


def test_a_part_is_printed_and_written_whole() -> None:
    part = MeasurementTable(
        title="sampler",
        columns=("rollouts", "ours"),
        rows=[["512", "0.25 s"]],
        limit_checks=[LimitCheck("sampling", 0.25, 0.3, "s")],
        notes=["a [note] in brackets"],
        data={"sampler": [{"ours": Timing((0.2, 0.3, 0.25)).data()}]},
    )
    out = io.StringIO()
    print_table(part, Console(file=out, width=80))
    for text in ("sampler", "512", "0.25 s", "a [note] in brackets", "pass  sampling"):
        assert text in out.getvalue()
    read = json.loads(json.dumps(part.as_json()))
    assert read["bars"][0]["passed"] is True
    assert read["sampler"][0]["ours"] == {
        "median": 0.25, "spread": pytest.approx(0.4), "seconds": [0.2, 0.3, 0.25],
    }  # fmt: skip


def test_no_peak_is_a_dash() -> None:
    assert (format_gigabytes(0), format_gigabytes(13.8e9)) == ("-", "13.8 GB")


def test_warm_up_does_not_count() -> None:
    calls: list[str] = []
    device = torch.device("cpu")
    works = {name: (lambda name=name: calls.append(name)) for name in "ab"}
    found = time_in_turns(works, device, repeats=2)
    assert calls == ["a", "b", "a", "b", "a", "b"]  # warm-ups, then turns
    assert [len(found[name].seconds) for name in "ab"] == [2, 2]


def test_a_deadline_without_minutes_never_passes() -> None:
    assert not Deadline(None).passed
    assert Deadline(-1.0).passed
