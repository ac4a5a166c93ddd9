"""What a run says at its end when it made the model worse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from counterpoise.config.load import load_config
from counterpoise.loop import train
from counterpoise.run.decline import describe_decline
from counterpoise.run.observer import RunObserver


def judged(iteration: int, mean: float, margin: float = 0.05, **more: float) -> dict[str, Any]:
    low, high = max(0.0, mean - margin), min(1.0, mean + margin)
    counts = {"prompts": 128, "samples": 8, "pass_any": 1.0, "mixed": 0.5}
    return {"iteration": iteration, "mean": mean, "low": low, "high": high, **counts, **more}


def test_a_run_that_gained_or_stayed_says_nothing() -> None:
    assert describe_decline([judged(0, 0.4), judged(9, 0.2), judged(20, 0.4)], [], 1e-4) == ""
    assert describe_decline([judged(0, 0.0), judged(20, 0.0)], [], 1e-4) == ""
    assert describe_decline([], [], 1e-4) == ""


def test_less_than_half_is_a_collapse() -> None:
    told = describe_decline([judged(0, 0.4), judged(20, 0.19)], [], 1e3)
    assert told == (
        "the run collapsed: held-out success ended below half of its start, "
        "40.0 % [35.0, 45.0] -> 19.0 % [14.0, 24.0]; "
        "lower update.lr, which was 1000, or stop earlier"
    )
    told = describe_decline([judged(0, 0.4), judged(20, 0.2)], [], 1e3)
    assert told == (
        "held-out success ended below its start, 40.0 % [35.0, 45.0] -> 20.0 % [15.0, 25.0]; "
        "lower update.lr, which was 1000, or stop earlier"
    )


def test_overlapping_intervals_may_be_chance() -> None:
    told = describe_decline([judged(0, 0.4), judged(20, 0.38)], [], 1e-4)
    assert told == (
        "held-out success ended below its start, 40.0 % [35.0, 45.0] -> 38.0 % [33.0, 43.0]; "
        "the intervals overlap, so it may be chance"
    )


def test_the_first_setting_decides() -> None:
    lines = [
        judged(0, 0.4, temperature=1.0, top_p=1.0), judged(0, 0.5, temperature=0.6, top_p=0.95),
        judged(9, 0.5, temperature=1.0, top_p=1.0), judged(9, 0.1, temperature=0.6, top_p=0.95),
    ]  # fmt: skip
    assert describe_decline(lines, [], 1e-4) == ""


def test_without_held_out_problems_training_prompts_tell_of_a_collapse() -> None:
    success = [0.4, 0.6, 0.5, 0.5, 0.5, 0.5, 0.2, 0.28]
    records = [{"success": share, "rollouts": 200} for share in success]
    assert describe_decline([], records, 1e-4, group_size=4) == (
        "the run collapsed: success on training prompts ended below half of its start, "
        "50.0 % [40.4, 59.6] -> 24.0 % [16.7, 33.2] (first and last quarter of the iterations); "
        "lower update.lr, which was 0.0001, or stop earlier"
    )
    assert describe_decline([], [*records[:-1], {"success": 0.3, "rollouts": 200}], 1e-4) == ""
    assert describe_decline([], records[:3], 1e-4) == ""
    # Groups are counted: the same success, of a tenth as many prompts.
    assert describe_decline([], records, 1e-4, group_size=40) == ""


def test_few_rollouts_are_no_collapse() -> None:
    success = [1 / 9, 0.0, 0.0, 0.0, 1 / 9, 0.0]
    records = [{"success": share, "rollouts": 9} for share in success]
    assert describe_decline([], records, 1e-4, group_size=3) == ""
    assert describe_decline([], records, 1e-4) == ""
    evaluations = [judged(0, 0.4, 0.2), judged(20, 0.1, 0.15)]
    assert describe_decline(evaluations, [], 1e-4) == (
        "held-out success ended below its start, 40.0 % [20.0, 60.0] -> 10.0 % [0.0, 25.0]; "
        "the intervals overlap, so it may be chance"
    )


class Listener(RunObserver):
    def __init__(self) -> None:
        self.messages: list[str] = []

    def notify(self, message: str) -> None:
        self.messages.append(message)


@pytest.mark.parametrize(("rate", "warned"), [("1e3", True), ("1e-9", False)])
def test_an_absurd_learning_rate_is_told(tmp_path: Path, rate: str, warned: bool) -> None:
    sets = [
        "loop.iterations=1", "model.device='cpu'", "task.levels=[1]", "task.size=16",
        "sample.prompts=4", "sample.group_size=4", "batch.steps=1", "balance.tau=0",
        "evaluate.prompts=24", "evaluate.samples=2", "verify.workers=1", "monitor.every=0",
        "store.model=false", "store.report=false", "update.warmup_steps=0", f"update.lr={rate}",
        "sample.max_new_tokens=48",
    ]  # fmt: skip
    listener = Listener()
    train(load_config("demo", sets), tmp_path / "run", observer=listener)
    told = [m for m in listener.messages if m.startswith("the run collapsed: held-out success")]
    assert len(told) == warned, listener.messages
    assert all("lower update.lr, which was 1000" in message for message in told)
