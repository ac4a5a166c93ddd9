"""The budget study: verdicts on made-up tokens, nested batches, and one small real run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lab.studies.token_values import random_lab, tokens

from counterpoise.errors import PoiseError
from counterpoise.lab.studies import budget
from counterpoise.lab.studies.fixed_batch import FixedBatch
from counterpoise.lab.studies.harness import Lab
from counterpoise.report.charts.vega import vega_specification
from counterpoise.statistics.finding import Record


def made_up(batch: tuple[float, float], rollouts: tuple[float, float]) -> list[Record]:
    return [
        r
        for axis, sizes, gaps in (("batch", (16, 96), batch), ("rollouts", (1, 8), rollouts))
        for size, gap in zip(sizes, gaps, strict=True)
        for r in tokens(gap, axis=axis, size=size)
    ]


@pytest.mark.parametrize(
    ("batch", "rollouts", "verdict"),
    [
        ((0.1, 0.2), (0.1, 0.2), "replicated"),
        ((0.1, 0.1), (0.1, 0.2), "inconclusive"),
        ((0.1, 0.2), (0.2, 0.1), "not replicated"),
    ],
)
def test_the_verdict_needs_both_axes(batch, rollouts, verdict) -> None:
    found = budget.judge(made_up(batch, rollouts))
    assert found.verdict == verdict
    numbers = {n.name: n.value for n in found.numbers}
    assert numbers["gap, 96 prompts, all tokens"] == pytest.approx(batch[1], abs=0.01)
    assert numbers["from 1 to 8 rollouts a prompt, all tokens"] == pytest.approx(
        rollouts[1] - rollouts[0], abs=0.01
    )


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    out = tmp_path_factory.mktemp("budget")
    return random_lab(out, batch=[2, 4, 6], rollouts=[1, 2, 8], cores=2)


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"batch": [2, 12]}, "need 12 prompts and there are 6"),
        ({"cores": 4}, "4 cores of 2 need 8 prompts"),
        ({"rollouts": [1, 16]}, "a prompt has 8 rollouts, not 16"),
        ({"batch": [6]}, "two values or more"),
    ],
)
def test_batches_that_are_not_there_are_refused(
    small: Lab, sizes: dict[str, object], said: str
) -> None:
    """Instead of the largest there is under another's name, or the first core once more."""
    with pytest.raises(PoiseError, match=said):
        budget.measure(replace(small, sizes={**small.sizes, **sizes}))


def test_rollouts_are_nested_and_credited_as_they_are(small: Lab) -> None:
    rows = FixedBatch(small).rows
    whole = budget.keep_first_rollouts(rows, 8)
    assert [(r.group, r.index, r.advantage) for r in whole] == [
        (r.group, r.index, r.advantage) for r in rows
    ]
    for n in (1, 2, 4):
        part = budget.keep_first_rollouts(rows, n)
        assert {r.index for r in part} <= set(range(n))
        assert all(r.sign for r in part)
    single = budget.keep_first_rollouts(rows, 1)
    assert {r.advantage for r in single} <= {1.0}
    assert {r.group for r in single} == {
        r.group for r in rows if r.index == 0 and r.content.reward == 1.0
    }


@pytest.mark.slow
def test_a_small_run(small: Lab) -> None:
    records = list(budget.measure(small))
    arms = {
        (axis, size): {
            (r["prompt"], r["position"]): r["value"]
            for r in records
            if (r["axis"], r["size"]) == (axis, size)
        }
        for axis, sizes in (("batch", (2, 4, 6)), ("rollouts", (1, 2, 8)))
        for size in sizes
    }
    assert arms["batch", 2] == arms["batch", 4] == arms["batch", 6]
    assert arms["rollouts", 1] == arms["rollouts", 2] == arms["rollouts", 8]
    core = {group.key for group in small.groups(6)[:4]}  # two cores of two prompts
    assert {prompt for prompt, _ in arms["batch", 2]} <= core
    whole = {
        axis: {(r["prompt"], r["position"]): r["delta"] for r in records if r["axis"] == axis}
        for axis in ("batch", "rollouts")
    }  # the last size of an axis is the whole batch
    assert all(whole["rollouts"][key] == delta for key, delta in whole["batch"].items())
    assert budget.judge(records).because
    for figure in budget.draw(records):
        assert vega_specification(figure)["layer"]


@pytest.mark.slow
def test_a_batch_without_signal_moves_nothing(small: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one rollout a prompt, none of them right, there is nothing to update with."""
    monkeypatch.setattr(budget, "keep_first_rollouts", lambda rows, n: rows if n == 8 else [])
    records = budget.measure(small)
    alone = [r["delta"] for r in records if (r["axis"], r["size"]) == ("rollouts", 1)]
    assert alone
    assert set(alone) == {0.0}
    assert any(r["delta"] for r in records if (r["axis"], r["size"]) == ("rollouts", 8))
    assert budget.judge(records).verdict == "inconclusive"
