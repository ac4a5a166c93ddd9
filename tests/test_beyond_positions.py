"""A run and a dry run of more tokens than the model has positions for: one line, both numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from counterpoise.config.load import load_config
from counterpoise.loop import train
from counterpoise.run.estimate import describe_run
from counterpoise.run.observer import RunObserver

SETS = [
    "loop.iterations=1", "sample.prompts=2", "sample.group_size=2", "batch.steps=1",
    "balance.tau=0", "evaluate.prompts=0", "task.size=4", "monitor.every=0", "store.model=false",
]  # fmt: skip


class Heard(RunObserver):
    def __init__(self) -> None:
        self.said: list[str] = []

    def notify(self, message: str) -> None:
        self.said.append(message)


@pytest.mark.parametrize("room", [900, 1000])
def test_a_run_says_it_once(room: int, tmp_path: Path) -> None:
    watch = Heard()
    config = load_config("demo", [*SETS, f"sample.max_new_tokens={room}"])
    train(config, tmp_path / "run", observer=watch)
    lines = [line for line in watch.said if "positions" in line]
    assert len(lines) == (room > 900)
    for line in lines:
        assert line.startswith("WARNING: a prompt of ")
        assert "a response of 1,000 go beyond the 1,024 positions" in line


@pytest.mark.parametrize(("preset", "beyond"), [("qwen2.5-math-7b", 1), ("qwen3-4b-base", 0)])
def test_a_dry_run_says_it_of_responses(preset: str, beyond: int) -> None:
    said = describe_run(load_config(preset, [])).count(
        "#   WARNING        a response of 8,192 tokens goes beyond the 4,096 positions the model "
        "was made for: a lower sample.max_new_tokens stays within them"
    )
    assert said == beyond
