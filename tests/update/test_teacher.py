"""A teacher that follows the policy every few iterations: when, and in a resumed run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from safetensors.numpy import load_file
from small_run import small_model

from counterpoise.config.load import config_from_tables, load_config
from counterpoise.errors import PoiseError
from counterpoise.loop import train
from counterpoise.run.observer import RunObserver
from counterpoise.store import checkpoint
from counterpoise.update.reference import sync_teacher
from counterpoise.update.rules.bind import teacher_interval


def test_it_follows_every_third_iteration() -> None:
    policy, teacher, copied = tiny.policy(), None, []
    for iteration in range(1, 8):
        teacher = sync_teacher(policy, teacher, 3, iteration)
        assert teacher is not None
        copied.append(float(teacher["model.norm.weight"][0]))
        with torch.no_grad():
            policy.model.model.norm.weight += 1
    assert copied == [1, 1, 1, 4, 4, 4, 7]
    assert sync_teacher(policy, None, 0, 1) is None


def test_token_weights_and_a_rule_share_one_teacher() -> None:
    sets = ["credit.weights=rlsd", 'credit.settings=["teacher_every=10"]']
    assert teacher_interval(config_from_tables({}, sets).credit) == 10
    rule = ["credit.rule=sdpg", 'credit.rule_settings=["teacher_every=10"]']
    assert teacher_interval(config_from_tables({}, rule).credit) == 10
    assert teacher_interval(config_from_tables({}, [*sets, *rule]).credit) == 10
    assert teacher_interval(config_from_tables({}, []).credit) == 0
    with pytest.raises(PoiseError, match="teacher_every of 5 and 10: there is one teacher"):
        config_from_tables({}, [*sets, *rule[:1], 'credit.rule_settings=["teacher_every=5"]'])
    # Without its setting, a method has the current policy as its teacher.
    with pytest.raises(PoiseError, match="teacher_every of 0 and 10: there is one teacher"):
        config_from_tables({}, [*rule, "credit.weights=rlsd"])


RUN = [
    "loop.iterations=3", "loop.checkpoint_every=1", "sample.prompts=4", "sample.group_size=4",
    "sample.max_new_tokens=8", "task.levels=[1]", "task.size=8", "batch.steps=2",
    "balance.tau=0", "balance.target=0", "evaluate.prompts=0", "update.lr=1e-3",
    "credit.weights=rlsd", "credit.rule=sdpg", "store.report=false", "monitor.every=0",
]  # fmt: skip


class StopAfterTwo(RunObserver):
    """The teacher of iteration 3 is then of iteration 1."""

    def on_iteration(self, record: dict) -> None:
        if record["iteration"] == 2:
            raise KeyboardInterrupt


def final_weights(folder: Path) -> dict[str, np.ndarray]:
    return load_file(folder / "checkpoints" / checkpoint.folder_name(3) / "model.safetensors")


def test_an_interrupted_run_ends_as_one_that_was_not(tmp_path: Path) -> None:
    settings = ["credit.settings=['teacher_every=3']", "credit.rule_settings=['teacher_every=3']"]
    model = small_model(tmp_path)
    config = load_config("demo", [*RUN, *model, *settings])
    whole = train(config, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "cut", observer=StopAfterTwo())
    cut = train(config, tmp_path / "cut", resume=True)
    weights, resumed = final_weights(whole.path), final_weights(cut.path)
    assert all(np.array_equal(weights[name], resumed[name]) for name in weights)
    assert [line["added_loss"] for line in whole.read("metrics")] == [
        line["added_loss"] for line in cut.read("metrics")
    ]
    assert whole.read("metrics")[2]["added_loss"] > 0
