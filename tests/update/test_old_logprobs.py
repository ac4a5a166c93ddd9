"""Which rows are scored, and that sparing the others changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import tiny
import torch
from safetensors.torch import load_file
from small_run import checksum_reward

from counterpoise import loop
from counterpoise.config.load import config_from_tables, load_config
from counterpoise.credit.view import PolicyReader
from counterpoise.model.fit_memory import FittedSize
from counterpoise.model.load import wrap_model
from counterpoise.model.scoring import score_logprobs
from counterpoise.run.state import RunState, new_state
from counterpoise.store import checkpoint
from counterpoise.types import BatchPlan, Row, StepResult
from counterpoise.update import old_logprobs
from counterpoise.update.old_logprobs import (
    first_updating_step,
    score_before_update,
    score_missing,
)

MICRO = 60  # several passes a step
RUN = config_from_tables(
    {
        "update": {"lr": 0.02, "optimizer": "sgd", "micro_tokens": MICRO, "max_grad_norm": 0.0},
        "balance": {"tau": 0.25},
    }
)
BATCH = tiny.rows(groups=6, size=4, seed=5)
PLAN = BatchPlan("test", tuple(tuple(range(8 * s, 8 * s + 8)) for s in range(3)))
WAITING = [replace(row, group=f"later {row.group}") for row in tiny.rows(groups=2, seed=6)]


def by_step(
    reader: PolicyReader, batch: Sequence[Row], plan: BatchPlan, waiting: Sequence[Row], **_: bool
) -> tuple[list[Row], list[Row]]:
    """Everything is scored, the first step too, each step in the layout of its pass."""
    policy, temperature, micro = reader.policy, reader.temperature, reader.micro_batch
    done = list(batch)
    for step in plan.steps:
        for i, row in zip(
            step, score_missing(policy, [batch[i] for i in step], temperature, micro), strict=True
        ):
            done[i] = row
    return done, score_missing(policy, waiting, temperature, micro)


def in_one(
    reader: PolicyReader, batch: Sequence[Row], plan: BatchPlan, waiting: Sequence[Row], **_: bool
) -> tuple[list[Row], list[Row]]:
    """Everything is scored at once, whatever the steps are."""
    policy, temperature, micro = reader.policy, reader.temperature, reader.micro_batch
    done = score_missing(policy, [*batch, *waiting], temperature, micro)
    return done[: len(batch)], done[len(batch) :]


def two_updates() -> tuple[RunState, list[StepResult]]:
    """A batch of three steps, then one of the rows that waited meanwhile."""
    state = new_state(tiny.policy(), RUN)
    state.buffer.add([[row for row in WAITING if row.group == g] for g in ("later p0", "later p1")])
    batch = loop.with_old_logprobs(state, BATCH, PLAN, RUN)
    results = loop.update(state, batch, PLAN, RUN)
    later = state.buffer.state()
    assert [row.index for row in later] == [row.index for row in WAITING]
    plan = BatchPlan("test", (tuple(range(len(later))),))
    return state, results + loop.update(
        state, loop.with_old_logprobs(state, later, plan, RUN), plan, RUN
    )


def weights(state: RunState) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in state.policy.model.parameters()])


@pytest.mark.parametrize("way", [by_step, in_one])
def test_scoring_everything_gives_the_same_weights(way, monkeypatch: pytest.MonkeyPatch) -> None:
    start = weights(new_state(tiny.policy(), RUN))
    state, results = two_updates()
    monkeypatch.setattr(loop, "score_before_update", way)
    other, again = two_updates()
    ours, theirs = weights(state), weights(other)
    if way is by_step:  # the very same passes: equal to the bit
        assert torch.equal(ours, theirs)
    assert (ours - theirs).norm() < 1e-5 * (theirs - start).norm()
    assert (theirs - start).norm() > 0.01
    for a, b in zip(results, again, strict=True):
        for old, reference in zip(a.old_logprobs, b.old_logprobs, strict=True):
            np.testing.assert_allclose(old, reference, atol=2e-5)


def test_the_first_step_has_ratio_one_and_the_rows_that_waited_have_not() -> None:
    _, (first, second, _, waited) = two_updates()
    for now, old in zip(first.logprobs, first.old_logprobs, strict=True):
        assert now.tobytes() == old.tobytes()
    assert first.clipped_share == 0.0
    for result in (second, waited):  # scored by the weights that were changed since
        moved = np.concatenate(result.logprobs) - np.concatenate(result.old_logprobs)
        assert np.abs(moved).max() > 1e-4


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows every call of `score` was given; the real one answers."""
    sizes: list[int] = []
    real = old_logprobs.score_logprobs

    def score(policy, rows, *rest):
        sizes.append(len(rows))
        return real(policy, rows, *rest)

    monkeypatch.setattr(old_logprobs, "score_logprobs", score)
    return sizes


def test_only_what_comes_after_the_first_step_is_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = counted(monkeypatch)
    policy, micro = tiny.policy(), FittedSize(MICRO)
    whole = BatchPlan("test", (tuple(range(len(BATCH))),))
    batch, waiting = score_before_update(PolicyReader(policy, 1.0, micro), BATCH, whole, [])
    assert sum(sizes) == 0
    assert batch == BATCH
    assert waiting == []
    batch, waiting = score_before_update(PolicyReader(policy, 1.0, micro), BATCH, PLAN, WAITING)
    assert sum(sizes) == 16 + len(WAITING)
    assert [row.trainer_logprobs_T is None for row in batch] == [True] * 8 + [False] * 16
    sizes.clear()
    again = score_before_update(
        PolicyReader(policy, 1.0, micro), batch, PLAN, waiting
    )  # none is scored twice
    assert sum(sizes) == 0
    assert again == (batch, waiting)


def test_what_a_weighting_has_read_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores of the first step are left out: there the step's own pass gives them, exactly."""
    sizes = counted(monkeypatch)
    policy, micro = tiny.policy(), FittedSize(MICRO)
    some = [row for row in [*BATCH, *WAITING] if row.index != 1]
    found = score_logprobs(policy, some, 1.0, MICRO)
    known = {row.name: logprobs_T for row, logprobs_T in zip(some, found, strict=True)}
    given = score_before_update(
        PolicyReader(policy, 1.0, micro, scores=known), BATCH, PLAN, WAITING
    )
    read = [row for row in [*BATCH[8:], *WAITING] if row.index == 1]
    assert sum(sizes) == len(read)
    wanted = score_before_update(PolicyReader(policy, 1.0, micro), BATCH, PLAN, WAITING)
    for rows, references in zip(given, wanted, strict=True):
        for row, reference in zip(rows, references, strict=True):
            assert (row.trainer_logprobs_T is None) == (reference.trainer_logprobs_T is None)
            if row.trainer_logprobs_T is not None:
                np.testing.assert_allclose(
                    row.trainer_logprobs_T, reference.trainer_logprobs_T, atol=2e-5
                )
    earlier = [replace(row, trainer_logprobs_T=found[0]) for row in WAITING]  # by weights of before
    _, kept = score_before_update(
        PolicyReader(policy, 1.0, micro, scores=known), BATCH, PLAN, earlier
    )
    assert all(row.trainer_logprobs_T is found[0] for row in kept)
    sizes.clear()
    half = wrap_model("qwen3", policy.model.bfloat16(), tiny.Words())
    # another layout would round otherwise
    score_before_update(PolicyReader(half, 1.0, micro, scores=known), BATCH, PLAN, WAITING)
    assert sum(sizes) == 16 + len(WAITING)


def test_rows_without_signal_are_not_scored_and_make_no_first_step() -> None:
    silent = [
        replace(row, advantage=0.0) if i < 8 or i == 20 else row for i, row in enumerate(BATCH)
    ]
    assert first_updating_step(silent, PLAN) == 1
    assert first_updating_step([replace(row, advantage=0.0) for row in BATCH], PLAN) == 0
    batch, _ = score_before_update(
        PolicyReader(tiny.policy(), 1.0, FittedSize(MICRO)), silent, PLAN, []
    )
    unscored = [i for i, row in enumerate(batch) if row.trainer_logprobs_T is None]
    assert unscored == [*range(16), 20]


def test_the_sampler_is_taken_at_its_word(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = counted(monkeypatch)
    config = replace(RUN, update=replace(RUN.update, old_logprobs="sampler"))
    state = new_state(tiny.policy(), config)
    batch = loop.with_old_logprobs(state, BATCH, PLAN, config)
    results = loop.update(state, batch, PLAN, config)
    assert sizes == []
    for result in results:
        for row, old in zip(result.rows, result.old_logprobs, strict=True):
            assert old.tobytes() == BATCH[row].content.sampled_logprobs.tobytes()


SETS = [
    "loop.iterations=3", "loop.checkpoint_every=3", "model.device='cpu'", "task.levels=[1]",
    "task.size=16", "task.heldout=0", "sample.prompts=4", "sample.group_size=4",
    "sample.max_new_tokens=16", "balance.target=12", "batch.steps=2", "evaluate.prompts=0",
    "monitor.every=0", "update.optimizer='sgd'", "update.lr=0.05",
]  # fmt: skip


def test_a_run_is_what_it_was_when_everything_was_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With reward balance, so that rows wait; tokens/ has old log-probabilities all the same."""
    ends = []
    for name in ("spared", "scored"):
        if name == "scored":
            monkeypatch.setattr(loop, "score_before_update", in_one)
        config = load_config("demo", [*SETS, *checksum_reward(tmp_path)])
        folder = loop.train(config, tmp_path / name)
        last = checkpoint.list_checkpoints(folder.checkpoints)[-1]
        tables = [pq.read_table(p) for p in sorted((folder.path / "tokens").iterdir())]
        ends.append((load_file(last / "model.safetensors"), tables))
    (ours, tables), (theirs, references) = ends
    assert len(tables) == len(references) > 0
    for table, reference in zip(tables, references, strict=True):
        assert table["token"].equals(reference["token"])
        old, now = table["old_logprob"].to_numpy(), table["logprob"].to_numpy()
        np.testing.assert_allclose(old, reference["old_logprob"].to_numpy(), atol=5e-5)
        assert np.isfinite(old).all()
        np.testing.assert_allclose(now, reference["logprob"].to_numpy(), atol=5e-5)
    assert any((t["old_logprob"].to_numpy() == t["logprob"].to_numpy()).any() for t in tables)
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=1e-4, atol=1e-6)


def test_a_run_is_what_it_was_when_rows_were_read_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With weights that read every row, and with reward balance, so that rows wait."""
    sizes = counted(monkeypatch)
    real, ends, spent = loop.score_before_update, [], []
    for name in ("once", "twice"):
        if name == "twice":
            monkeypatch.setattr(
                loop,
                "score_before_update",
                lambda reader, *given, **_: real(replace(reader, scores={}), *given),
            )
        options = [*SETS, *checksum_reward(tmp_path), "credit.weights='cancellation'"]
        folder = loop.train(load_config("demo", options), tmp_path / name)
        last = checkpoint.list_checkpoints(folder.checkpoints)[-1]
        ends.append(load_file(last / "model.safetensors"))
        spent.append(sum(sizes))
        sizes.clear()
    assert spent[0] < spent[1]
    for name, tensor in ends[0].items():
        torch.testing.assert_close(tensor, ends[1][name], rtol=1e-4, atol=1e-6)
