"""Where the tokens of an update went, from log-probabilities before and after."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from counterpoise.hosts.verl.monitor import choose_coupled_rows, displacement_shares
from counterpoise.hosts.verl.options import coupling_fault
from counterpoise.types import BatchPlan, Row


def test_shares_by_sign() -> None:
    before = [np.array([-1.0, -2.0, -3.0]), np.array([-1.0, -1.0]), np.array([-5.0])]
    after = [np.array([-0.5, -2.0, -3.5]), np.array([-0.8, -1.4]), np.array([-9.0])]
    advantages = [np.full(3, 0.7), np.full(2, -0.7), np.zeros(1)]
    result = displacement_shares(before, after, advantages)
    third = pytest.approx(1 / 3)
    assert result["boosted_positive"] == result["suppressed_positive"] == third
    assert result["stable_positive"] == third
    assert result["moved_positive"] == third
    assert (result["boosted_negative"], result["suppressed_negative"]) == (0.5, 0.5)
    assert result["moved_negative"] == pytest.approx(0.3)
    assert result["flipped"] == 2 / 5  # one of three and one of two; a row without signal has none


def test_an_update_of_nothing_moves_nothing() -> None:
    same = [np.linspace(-3, 0, 7, dtype=np.float32)]
    result = displacement_shares(same, same, [np.ones(7, dtype=np.float32)])
    assert result == {
        "boosted_positive": 0.0, "suppressed_positive": 0.0, "stable_positive": 1.0,
        "moved_positive": 0.0, "flipped": 0.0,
    }  # fmt: skip
    assert displacement_shares(same, same, [np.zeros(7, dtype=np.float32)]) == {}


def test_rows_are_chosen_in_whole_steps() -> None:
    rows = [Row(group, sign, 10) for group in "abcd" for sign in (1.0, -1.0)]
    plan = BatchPlan("grouped", ((0, 1), (2, 3), (4, 5), (6, 7)))
    assert choose_coupled_rows(rows, plan, 0, seed=0) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    some = choose_coupled_rows(rows, plan, 45, seed=0)
    assert sorted(map(len, some)) == [0, 0, 2, 2]
    assert choose_coupled_rows(rows, plan, 45, seed=0) == some
    assert any(choose_coupled_rows(rows, plan, 45, seed=seed) != some for seed in range(1, 6))
    # A step that is larger than the limit is measured in whole groups, at least one.
    whole = BatchPlan("whole", (tuple(range(8)),))
    assert choose_coupled_rows(rows, whole, 45, seed=0) == [[0, 1, 2, 3]]
    assert choose_coupled_rows(rows, whole, 1, seed=0) == [[0, 1]]
    assert choose_coupled_rows([Row("a", 0.0, 10)], BatchPlan("whole", ((0,),)), 0, 0) == [[]]


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"actor": {"strategy": "megatron"}}, "megatron is not FSDP"),
        ({"model": {"use_fused_kernels": True}}, "hides the output layer"),
        ({"actor": {"entropy_coeff": 0.01}}, "entropy_coeff=0.01 pushes tokens too"),
        ({"actor": {"ulysses_sequence_parallel_size": 2}}, "splits a response over ranks"),
        ({"actor": {"strategy": "fsdp2", "entropy_coeff": 0}}, ""),
    ],
)
def test_what_hides_pushes_is_named(section: dict[str, Any], message: str) -> None:
    fault = coupling_fault({"actor_rollout_ref": section})
    assert message in fault
    assert bool(fault) == bool(message)
