"""RB's books: rollouts by name in, a balanced batch out, every name accounted for."""

from __future__ import annotations

import numpy as np
import pytest

from counterpoise.errors import PoiseError
from counterpoise.hosts.verl.credit import make_estimator
from counterpoise.hosts.verl.ledger import BalanceLedger, ScoredRollout


def group(name: str, rewards: list[float]) -> dict[str, list[ScoredRollout]]:
    return {name: [ScoredRollout(f"{name}_{i}_0", r, 10 + i) for i, r in enumerate(rewards)]}


def test_it_waits_then_takes_and_forgets_the_rest() -> None:
    ledger = BalanceLedger(tau=0.5, target=8, unit="rollout", max_age=4, credit="grpo")
    ledger.add_groups({**group("a", [1, 0, 0, 0]), **group("b", [0, 0, 0, 0])}, sampling_round=1)
    assert ledger.take_batch(sampling_round=1) is None
    assert ledger.pop_discarded() == [f"b_{i}_0" for i in range(4)]  # no signal
    ledger.add_groups({**group("c", [1, 1, 0, 0]), **group("d", [1, 1, 1, 0])}, sampling_round=2)
    batch = ledger.take_batch(sampling_round=2)
    assert batch is not None
    assert len(batch) == 8
    signs = [row.sign for row in batch.values()]
    assert signs.count(1) == signs.count(-1) == 4
    gone = ledger.pop_discarded()
    assert len(gone) == 4
    assert set(gone).isdisjoint(batch)
    assert ledger.waiting_rows == {}
    for name in "acd":  # re-centred: groups that lost rows still sum to zero
        assert abs(sum(row.advantage for row in batch.values() if row.group == name)) < 1e-12
    assert ledger.batch_metrics(batch) == {
        "rollouts_added": 16, "rollouts_emitted": 8, "rollouts_dropped_surplus": 4,
        "rollouts_dropped_aged": 0, "rollouts_without_signal": 4, "rollouts_waiting": 0,
        "rarer_sign": 0.5, "rounds_waited": 1,
    }  # fmt: skip


def test_every_name_is_waiting_taken_or_discarded() -> None:
    rng = np.random.default_rng(3)
    for unit in ("rollout", "group"):
        ledger = BalanceLedger(tau=0.4, target=16, unit=unit, max_age=2, credit="rloo")
        entered: set[str] = set()
        gone: set[str] = set()
        for iteration in range(1, 40):
            arrived = {}
            for g in range(3):
                arrived |= group(f"{iteration}.{g}", rng.integers(0, 2, 4).astype(float).tolist())
            entered |= {f.key for members in arrived.values() for f in members}
            ledger.add_groups(arrived, iteration)
            batch = ledger.take_batch(iteration) or {}
            if batch:
                signs = [row.sign for row in batch.values()]
                assert min(signs.count(1), signs.count(-1)) >= 0.4 * len(signs)
                assert iteration - min(row.born for row in batch.values()) <= 2
            for leaving in (set(batch), set(ledger.pop_discarded())):
                assert gone.isdisjoint(leaving)
                gone |= leaving
            assert gone | set(ledger.waiting_rows) == entered
            assert gone.isdisjoint(ledger.waiting_rows)


def test_a_restored_ledger_goes_on_like_the_one_it_was_read_from() -> None:
    rng = np.random.default_rng(5)
    ledgers = [
        BalanceLedger(tau=0.4, target=16, unit="rollout", max_age=2, credit="grpo")
        for _ in range(2)
    ]
    num_waiting = 0
    for iteration in range(1, 30):
        arrived = {}
        for g in range(3):
            arrived |= group(f"{iteration}.{g}", rng.integers(0, 2, 4).astype(float).tolist())
        metrics, batches, discarded = [], [], []
        for ledger in ledgers:
            ledger.add_groups(arrived, iteration)
            batch = ledger.take_batch(iteration) or {}
            batches.append({key: (row.advantage, row.born) for key, row in batch.items()})
            discarded.append(ledger.pop_discarded())
            metrics.append(ledger.buffer.counts)
        assert batches[0] == batches[1]
        assert discarded[0] == discarded[1]
        assert metrics[0] == metrics[1]
        num_waiting += len(ledgers[0].waiting_rows)
        resumed = BalanceLedger(tau=0.4, target=16, unit="rollout", max_age=2, credit="grpo")
        resumed.restore(ledgers[1].waiting_rows, ledgers[1].buffer.counts)
        ledgers[1] = resumed
    assert num_waiting > 100


def test_a_reward_that_is_no_number_stops() -> None:
    ledger = BalanceLedger(tau=0.5, target=8, unit="group", max_age=4)
    with pytest.raises(PoiseError, match="make the reward function return one"):
        ledger.add_groups(group("a", [1.0, float("nan")]), sampling_round=1)


def test_estimators_are_our_credit_by_uid() -> None:
    torch = pytest.importorskip("torch")
    rewards = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 0.0]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 1], [1, 0, 0], [1, 1, 1]])
    advantages, returns = make_estimator("grpo")(
        token_level_rewards=rewards, response_mask=mask,
        index=np.array(["x", "x", "y", "y"], dtype=object), config=None,
    )  # fmt: skip
    half = 0.5 / (0.5**0.5 + 1e-6)
    expected = torch.tensor([half, -half, half, -half])[:, None] * mask
    assert torch.allclose(advantages, expected, atol=1e-7)
    assert torch.equal(advantages, returns)
    negative_free, _ = make_estimator("positive_only")(
        token_level_rewards=rewards, response_mask=mask, index=["x", "x", "y", "y"]
    )
    assert negative_free[1].tolist() == [0.0, 0.0, 0.0]
