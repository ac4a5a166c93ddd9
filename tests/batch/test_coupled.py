"""`coupled`: whole groups, and those with low-confidence tokens in common in one step."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counterpoise.batch import coupled
from counterpoise.batch.compose import compose
from counterpoise.batch.describe import describe_plan
from counterpoise.batch.plan_file import plan_file
from counterpoise.errors import PoiseError
from counterpoise.types import Rollout, Row


def row(group: str, advantage: float, tokens: list[int], p: float | list[float] = 0.5) -> Row:
    ids = np.array(tokens, dtype=np.int32)
    logprobs = np.log(np.broadcast_to(p, len(ids))).astype(np.float32)
    rollout = Rollout(group, "", "", "", 0.0, ids[:0], ids, logprobs)
    return Row(group, advantage, len(ids), rollout=rollout)


@st.composite
def batches(draw: st.DrawFn) -> list[Row]:
    """Up to 10 groups of up to 4 rows, in any order."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=10))
    rows = [
        row(
            f"g{g}",
            draw(st.sampled_from([-1.5, 0.0, 1.0])),
            draw(st.lists(st.integers(0, 9), min_size=1, max_size=12)),
            draw(st.sampled_from([0.1, 0.9, 1.0])),
        )
        for g, size in enumerate(sizes)
        for _ in range(size)
    ]
    return draw(st.permutations(rows))


def slow_coupling(rows: list[Row]) -> dict[tuple[str, str], float]:
    """S_ab, a pair of tokens at a time."""
    S: dict[tuple[str, str], float] = {}
    for one, other in combinations(rows, 2):
        if one.group == other.group:
            continue
        key = tuple(sorted((one.group, other.group)))
        for o, p in zip(one.content.response_tokens, one.content.sampled_logprobs, strict=True):
            for v, q in zip(
                other.content.response_tokens, other.content.sampled_logprobs, strict=True
            ):
                if o == v:
                    push = abs(one.advantage * other.advantage) * (1 - np.exp(p)) * (1 - np.exp(q))
                    S[key] = S.get(key, 0.0) + push
    return S


def within(rows: list[Row], steps) -> float:
    """The coupling that a plan keeps inside steps."""
    home = {rows[i].group: s for s, step in enumerate(steps) for i in step}
    return sum(value for (a, b), value in slow_coupling(rows).items() if home[a] == home[b])


@settings(deadline=None)
@given(batches(), st.data(), st.integers(0, 2**62))
def test_a_plan_of_whole_groups_that_couples_no_less_than_grouped(rows, data, seed):
    groups = {r.group for r in rows}
    num_steps = data.draw(st.integers(1, len(rows)))
    if len(groups) < num_steps:
        with pytest.raises(PoiseError, match=r"batch\.steps"):
            compose("coupled", rows, num_steps, seed)
        return
    plan = compose("coupled", rows, num_steps, seed)
    assert sorted(i for step in plan.steps for i in step) == list(range(len(rows)))
    assert len({(rows[i].group, s) for s, step in enumerate(plan.steps) for i in step}) == len(
        groups
    )
    assert plan == compose("coupled", rows, num_steps, seed)
    before = compose("grouped", rows, num_steps, seed)
    count = [sorted(len({rows[i].group for i in step}) for step in p.steps) for p in (plan, before)]
    assert count[0] == count[1]
    assert within(rows, plan.steps) >= within(rows, before.steps) - 1e-6
    loads = [describe_plan(rows, p)["token_imbalance"] for p in (plan, before)]
    assert loads[0] <= max(coupled.MAX_IMBALANCE, loads[1]) + 1e-9


def test_coupling_by_loops():
    rng = np.random.default_rng(0)
    rows = [
        row(f"g{i // 3}", rng.normal(), rng.integers(0, 6, 5).tolist(), rng.uniform(0.1, 1, 5))
        for i in range(12)
    ]
    groups = [[3 * g, 3 * g + 1, 3 * g + 2] for g in range(4)]
    S = coupled.group_coupling(rows, groups)
    for (a, b), value in slow_coupling(rows).items():
        assert S[int(a[1:]), int(b[1:])] == pytest.approx(value, rel=1e-5)
    np.testing.assert_array_equal(S, S.T)
    assert not S.diagonal().any()


def families(seed: int = 0) -> list[Row]:
    """Sixteen queries of four families; a family has low-confidence tokens of its own."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(16)
    p = [0.3] * 6 + [1.0] * 3
    return [
        row(f"q{g}", a, [*(100 + 10 * (g % 4) + rng.integers(0, 3, 6)), 1, 2, 3], p)
        for g in order
        for a in (1.0, -1.0)
    ]


@pytest.mark.parametrize("seed", range(5))
def test_families_find_each_other(seed: int):
    rows = families(seed)
    for step in compose("coupled", rows, 4, seed).steps:
        assert len({int(rows[i].group[1:]) % 4 for i in step}) == 1
    assert within(rows, compose("grouped", rows, 4, seed).steps) < within(
        rows, compose("coupled", rows, 4, seed).steps
    )


def test_sure_tokens_and_rows_without_signal_couple_nobody():
    sure = [row(f"g{g}", a, [7, 8], 1.0) for g in range(4) for a in (1.0, -1.0)]
    silent = [row(f"g{g}", 0.0, [7, 8], 0.2) for g in range(4) for _ in range(2)]
    for rows in (sure, silent):
        assert compose("coupled", rows, 2, 3).steps == compose("grouped", rows, 2, 3).steps


def test_one_step_and_single_tokens():
    rows = [row("a", 1.0, [3]), row("b", -1.0, [3])]
    assert sorted(compose("coupled", rows, 1, 0).steps[0]) == [0, 1]
    assert sorted(compose("coupled", rows, 2, 0).steps) == [(0,), (1,)]


def test_rows_without_content_are_refused():
    rows = [Row("a", 1.0, 3), Row("b", -1.0, 3)]
    with pytest.raises(PoiseError, match=r"choose batch\.composer=grouped"):
        compose("coupled", rows, 1, 0)
    bare = [row("a", 1.0, [3]), row("b", -1.0, [3])]
    for logprobs in (np.empty(0, np.float32), np.array([np.nan], np.float32)):
        unknown = [replace(r, rollout=replace(r.content, sampled_logprobs=logprobs)) for r in bare]
        with pytest.raises(PoiseError, match="sampled_logprobs"):
            compose("coupled", unknown, 1, 0)


def test_a_file_with_log_probabilities_can_be_planned(tmp_path):
    rows = families()
    path = tmp_path / "rollouts.jsonl"
    lines = [
        {
            "prompt_id": r.group,
            "reward": float(r.advantage > 0),
            "response_tokens": r.content.response_tokens.tolist(),
            "sampled_logprobs": r.content.sampled_logprobs.tolist(),
        }
        for r in rows
    ]
    path.write_text("\n".join(json.dumps(line) for line in lines))
    steps = plan_file(path, "coupled", 4, 0)["steps"]
    for step in steps:
        assert len({int(rows[i].group[1:]) % 4 for i in step}) == 1
    del lines[0]["sampled_logprobs"]
    path.write_text("\n".join(json.dumps(line) for line in lines))
    with pytest.raises(PoiseError, match="sampled_logprobs"):
        plan_file(path, "coupled", 4, 0)
