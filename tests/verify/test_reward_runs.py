"""Runs with rewards as people have them: TRL's, verl's, and functions of one sample."""

from __future__ import annotations

import io
import math
from typing import Any

import pytest
from rich.console import Console

from counterpoise.cli.progress_display import LiveDisplay
from counterpoise.config.load import load_config
from counterpoise.loop import train
from counterpoise.store import schema
from counterpoise.store.folder import RunFolder

SETS = [
    "loop.iterations=2", "loop.checkpoint_every=2", "model.device='cpu'", "task.levels=[1]",
    "task.size=40", "task.heldout=4", "sample.prompts=4", "sample.group_size=4",
    "sample.max_new_tokens=24", "batch.steps=2", "evaluate.prompts=2", "evaluate.samples=2",
    "balance.tau=0", "monitor.every=0", "store.tokens=false",
]  # fmt: skip
REWARDS = '''
def accuracy(prompts, completions, completion_ids, answer, log_metric, trainer_state, **kwargs):
    """TRL's: half a point for digits; None for responses of an odd length."""
    assert len(prompts) == len(completions) == len(completion_ids) == len(answer)
    log_metric("step", trainer_state.global_step)
    log_metric("last", trainer_state.max_steps)
    rewards = [0.5 * any(map(str.isdigit, text)) + 0.5 * (gold in text)
               for text, gold in zip(completions, answer)]
    return [None if len(ids) % 2 else reward for ids, reward in zip(completion_ids, rewards)]


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    """verl's."""
    assert data_source == "word_problems"
    is_right = ground_truth in solution_str
    return {"score": float(is_right), "acc": is_right, "pred": solution_str[-2:]}


async def brevity(completion: str, answer: str) -> float:
    """A function of one sample."""
    return -len(completion) / 100
'''
KINDS = {
    "accuracy": "TRL's signature, called once for each batch",
    "compute_score": "verl's compute_score, called once for each response",
    "brevity": "a function of one sample, called once for each response",
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[RunFolder, str]]:
    """Two iterations with each kind of reward, and what the terminal showed."""
    folder = tmp_path_factory.mktemp("rewards")
    (folder / "mine.py").write_text(REWARDS, encoding="utf-8")
    trained = {}
    for kind in KINDS:
        config = load_config("demo", [*SETS, f"verify.name={folder}/mine.py:{kind}"])
        shown = io.StringIO()
        with LiveDisplay(Console(file=shown, width=200)) as display:
            run = train(config, folder / kind, observer=display)
        trained[kind] = run, shown.getvalue()
    return trained


@pytest.mark.parametrize("kind", KINDS)
def test_two_iterations_with_each_kind(kind: str, runs: dict[str, tuple[RunFolder, str]]) -> None:
    folder, shown = runs[kind]
    assert shown.startswith(f"reward mine.py:{kind}: {KINDS[kind]}\n")
    lines = folder.read("metrics")
    assert [line["iteration"] for line in lines] == [1, 2]
    rewards = [rollout["reward"] for n in (1, 2) for rollout in folder.read_rollouts(n)]
    assert len(rewards) == 32
    graded = kind != "compute_score"
    assert all(line.get("graded", False) is graded for line in lines)
    assert ("reward_low" in folder.read("evaluations")[0]) is graded
    assert ("held-out reward after 0 iterations" in shown) is graded
    assert ("held-out success after 2 iterations" in shown) is not graded
    fields = {*schema.METRICS, "schema"}
    for line in lines:
        assert {name for name in line if not name.startswith("logged_")} <= fields


def test_what_each_kind_logs(runs: dict[str, tuple[RunFolder, str]]) -> None:
    lines = runs["accuracy"][0].read("metrics")
    assert [line["logged_step"] for line in lines] == [0.0, 2.0]
    assert {line["logged_last"] for line in lines} == {4.0}
    rollouts = runs["accuracy"][0].read_rollouts(1)
    is_odd = [len(rollout["response_tokens"]) % 2 == 1 for rollout in rollouts]
    assert [math.isnan(rollout["reward"]) for rollout in rollouts] == is_odd
    assert lines[0].get("unscored", 0) == sum(is_odd)
    scored = [rollout["reward"] for rollout in rollouts if not math.isnan(rollout["reward"])]
    assert lines[0]["reward"] == pytest.approx(sum(scored) / len(scored))

    verl_folder = runs["compute_score"][0]
    (line, _), logged = verl_folder.read("metrics"), verl_folder.read_rollouts(1)
    assert line["logged_acc"] == line["success"] == line["reward"]
    assert "logged_pred" not in line
    assert all(rollout["logged"]["pred"] == rollout["response"][-2:] for rollout in logged)
    assert runs["brevity"][0].read("metrics")[0]["reward"] < 0


def test_the_terminal_shows_the_mean_reward_of_graded_runs(
    runs: dict[str, tuple[RunFolder, str]],
) -> None:
    folder, shown = runs["brevity"]
    first: dict[str, Any] = folder.read("metrics")[0]
    assert f"   1/2  reward {first['reward']:.3f}  " in shown
    assert "success" not in shown
    assert "reward " not in runs["compute_score"][1].partition("\n")[2]
