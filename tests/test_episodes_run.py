"""Runs with an environment: what they store, that they resume bit for bit, what they refuse."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import forked
import numpy as np
import pyarrow.parquet as pq
import pytest
from small_run import small_model
from test_resume import KILLED_CHILD, outcome, same

from counterpoise.cli.token_view import read_token_view
from counterpoise.config.load import load_config
from counterpoise.errors import PoiseError
from counterpoise.loop import train
from counterpoise.report.panels.tokens import pack_iteration
from counterpoise.report.run_data import RunData
from counterpoise.run.metrics import _turn_metrics
from counterpoise.types import Rollout, Turn

SETS = [
    "loop.iterations=3", "loop.checkpoint_every=1", "model.device='cpu'", "task.levels=[1]",
    "task.size=24", "task.heldout=4", "sample.prompts=3", "sample.group_size=4",
    "sample.max_new_tokens=40", "balance.target=8", "batch.steps=2", "evaluate.prompts=1",
    "evaluate.samples=2", "task.environment='tries'", "task.turns=3", "credit.weights='serl'",
]  # fmt: skip


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Options of a run of a random model, half of whose attempts are right."""
    return [*SETS, *small_model(tmp_path_factory.mktemp("random"))]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, sets: list[str]) -> Path:
    out = tmp_path_factory.mktemp("episodes") / "whole"
    train(load_config("demo", sets), out)
    return out


def test_a_killed_run_is_resumed_bit_for_bit(
    tmp_path: Path, finished: Path, sets: list[str]
) -> None:
    out = tmp_path / "run"
    # After the second iteration was written, and before its checkpoint.
    child = forked.run([sys.executable, "-c", KILLED_CHILD, str(out), "iterate", "2", *sets])
    assert child.returncode == -signal.SIGKILL, child.stderr
    assert len((out / "metrics.jsonl").read_text().splitlines()) == 2
    train(load_config("demo", sets), out, resume=True)
    same(outcome(out), outcome(finished))


def test_what_is_stored(finished: Path) -> None:
    told = 0
    for file in sorted((finished / "rollouts").iterdir()):
        for line in file.read_text().splitlines():
            record = json.loads(line)
            turns = record["turns"]
            assert len(record["response_tokens"]) == len(record["sampled_logprobs"])
            assert [bool(turn["feedback"]) for turn in turns[:-1]] == [True] * (len(turns) - 1)
            assert (turns[-1]["feedback"] == "") == (record["reward"] == 1)
            told += len(turns) > 1
    assert told > 0
    records = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    assert all(r["turn_success"][0] <= r["success"] for r in records)
    assert all(r["sampler_mismatch_max"] < 1e-3 for r in records if r["steps"])


def test_traces_hold_the_policys_tokens_alone(finished: Path) -> None:
    run = RunData.read(finished)
    plan = next(
        plan
        for plan in run.plans
        if any(t and t.environment_tokens for t in run.texts_of_plan(plan))
    )
    table = pq.read_table(finished / "tokens" / f"step_{plan['iteration']:05d}.parquet")
    rows, counts = np.unique(table["row"].to_numpy(), return_counts=True)
    for row, count in zip(rows, counts, strict=True):
        text = run.texts_of_plan(plan)[row]
        assert text is not None
        assert count == plan["tokens"][row] == text.num_tokens
    told = [r for r in rows if run.texts_of_plan(plan)[r].environment_tokens]
    shown = pack_iteration(run, plan)
    assert shown.rows_shown == len(rows)
    said = {
        token
        for r in told
        for _, tokens in run.texts_of_plan(plan)[r].environment_tokens
        for token in tokens
    }
    assert said <= shown.token_ids
    if told:
        assert (
            read_token_view(finished, plan["iteration"], int(told[0]), None, None)
            .texts[told[0]]
            .environment_tokens
        )


def test_numbers_of_turns() -> None:
    nothing = np.empty(0, np.int32)

    def episode(*feedback: str) -> Rollout:
        turns = tuple(
            Turn(k, np.arange(k, dtype=np.int32), (0, 0), said) for k, said in enumerate(feedback)
        )
        own = np.arange(len(feedback), dtype=np.int32)
        return Rollout("p", "", "", "", 0.0, nothing, own, nothing, turns=turns)

    found = _turn_metrics([episode(""), episode("no", ""), episode("no", "no", "no"), episode("")])
    assert found == {"turns": 1.75, "turn_success": [0.5, 0.5, 0.0], "told_tokens": 1 + 1 + 2}
    assert _turn_metrics([episode()]) == {}


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["credit.weights='serl'"], "set task.environment=tries"),
        (["task.environment='tries'", "credit.weights='grail'"], "needs single responses"),
        (["task.environment='tries'", "sample.engine='vllm'"], "needs sample.engine=native"),
        (["task.environment='tries'", "sample.anchors=1"], "cannot reply to an anchor"),
        (["task.environment='tries'", "verify.also=['overlong=0.5']"], "leave overlong out"),
        (["task.environment='trees'"], "tries"),
        (["task.environment='tries'", "task.turns=1"], "task.turns"),
    ],
)
def test_what_does_not_go_together_is_refused(sets: list[str], message: str) -> None:
    with pytest.raises(PoiseError, match=message):
        load_config("demo", sets)
