"""The command that computes pushes that a run did not store."""

from __future__ import annotations

from pathlib import Path

import pytest

from counterpoise.report.missing_pushes import replay_command


@pytest.mark.parametrize(
    ("checkpoints", "weights", "precision"),
    [
        ((), "Qwen/Qwen3-0.6B", "with the model that the run began with, so not exactly"),
        ((4, 11, 12), "out/run/checkpoints/iteration_00011", "from the checkpoint before it"),
        ((4, 12), "out/run/checkpoints/iteration_00004", "after iteration 4, so not exactly"),
        ((12, 20), "Qwen/Qwen3-0.6B", "with the model that the run began with"),  # none later
    ],
)
def test_the_nearest_weights_before_the_update_are_named(
    tmp_path: Path, checkpoints: tuple[int, ...], weights: str, precision: str
):
    for number in checkpoints:
        (tmp_path / "checkpoints" / f"iteration_{number:05d}").mkdir(parents=True)
    command = replay_command(tmp_path, 12, 6, shown_as="out/run", model="Qwen/Qwen3-0.6B")
    assert command.text == (
        f"poise replay out/run --model {weights} --iterations 12 --set monitor.watch=6 "
        "--set monitor.tokens=0"
    )
    assert precision in command.explanation
    assert command.sentence == f"{command.explanation} {command.text}"


def test_the_first_update_is_taken_again_with_its_own_weights(tmp_path: Path):
    first = replay_command(tmp_path, 1, 6, shown_as="out/run", model="embedded")
    assert "with the model that the run began with, and store" in first.explanation
    unknown = replay_command(tmp_path, 1, 6, shown_as="out/run")
    assert "with the model that you name, so not exactly" in unknown.explanation


def test_a_name_cannot_leave_its_word(tmp_path: Path):
    command = replay_command(tmp_path, 1, 2, shown_as="a b; rm -rf $HOME")
    assert command.text.startswith("poise replay 'a b; rm -rf $HOME' --model MODEL --iterations 1 ")
