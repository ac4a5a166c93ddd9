"""Planted prompts: the rule on made-up records, and one small run with a leak and a poison."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from counterpoise.errors import PoiseError
from counterpoise.lab.studies.harness import Lab
from counterpoise.lab.studies.plants import (
    _measure_seed,
    area_under_curve,
    judge,
    measure,
    rank_of,
)
from counterpoise.statistics.finding import Record


def made_up(first_share: float, poison: float, seeds: int = 6) -> list[Record]:
    """Four copies a seed, of which a share ranks first; poison at one influence, clean around 0."""
    records: list[Record] = []
    for seed in range(1, seeds + 1):
        for copy in range(4):
            rank = 1 if copy < 4 * first_share else 7
            records.append({"seed": seed, "kind": "copy", "prompt": f"p{copy}", "rank": rank})
        for number in range(20):
            influence = (number - 10) / 10 + seed / 100
            records.append(
                {"seed": seed, "kind": "clean", "prompt": f"c{number}", "influence": influence}
            )
        records.append({"seed": seed, "kind": "poison", "prompt": "x", "influence": poison})
    return records


@pytest.mark.parametrize(
    ("first_share", "poison", "verdict"),
    [(1.0, -2.0, "replicated"), (0.0, -2.0, "not replicated"), (0.5, -2.0, "inconclusive")],
)
def test_the_rule(first_share: float, poison: float, verdict: str) -> None:
    records = made_up(first_share, poison)
    assert judge(records).verdict == verdict
    assert area_under_curve(records, seed=1) == 1.0


def test_ranks_begin_with_the_strongest() -> None:
    influences = {"a": 0.1, "b": 0.5, "c": -1.0}
    assert [rank_of(name, influences) for name in ("b", "a", "c", "d")] == [1, 2, 3, 0]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("task.name=hub", "plants makes word problems of its own"),
        ("task.path=mine.jsonl", "plants makes word problems of its own"),
        ("loop.iterations=9", "plants sets loop.iterations itself: use --size iterations"),
        ("monitor.every=1", "plants sets monitor.every itself: leave it out"),
    ],
)
def test_options_that_would_have_no_effect_are_refused(
    tmp_path: Path, option: str, message: str
) -> None:
    lab = Lab("embedded", "quick", tmp_path, sizes={"seeds": 0}, options=(option,))
    with pytest.raises(PoiseError, match=f"--set {option}: {message}"):
        measure(lab)
    assert (
        measure(Lab("m", "quick", tmp_path, sizes={"seeds": 0}, options=["task.levels=[1]"])) == []
    )


def test_a_copy_of_a_benchmark_problem_is_found_first(tmp_path: Path) -> None:
    sizes = {"seeds": 1, "prompts": 8, "plants": 2, "benchmark": 3, "iterations": 1}
    options = (
        "model.device=cpu", "sample.max_new_tokens=64", "task.levels=[1]", "sample.prompts=8",
    )  # fmt: skip
    lab = Lab("embedded", "quick", tmp_path, sizes=sizes, options=options)
    records = _measure_seed(lab, seed=1)
    lab.close()
    copies = [record for record in records if record["kind"] == "copy"]
    assert len(copies) == 2
    # Through the output layer one of them would be behind two prompts that resemble it.
    assert sorted(record["rank"] for record in copies) == [1, 1]
    assert {record["kind"] for record in records} >= {"copy", "clean"}
    # The poisoned prompt trains towards a mistake: its reference is not the problem's answer.
    lines = (tmp_path / "plants" / "seed_1" / "train.jsonl").read_text().splitlines()
    benchmark = (tmp_path / "plants" / "seed_1" / "benchmark.jsonl").read_text()
    trained = {json.loads(line)["id"] for line in lines}
    answered = {json.loads(line)["prompt_id"] for line in benchmark.splitlines()}
    assert len(trained & answered) == 2
