"""The learning tax and the drift between answers, against literal sums and known answers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tiny
import torch

from counterpoise.config import UpdateConfig
from counterpoise.microscope import prefixes
from counterpoise.microscope.learning_tax import (
    PooledMean,
    lazy_likelihood,
    learning_tax,
    solution_drift,
    tax_tokens,
)
from counterpoise.microscope.monitor import Monitor
from counterpoise.microscope.monitor_records import monitor_metrics
from counterpoise.types import Rollout, Row
from counterpoise.update.optimizer import Optimizer
from counterpoise.update.step import StepSettings, take_step

PROMPT = np.array([5, 6], dtype=np.int32)


def row(index: int, advantage: float, tokens: list[int], group: str = "p") -> Row:
    ids = np.array(tokens, dtype=np.int32)
    content = Rollout(group, "", "", "", 0.0, PROMPT, ids, np.full(len(ids), -4.0, np.float32))
    return Row(group, advantage, len(ids), index=index, rollout=content)


ROWS = [
    row(0, 1.0, [7, 8, 9]),
    row(1, -1.0, [7, 8, 3]),
    row(2, 0.5, [7, 8, 9, 4]),
    row(3, -0.5, [2, 8]),
    row(4, 1.0, [7, 8], "q"),  # of one sign only
    row(5, 1.0, [7, 8], "q"),
]


def test_places_are_those_both_signs_pass() -> None:
    assert tax_tokens(ROWS, prefixes.trie_nodes(ROWS)).tolist() == [0, 1]  # 7, then 8 after it
    assert tax_tokens(ROWS, prefixes.trie_nodes(ROWS), limit=1).tolist() == [0]
    assert tax_tokens([], prefixes.trie_nodes([])).tolist() == []


def test_tax_is_a_divergence() -> None:
    old = torch.log_softmax(torch.randn(5, 11, dtype=torch.float64), -1)
    new = torch.log_softmax(torch.randn(5, 11, dtype=torch.float64), -1)
    expected = sum(
        float(new[u, v].exp() * (new[u, v] - old[u, v])) for u in range(5) for v in range(11)
    )
    found = learning_tax(old, new)
    assert found.terms == 5
    assert found.total == pytest.approx(expected)
    assert learning_tax(old, old) == PooledMean(0.0, 5)


def test_drift_is_over_pairs_of_distinct_right_answers() -> None:
    moved = [np.full(r.num_tokens, 0.1 * (r.index + 1), np.float32) for r in ROWS]
    # rows 0 and 2 of p: |0.3 - 1.2|; q's two answers are one
    found = solution_drift(ROWS, moved)
    assert found.terms == 1
    assert found.total == pytest.approx(0.9)


def test_of_a_real_step() -> None:
    policy = tiny.policy()
    rows = [r for r in ROWS if r.group == "p"]
    config = UpdateConfig(optimizer="sgd", lr=0.3, max_grad_norm=0.0)

    def look() -> tuple[torch.Tensor, list[float]]:
        kept, sums = [], []
        for r in rows:
            ids = torch.from_numpy(np.concatenate((PROMPT, r.content.response_tokens))).long()
            with torch.no_grad():
                logp = torch.log_softmax(policy.model(ids[None]).logits[0] / 0.8, -1)
            kept.append(logp)
            at = torch.arange(1, 1 + r.num_tokens)
            sums.append(float(logp[at, ids[2:]].sum()))
        return torch.stack((kept[0][1], kept[0][2])), sums

    monitor = Monitor(0.8, 1000, ())
    before, sums = look()
    take_step(
        policy,
        Optimizer(policy.model, config),
        rows,
        StepSettings(config, temperature=0.8, max_new_tokens=4),
        observer=monitor,
    )
    after, then = look()
    expected = float((after.exp() * (after - before)).sum()) / 2
    found = monitor_metrics(monitor.measurements)
    assert found["learning_tax"] == pytest.approx(expected, rel=2e-3)
    D = [b - a for a, b in zip(sums, then, strict=True)]
    pairs = [abs(D[a] - D[b]) for a, b in itertools.combinations((0, 2), 2)]
    assert found["solution_drift"] == pytest.approx(np.mean(pairs), rel=2e-3)
    assert found["lazy_likelihood"] == np.mean([D[a] < 1e-6 for a in (0, 2)])


def test_where_nothing_moved_there_is_no_tax() -> None:
    policy = tiny.policy()
    config = UpdateConfig(optimizer="sgd", lr=0.0)
    monitor = Monitor(1.0, 1000, ())
    take_step(
        policy,
        Optimizer(policy.model, config),
        ROWS,
        StepSettings(config, temperature=1.0, max_new_tokens=4),
        observer=monitor,
    )
    found = monitor_metrics(monitor.measurements)
    assert found["learning_tax"] == 0
    assert found["solution_drift"] == 0
    assert found["lazy_likelihood"] == 1  # no right rollout rose


def test_rollouts_of_positive_advantage_that_did_not_rise() -> None:
    rows = tiny.rows(groups=2, size=4, seed=6)
    changes = [0.01, -0.01, 0.01, -0.01, 0.01, -0.01, 0, 0]
    moved = [np.full(row.num_tokens, x, "f4") for row, x in zip(rows, changes, strict=True)]
    right = [i for i, row in enumerate(rows) if row.advantage > 0]
    total, terms = lazy_likelihood(rows, moved)
    assert terms == len(right) > 2
    assert total == sum(changes[i] <= 0 for i in right)
