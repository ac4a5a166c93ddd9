"""Engines compared on one run file: which runs are trained, and what the tables say of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from counterpoise.errors import PoiseError
from counterpoise.lab.experiments.engine_parity import (
    RECORD_FILE,
    Arm,
    EngineComparison,
    TrainedRun,
    curve_table,
    main,
    parse_arm,
    summary_table,
)

# As small as a run can be: a second each.
SMALL = [
    "loop.iterations=3", "sample.prompts=2", "sample.group_size=2", "sample.max_new_tokens=4",
    "batch.steps=1", "balance.tau=0", "task.size=8", "task.levels=[1]", "task.heldout=2",
    "evaluate.prompts=2", "evaluate.samples=1", "evaluate.every=1", "verify.name=exact",
]  # fmt: skip


def made_up(arm: str, seed: int, start: float, end: float, *seconds: float) -> TrainedRun:
    return TrainedRun(arm, seed, {"held-out 0": start, "held-out 3": end}, list(seconds))


RUNS = [
    made_up("native", 0, 0.10, 0.30, 90.0, 50.0, 1.0, 2.0),
    made_up("native", 1, 0.10, 0.40, 90.0, 50.0, 3.0, 2.0),
    made_up("vllm", 0, 0.12, 0.33, 90.0, 50.0, 8.0, 9.0),
    made_up("vllm", 1, 0.10, 0.41, 90.0, 50.0, 7.0, 8.0),
]


def test_an_arm_is_an_engine_with_options() -> None:
    assert parse_arm("native") == Arm("native", "native")
    assert parse_arm("a=trl sample.engine=vllm 'task.levels=[1, 2]'") == Arm(
        "a", "trl", ("sample.engine=vllm", "task.levels=[1, 2]")
    )
    with pytest.raises(PoiseError, match="verl"):
        parse_arm("a=verl")


def test_the_summary_leaves_the_first_iterations_out_of_the_seconds() -> None:
    _, _, native, vllm = summary_table(RUNS).splitlines()
    assert native == "| native | 2 | 2.00 | 35.0 [-28.5, 98.5] |  |"
    # 3 and 1 points more: 2 on average, with Student's interval of two values.
    assert vllm == "| vllm | 2 | 8.00 | 37.0 [-13.8, 87.8] | +2.0 [-10.7, +14.7] |"


def test_only_seeds_that_both_arms_have_are_paired() -> None:
    runs = [*RUNS, made_up("vllm", 2, 0.9, 0.9, 1.0, 1.0, 1.0)]
    assert "| vllm | 3 | 8.00 |" in summary_table(runs)
    assert "+2.0 [-10.7, +14.7]" in summary_table(runs)
    first_row = curve_table(RUNS, "native", "vllm").splitlines()[2]
    assert first_row.startswith("| held-out 0 | 10.0 [10.0, 10.0] | 11.0 [")
    assert first_row.endswith("| +1.0 [-11.7, +13.7] | no |")


def test_runs_are_trained_once_and_recorded(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    sets = [f"--set={option}" for option in SMALL]
    words = [
        "demo",
        "--arm",
        "warm=native sample.temperature=0.9",
        *sets,
        "--seeds=1",
        f"--out={tmp_path}",
    ]
    assert main(words) == 0
    assert "warm, seed 0\n" in capsys.readouterr().out
    record = json.loads((tmp_path / RECORD_FILE).read_text())
    assert [run["arm"] for run in record["runs"]] == ["warm"]
    assert list(record["runs"][0]["curve"]) == [
        "sampled 1", "sampled 2", "sampled 3",
        "held-out 0", "held-out 1", "held-out 2", "held-out 3",
    ]  # fmt: skip
    assert [len(run["iteration_seconds"]) for run in record["runs"]] == [3]
    assert main(words) == 0  # nothing is left to train
    assert "seed 0" not in capsys.readouterr().out
    assert main([*words, "--seeds=2", "--minutes=0"]) == 0
    assert "seed 1" not in capsys.readouterr().out


def test_a_bad_request_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["demo", "--arm", "verl", f"--out={tmp_path}"]) == 2
    assert capsys.readouterr().out.startswith("poise: ")
    assert main(["demo", "--arm", "trl", "--arm", "trl", f"--out={tmp_path}"]) == 2
    assert "two arms have the same name" in capsys.readouterr().out
    assert main(["no-such-run", f"--out={tmp_path}"]) == 2
    with pytest.raises(PoiseError, match="vllms"):
        EngineComparison("demo", [parse_arm("native sample.engine=vllms")], [0], tmp_path)
