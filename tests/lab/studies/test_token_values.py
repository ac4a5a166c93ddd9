"""The fixed batch and its bank of values, on the embedded model at its smallest."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from lab.studies import token_values as made

from counterpoise.errors import PoiseError
from counterpoise.lab.studies import token_values as banks
from counterpoise.lab.studies.fixed_batch import FixedBatch, recredit
from counterpoise.lab.studies.harness import Lab
from counterpoise.lab.studies.token_values import TokenValueStore
from counterpoise.microscope.value import Branch, BranchKind, branch_rewards


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return made.lab(tmp_path_factory.mktemp("bank"))


@pytest.fixture(scope="module")
def batch(lab: Lab) -> FixedBatch:
    return FixedBatch(lab)


def test_weights_stand_for_all_tokens_of_the_first_rollouts(batch: FixedBatch) -> None:
    first = [i for i, row in enumerate(batch.rows) if row.index == 0]
    chosen = batch.candidates(closed=True)
    assert sum(c.weight for c in chosen) == pytest.approx(
        sum(batch.rows[i].num_tokens for i in first)
    )
    assert max(Counter((c.row, c.is_open) for c in chosen).values()) <= 3
    assert {c.row for c in chosen} == set(first)
    assert batch.candidates() == [c for c in chosen if c.is_open]


def test_open_tokens_are_unlikely_ones_first_rollouts_first(batch: FixedBatch) -> None:
    pool = batch.open_tokens()
    assert all(math.exp(c.logprob) <= 0.95 for c in pool)
    indices = [batch.rows[c.row].index for c in pool]
    assert indices == sorted(indices)
    assert {(c.row, c.position) for c in batch.candidates()} <= {(c.row, c.position) for c in pool}


def test_an_update_of_nothing_displaces_nothing(lab: Lab, batch: FixedBatch) -> None:
    candidates = batch.candidates()
    before = [p.detach().clone() for p in lab.policy.model.parameters()]
    none, some = batch.measure_displacements(
        candidates, lambda: None, lambda: lab.update(batch.rows)
    )
    assert none == [0.0] * len(candidates)
    assert all(some)
    for p, kept in zip(lab.policy.model.parameters(), before, strict=True):
        assert torch.equal(p, kept)


def test_values_are_those_of_the_microscope(lab: Lab, batch: FixedBatch) -> None:
    candidates = batch.candidates()[:5]
    kinds: tuple[BranchKind, ...] = ("taken", "free", "other")
    branches = [Branch(c.row, c.position, kind) for c in candidates for kind in kinds]
    rewards = branch_rewards(
        lab.policy, batch.rows, branches, lab.verifier, lab.config.sample, continuations=4
    )
    for record, (taken, free, other) in zip(
        TokenValueStore(lab, batch).value_records(candidates, mixed=True),
        rewards.mean(1).reshape(-1, 3).tolist(),
        strict=True,
    ):
        assert record["value"] == pytest.approx(taken - other)
        assert record["value"] == pytest.approx((record["even"] + record["odd"]) / 2)
        assert record["mixed"] == pytest.approx((taken - free) / (1 - record["p"]), rel=1e-4)
        assert record["plain"] == pytest.approx((1 - record["p"]) * (taken - other))


def test_a_stopped_bank_goes_on(
    lab: Lab, batch: FixedBatch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = made.lab(tmp_path)
    here.progress = _stop_at(0.3)
    monkeypatch.setattr(banks, "GROUPS_AT_ONCE", 1)
    candidates = batch.candidates()
    with pytest.raises(KeyboardInterrupt):
        TokenValueStore(here, batch).value_records(candidates)
    kept = dict(TokenValueStore(here, batch).known_halves)
    assert 0 < len(kept) < 2 * len(candidates)
    asked: list[str] = []
    here.progress = lambda doing, share: asked.append(doing)
    whole = TokenValueStore(here, batch).value_records(candidates)
    assert f"of {2 * len(candidates) - len(kept)} states" in asked[0]
    assert whole == TokenValueStore(lab, batch).value_records(candidates)
    asked.clear()
    assert TokenValueStore(here, batch).value_records(candidates) == whole
    assert asked == []


def test_other_settings_start_another_bank(lab: Lab, batch: FixedBatch) -> None:
    TokenValueStore(lab, batch).value_records(batch.candidates()[:1])
    assert TokenValueStore(lab, batch).known_halves
    other = replace(lab, sizes={**lab.sizes, "continuations": 2})
    assert not TokenValueStore(other, batch).known_halves
    TokenValueStore(other, batch).value_records(batch.candidates()[:1])
    for each in (lab, other):  # neither file replaced the other
        assert TokenValueStore(each, batch).known_halves
    with pytest.raises(PoiseError, match=r"continuations=3: .* even number, such as 4"):
        TokenValueStore(replace(lab, sizes={**lab.sizes, "continuations": 3}), batch)


def test_subsets_are_credited_as_groups_of_their_own(batch: FixedBatch) -> None:
    group = [row for row in batch.rows if row.group == batch.rows[0].group]
    assert [row.advantage for row in recredit(group)] == [row.advantage for row in group]
    right = next(row for row in group if row.sign > 0)
    wrong = next(row for row in group if row.sign < 0)
    pair = [row.advantage for row in recredit([right, wrong])]
    assert pair == pytest.approx([0.5**0.5, -(0.5**0.5)], abs=1e-5)
    assert [row.advantage for row in recredit([right, right])] == [0.0, 0.0]
    assert recredit([right])[0].advantage == 1.0
    assert recredit([wrong])[0].advantage == 0.0


def _stop_at(share: float):
    def progress(doing: str, done: float) -> None:
        if done >= share:
            raise KeyboardInterrupt

    return progress
