"""`poise trace`: sums that add up, tables, JSON, and one clear line where there is nothing."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from small_run import small_config
from typer.testing import CliRunner

from counterpoise.cli import app
from counterpoise.errors import PoiseError, format_count
from counterpoise.loop import train
from counterpoise.report.probe_trace.agreement import (
    Agreement,
    AgreementMeter,
    Momentum,
    explained_share,
)
from counterpoise.report.probe_trace.influence import trace_problem, trace_prompt, trace_run
from counterpoise.report.probe_trace.read import ProbedRun
from counterpoise.update.optimizer import BETA1

SETS = (
    "monitor.probe=12",
    "monitor.probe_every=1",
    "monitor.probe_refresh=2",
    "task.heldout=6",
    "task.size=18",
)


def measure_agreement(probed_run: ProbedRun) -> Agreement:
    """The agreement of all traced updates of a run."""
    meter = AgreementMeter(probed_run)
    for probed in probed_run.read():
        meter.add(probed)
    return meter.result()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("trace")
    train(small_config(base, *SETS), base / "run")
    train(small_config(base), base / "blind")
    return base / "run"


def poise_trace(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["trace", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def read_json(*arguments: object) -> dict:
    return json.loads(poise_trace(*arguments, "--json"))


def right_answers(run: Path, problem: str) -> list[tuple[int, int]]:
    """(iteration, answer) of the problem's right answers, from the files themselves."""
    lines = [json.loads(line) for line in (run / "probes.jsonl").read_text().splitlines()]
    places = []
    for path in sorted((run / "probes").iterdir()):
        iteration = int(path.stem.removeprefix("step_"))
        line = [line for line in lines if line["iteration"] <= iteration][-1]
        places += [
            (iteration, number)
            for number, answer in enumerate(line["answers"])
            if answer["problem_id"] == problem and answer["reward"] > 0
        ]
    return places


def test_the_movement_of_a_problem_is_the_sum_of_its_tokens(run: Path) -> None:
    probed_run = ProbedRun.open(run)
    trace = trace_run(probed_run)
    problem = max(trace.problems, key=lambda name: trace.problems[name]["updates"])
    moved = 0.0
    for iteration, answer in right_answers(run, problem):
        table = pq.read_table(run / "probes" / f"step_{iteration:05d}.parquet")
        chosen = table["answer"].to_numpy() == answer
        moved += table["displacement"].to_numpy()[chosen].astype(float).sum()
    assert trace.problems[problem]["right"] == pytest.approx(moved)
    assert moved != 0


def test_prompts_and_updates_add_up_to_the_same_prediction(run: Path) -> None:
    probed_run = ProbedRun.open(run)
    for problem in probed_run.problem_ids:
        trace = trace_problem(probed_run, problem)
        updates = [update for update in trace.updates if update.kind == "right"]
        predicted = sum(update.predicted for update in updates)
        assert sum(x.total for x in trace.prompts.values()) == pytest.approx(predicted, abs=1e-12)
        for update in updates:
            assert update.raised + update.lowered == pytest.approx(update.predicted, abs=1e-12)
        without_signs = sum(update.raised - update.lowered for update in updates)
        assert sum(trace.both_ways.values()) == pytest.approx(without_signs, abs=1e-12)
        for prompt, influence in trace.prompts.items():
            other = trace_prompt(probed_run, prompt).problems[problem]["right"]
            assert other.total == pytest.approx(influence.total, abs=1e-12)
            assert other.updates == influence.updates


def test_the_tokens_of_a_rollout_are_its_strongest(run: Path) -> None:
    probed_run = ProbedRun.open(run)
    traces = [trace_problem(probed_run, problem) for problem in probed_run.problem_ids]
    effects = [effect for trace in traces for effect in trace.rollouts]
    assert effects
    for effect in effects:
        assert effect.response
        changes = [abs(change) for _, _, change in effect.tokens]
        assert changes == sorted(changes, reverse=True)
        # Responses have five tokens at most, so all of them are stored and make up the push.
        if effect.tokens:
            total = sum(change for _, _, change in effect.tokens)
            assert total == pytest.approx(effect.change, rel=1e-3, abs=1e-9)


def test_without_token_pushes_the_rest_of_the_trace_is_there(run: Path, tmp_path: Path) -> None:
    (probed, *_) = ProbedRun.open(run).read()
    assert replace(probed, path=tmp_path).token_pushes(0, 0) == []
    shutil.copytree(run, tmp_path / "run")
    missing, *_ = sorted((tmp_path / "run" / "tokens").iterdir())
    missing.unlink()
    probed_run = ProbedRun.open(tmp_path / "run")
    traces = [trace_problem(probed_run, problem) for problem in probed_run.problem_ids]
    effects = [effect for trace in traces for effect in trace.rollouts]
    iteration = int(missing.stem.removeprefix("step_"))
    assert any(effect.iteration == iteration for effect in effects)
    assert not any(effect.tokens for effect in effects if effect.iteration == iteration)


def test_agreement_is_that_of_the_tables(run: Path) -> None:
    probed_run = ProbedRun.open(run)
    agreement = measure_agreement(probed_run)
    iterations = list(probed_run.read())
    assert len(agreement.updates) == len(iterations)
    value, low, high = agreement.correlation
    assert -1 <= low <= value <= high <= 1
    first, update = iterations[0], agreement.updates[0]
    moved = first.moved_Q() / first.lengths_Q
    # The first update has momentum of its own steps only.
    momentum, momentum_of_steps = np.zeros(len(moved)), []
    for step in first.steps:
        momentum = BETA1 * momentum + (1 - BETA1) * first.pushes_Q(step) / first.lengths_Q
        momentum_of_steps.append(momentum)
    for predicted, correlation in (
        (np.sum(momentum_of_steps, axis=0), update.correlation[0]),
        (first.predicted_Q() / first.lengths_Q, update.plain_correlation),
    ):
        ranks = [np.argsort(np.argsort(values)) for values in (predicted, moved)]
        assert correlation == pytest.approx(np.corrcoef(*ranks)[0, 1])


def test_momentum_is_that_of_adamw(run: Path) -> None:
    """The decayed sum of all pushes on an answer is what torch's exp_avg makes of its gradients."""
    probed_run = ProbedRun.open(run)
    momentum = Momentum(probed_run.run)
    first, second, third = list(probed_run.read())[:3]
    weight = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.AdamW([weight], betas=(BETA1, 0.999))
    for probed, push in ((first, 3.0), (first, -1.0), (second, 0.5)):
        values = momentum.add(probed, np.full(len(probed.answers), push))
        weight.grad = torch.tensor([push])
        optimizer.step()
        assert values[0] == pytest.approx(optimizer.state[weight]["exp_avg"].item(), rel=1e-6)
    # Two steps that were not measured, an iteration without an update, and a step without a push.
    last = replace(third, iteration=second.iteration + 3)
    momentum.steps_of_iteration = {second.iteration + 1: 2}
    expected = BETA1 ** (2 + 1) * values[0]
    followed = momentum.add(last, np.zeros(len(last.answers)))
    names = [(answer["problem_id"], answer["reward"] > 0) for answer in last.answers]
    first_name = (second.answers[0]["problem_id"], second.answers[0]["reward"] > 0)
    if first_name in names:
        assert followed[names.index(first_name)] == pytest.approx(expected)


def test_a_step_applies_its_own_learning_rate_to_all_momentum(run: Path) -> None:
    """As in AdamW: the rate of an earlier update does not change what its momentum does later."""
    probed_run = ProbedRun.open(run)
    constant = measure_agreement(probed_run)
    scheduled_metrics = [
        record | {"lr": (record["lr"] or 0.0) * 10.0 ** record["iteration"]}
        for record in probed_run.run.metrics
    ]
    scheduled_run = replace(probed_run.run, metrics=scheduled_metrics)
    scheduled = measure_agreement(replace(probed_run, run=scheduled_run))
    assert len(constant.updates) > 2
    for before, after in zip(constant.updates, scheduled.updates, strict=True):
        # A rate scales all predictions of an update, which changes neither number.
        assert after.correlation == pytest.approx(before.correlation, nan_ok=True)
        assert after.explained == pytest.approx(before.explained)


def test_a_prediction_that_points_the_other_way_explains_nothing() -> None:
    assert explained_share(np.array([1.0, 2.0]), np.array([-1.0, -2.0])) == 0.0
    assert explained_share(np.array([1.0, 2.0]), np.array([10.0, 20.0])) == pytest.approx(1.0)


def test_terminal_and_json_show_the_same(run: Path) -> None:
    overview = read_json(run)
    assert set(overview) == {"through", "problems", "prompts", "agreement"}
    assert overview["through"] == "the output layer"
    problem = max(overview["problems"], key=lambda name: overview["problems"][name]["updates"])
    text = poise_trace(run, "--problem", problem)
    assert problem in text
    assert "right answer: moved" in text
    assert "rank correlation" in " ".join(text.split())
    number = problem.rpartition("/")[2]
    assert read_json(run, "--problem", number)["problem_id"] == problem
    (prompt, *_) = overview["prompts"]
    assert prompt in poise_trace(run, "--prompt", prompt)
    traced = read_json(run, "--prompt", prompt)
    assert traced["problems"].keys() <= overview["problems"].keys()
    assert "helped most" in poise_trace(run, "--prompt", prompt)
    assert "held-out problem" in poise_trace(run)


def test_what_top_leaves_out_is_counted(run: Path) -> None:
    overview = read_json(run)["problems"]
    followed = [problem for problem, sums in overview.items() if sums["updates"]]
    text = poise_trace(run, "--top", 1)
    assert (f"{format_count(len(followed) - 2, 'problem')} more" in text) == (len(followed) > 2)
    unfollowed = len(overview) - len(followed)
    assert (": no right answer was followed" in text) == (unfollowed > 0)
    problem = max(overview, key=lambda name: overview[name]["updates"])
    hidden = int(overview[problem]["updates"]) - 2
    assert hidden > 0
    assert f"{format_count(hidden, 'update')} between them" in poise_trace(
        run, "--problem", problem, "--top", 1
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--problem", "heldout/77"],
            r"unknown held-out problem 'heldout/77' \(choices: word_problems",
        ),
        (["--prompt", "train/none"], "unknown training prompt 'train/none'"),
        (["--prompt", "1", "--problem", "1"], "give --problem or --prompt, not both"),
    ],
)
def test_a_wrong_request_is_one_line(run: Path, arguments: list[str], message: str) -> None:
    with pytest.raises(PoiseError, match=message):
        poise_trace(run, *arguments)


def test_a_run_without_probes_says_how_to_have_them(run: Path) -> None:
    with pytest.raises(PoiseError, match=r"followed no held-out answers: train with --set monitor"):
        poise_trace(run.with_name("blind"))


def test_a_run_that_follows_answers_is_not_told_to_follow_them(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    for name in ("probes", "probe_rows"):
        shutil.rmtree(copy / name)
    config = copy / "config.toml"
    config.write_text(config.read_text().replace("probe_every = 1", "probe_every = 0"))
    with pytest.raises(PoiseError) as fault:
        poise_trace(copy)
    assert str(fault.value) == (
        f"{copy} measured no update on its held-out answers: train with --set monitor.probe_every=1"
    )
    records = [json.loads(line) | {"steps": 0} for line in (copy / "metrics.jsonl").open()]
    (copy / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in records))
    with pytest.raises(PoiseError, match="took no optimizer step, so no held-out answer moved"):
        poise_trace(copy)


def test_a_changed_table_is_refused(run: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    table_file = sorted((copy / "probe_rows").iterdir())[0]
    table_file.write_bytes(table_file.read_bytes()[:-9])
    with pytest.raises(PoiseError, match="is damaged"):
        poise_trace(copy)
