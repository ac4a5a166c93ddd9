"""Runs with rewards as people have them: TRL's, verl's, and functions of one sample."""

from __future__ import annotations

import io
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report.synthetic import Page
from rich.console import Console

from counterpoise.cli.progress_display import LiveDisplay
from counterpoise.config.load import load_config
from counterpoise.errors import PoiseError
from counterpoise.lab.choose_page import write_report
from counterpoise.loop import train
from counterpoise.report.audit.rank import audit_run
from counterpoise.report.compare.page import write_comparison_page
from counterpoise.report.panels.learning import histogram_records
from counterpoise.run.decline import describe_decline
from counterpoise.run.heldout import summarize_rewards
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


# -- report and comparison ---------------------------------------------------------------------


def test_the_report_of_a_graded_run(runs: dict[str, tuple[RunFolder, str]], tmp_path: Path) -> None:
    graded = Page(write_report(runs["brevity"][0].path, tmp_path / "graded.html"))
    text = " ".join(graded.text.split())
    last = runs["brevity"][0].read("evaluations")[-1]
    assert f"after iteration 2 {last['reward']:.3f} 95 % interval {last['reward_low']:.3f}" in text
    assert "Mean held-out reward at" in text
    assert "they are graded, so their mean is shown" in text
    assert "Histogram of rewards, 16 and 16 rollouts" in graded.source
    assert "Held-out success" not in text
    plain = Page(write_report(runs["compute_score"][0].path, tmp_path / "plain.html"))
    assert "Held-out success at" in plain.text
    assert "Histogram of rewards" not in plain.source
    assert "ean held-out reward" not in plain.text


def test_pages_of_one_graded_problem_show_no_interval(
    runs: dict[str, tuple[RunFolder, str]], tmp_path: Path
) -> None:
    """Its interval is not known; charts would draw and write a missing bound as 0."""
    folders = [tmp_path / name for name in ("one", "other")]
    for folder in folders:
        shutil.copytree(runs["brevity"][0].path, folder)
        log = folder / "evaluations.jsonl"
        unknown = {"reward_low": None, "reward_high": None, "prompts": 1}
        lines = [json.loads(line) | unknown for line in log.read_text().splitlines()]
        log.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    last = lines[-1]
    page = Page(write_report(folders[0], tmp_path / "page.html"))
    assert f"{last['reward']:.3f} 95 % interval not known" in " ".join(page.text.split())
    assert "95 % from" not in page.source
    compared = Page(write_comparison_page(folders, tmp_path / "compared.html"))
    assert f"{last['reward']:.3f}interval not known" in " ".join(compared.text.split())
    assert "isValid(datum.low)" in compared.source  # of the tooltip
    assert '"filter":"isValid(datum.low)"' not in compared.source  # a rule without any value
    findings = audit_run(folders[0]).findings
    (rate,) = [finding for finding in findings if finding.name == "learning_rate"]
    assert all(number.low is None for number in rate.measurements if "held-out" in number.name)


def test_a_histogram_counts_every_reward() -> None:
    records = histogram_records({"muted": [0.0, 0.0, 1.0, 2.4], "series": [2.4]})
    muted = [record["share"] for record in records if record["style"] == "muted"]
    series = [record["share"] for record in records if record["style"] == "series"]
    assert (muted[0], muted[10], muted[23], sum(muted)) == (0.5, 0.25, 0.25, 1.0)
    assert (series[23], sum(series)) == (1.0, 1.0)
    assert (records[0]["start"], records[23]["end"]) == (0.0, 2.4)


def test_runs_are_compared_by_reward_if_any_is_graded(
    runs: dict[str, tuple[RunFolder, str]], tmp_path: Path
) -> None:
    folders = [runs[kind][0].path for kind in ("brevity", "compute_score")]
    page = Page(write_comparison_page(folders, tmp_path / "page.html"))
    text = " ".join(page.text.split())
    assert "held-out reward, last evaluation" in text
    assert "Training reward" in text
    assert "Held-out success" not in text
    last = runs["brevity"][0].read("evaluations")[-1]
    assert f"{last['reward']:.3f}{last['reward_low']:.3f} to {last['reward_high']:.3f}" in text


def test_the_means_of_held_out_rewards() -> None:
    """Two problems with means 0.5 and 2.5: 1.5, give or take 12.706 / sqrt(2) * sqrt(2)."""
    rewards_PG = np.array([[0.0, 1.0], [2.0, 3.0], [np.nan, np.nan]])
    measured = summarize_rewards(rewards_PG, graded=True)
    assert (measured.reward, measured.prompts, measured.samples) == (1.5, 2, 2)
    assert measured.reward_high == pytest.approx(1.5 + 12.7062, abs=1e-3)
    assert str(measured) == "1.500 [-11.206, 14.206]"
    assert measured.quantity == "reward"
    plain = summarize_rewards(np.array([[0.0, 1.0], [1.0, 1.0]]))
    assert "reward_low" not in plain.to_record()
    assert plain.quantity == "success"
    with pytest.raises(PoiseError, match="returned None for every held-out response"):
        summarize_rewards(np.full((2, 2), np.nan))
    records = [{"iteration": i, "temperature": 1.0, "top_p": 1.0} for i in (0, 9)]
    better = replace(measured, reward=3.0, reward_low=2.5, reward_high=3.5)
    worse = replace(measured, reward=1.0, reward_low=0.5, reward_high=1.5)
    evaluations = [r | e.to_record() for r, e in zip(records, (better, worse), strict=True)]
    assert describe_decline(evaluations, [], 1e-5) == (
        "held-out reward ended below its start, 3.000 [2.500, 3.500] -> 1.000 [0.500, 1.500]; "
        "lower update.lr, which was 1e-05, or stop earlier"
    )
