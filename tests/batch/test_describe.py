from __future__ import annotations

import json

import numpy as np
import pytest

from counterpoise.batch.describe import describe_plan
from counterpoise.errors import PoiseError
from counterpoise.types import BatchPlan, Rollout, Row


def row(group: str, advantage: float, num_tokens: int, tokens: list[int] | None = None) -> Row:
    rollout = None
    if tokens is not None:
        none = np.empty(0, dtype=np.float32)
        ids = np.array(tokens, dtype=np.int32)
        rollout = Rollout(group, "", "", "", 0.0, none.astype(np.int32), ids, none)
    return Row(group=group, advantage=advantage, num_tokens=num_tokens, rollout=rollout)


# Group a: 1.5, -0.5, -0.5, -0.5; group b: 1, -1, and one row without signal.
ROWS = [
    row("a", 1.5, 10),
    row("a", -0.5, 20),
    row("a", -0.5, 30),
    row("a", -0.5, 40),
    row("b", 1.0, 5),
    row("b", -1.0, 10),
    row("b", 0.0, 5),
]


def test_groups_kept_whole():
    told = describe_plan(ROWS, BatchPlan("grouped", ((0, 1, 2, 3), (4, 5, 6))))
    assert told == {
        "rows": 7,
        "groups": 2,
        "rows_without_signal": 1,
        "split_groups": 0,
        "split_share": 0.0,
        "token_imbalance": 100 / 60,
        "positive_share": 2 / 6,
        "positive_share_per_step": [0.25, 0.5],
        "max_abs_group_advantage_sum": 0.0,
        "cross_advantage_sum": [-(1.5**2 + 3 * 0.25), -2.0],
        "cross_advantage_ratio": -1.0,
        "tokens_per_step": [100, 20],
        "rows_per_step": [4, 3],
        "shared_token_share": None,
    }


def test_one_group_cut():
    told = describe_plan(ROWS, BatchPlan("shuffled", ((0, 1, 4, 5), (2, 3), (6,))))
    assert told["split_groups"] == 2  # b too: its row without signal is elsewhere
    assert told["split_share"] == 1.0
    assert told["max_abs_group_advantage_sum"] == 1.0  # 1.5 - 0.5, and -0.5 - 0.5
    # Step 0: a has S = 1 and squares 2.5, b has S = 0 and squares 2. Step 1: S = -1, squares 0.5.
    assert told["cross_advantage_sum"] == [1 - 2.5 - 2, 1 - 0.5, 0.0]
    assert told["cross_advantage_ratio"] == -3.0 / 5.0
    assert told["positive_share_per_step"] == [0.5, 0.0, None]


def test_the_cross_ratio_runs_from_whole_groups_to_parts_of_one_sign():
    one_row_a_step = BatchPlan("own", ((0, 4), (1, 5), (2, 6), (3,)))
    assert describe_plan(ROWS, one_row_a_step)["cross_advantage_ratio"] == 0.0
    # Apart by sign: a has S = 1.5 and -1.5, b has 1 and -1; 4.5 + 2 - 5 over 5.
    signs_apart = BatchPlan("by_sign", ((0, 4), (1, 2, 3, 5, 6)))
    assert describe_plan(ROWS, signs_apart)["cross_advantage_ratio"] == (2 * 1.5**2 + 2 - 5) / 5
    silent = BatchPlan("whole", ((0,),))
    assert describe_plan([row("a", 0.0, 1)], silent)["cross_advantage_ratio"] is None


def test_cross_is_the_sum_over_pairs():
    rng = np.random.default_rng(0)
    rows = [row(f"g{i % 3}", float(a), 1) for i, a in enumerate(rng.normal(size=30))]
    steps = tuple(tuple(part.tolist()) for part in np.array_split(rng.permutation(30), 4))
    for step, cross in zip(
        steps, describe_plan(rows, BatchPlan("shuffled", steps))["cross_advantage_sum"], strict=True
    ):
        pairs = sum(
            rows[i].advantage * rows[j].advantage
            for i in step
            for j in step
            if i != j and rows[i].group == rows[j].group
        )
        assert cross == pytest.approx(pairs)


def test_shared_token_types():
    rows = [
        row("a", 1.0, 4, [1, 2, 3, 4]),
        row("a", -1.0, 3, [3, 3, 9]),
        row("b", 1.0, 2, [5, 6]),
        row("b", 1.0, 2, [6, 7]),
        row("b", -1.0, 3, [6, 7, 8]),
    ]
    # Step 0: {3} of {1, 2, 3, 4}. Step 1: {6, 7} of {5, 6, 7}.
    told = describe_plan(rows, BatchPlan("grouped", ((0, 1), (2, 3, 4))))
    assert told["shared_token_share"] == pytest.approx((1 / 4 + 2 / 3) / 2)
    # By sign: the positive step shares nothing; the negative one has no positive types to share.
    told = describe_plan(rows, BatchPlan("by_sign", ((0, 2, 3), (1, 4))))
    assert told["shared_token_share"] == 0.0


def test_no_signal_and_json():
    told = describe_plan([row("a", 0.0, 3), row("a", 0.0, 3)], BatchPlan("whole", ((0, 1),)))
    assert told["positive_share"] is None
    assert told["token_imbalance"] == 1.0
    assert json.loads(json.dumps(told)) == told


@pytest.mark.parametrize(
    ("num_rows", "steps", "message"),
    [
        (0, (), "rows is empty"),
        (3, ((0, 1),), r"row 2 \(counting from 0\) occurs 0 times"),
        (2, ((0, 1), (1,)), r"row 1 \(counting from 0\) occurs 2 times"),
        (2, ((0, 1, 2),), r"row 2 \(counting from 0\) occurs 1 times"),
        (2, ((0, 1), ()), "step 1 is empty"),
    ],
)
def test_a_plan_of_other_rows_is_refused(num_rows, steps, message):
    rows = [Row("g", 1.0, 9, index=i) for i in range(num_rows)]
    with pytest.raises(PoiseError, match=message):
        describe_plan(rows, BatchPlan("by hand", steps))
