"""Groups -> rows: who gets which advantage, and token weights on top."""

from __future__ import annotations

import answered
import numpy as np
import pytest
import tiny

import counterpoise.credit.assign as assign_module
from counterpoise.credit.assign import assign, parse_settings
from counterpoise.credit.view import CreditView, PolicyReader
from counterpoise.errors import PoiseError
from counterpoise.plugins import Registry
from counterpoise.types import Group, Rollout
from counterpoise.variants import TOKEN_WEIGHTS


def rollout(reward: float, length: int) -> Rollout:
    tokens = np.arange(length, dtype=np.int32)
    return Rollout(
        "p", "1 + 1 = ?", "2", "", reward, tokens[:1], tokens, np.zeros(length, np.float32)
    )


def halving(view: CreditView, *, base: float = 0.5) -> list[np.ndarray]:
    """Token weights 1, 1/2, 1/4, ...: a small real method for the hook."""
    return [np.float32(base) ** np.arange(r.num_tokens, dtype=np.float32) for r in view.rows]


GROUPS = [
    Group("3:p", 3, (rollout(1.0, 2), rollout(0.0, 3))),
    Group("3:q", 3, (rollout(1.0, 1), rollout(1.0, 4))),
]


def test_rows_keep_the_order_and_the_names_of_their_group() -> None:
    rows = assign(GROUPS, "rloo")
    assert [[row.advantage for row in group] for group in rows] == [[1.0, -1.0], [0.0, 0.0]]
    assert [[row.sign for row in group] for group in rows] == [[1, -1], [0, 0]]
    assert [[row.num_tokens for row in group] for group in rows] == [[2, 3], [1, 4]]
    flat = [row for group in rows for row in group]
    assert [(row.group, row.index, row.born) for row in flat] == [
        ("3:p", 0, 3),
        ("3:p", 1, 3),
        ("3:q", 0, 3),
        ("3:q", 1, 3),
    ]
    assert flat[1].content is GROUPS[0].rollouts[1]
    assert all(row.weights_T is None for row in flat)
    assert flat[1].advantages_T.tolist() == [-1.0, -1.0, -1.0]
    assert flat[1].advantages_T.dtype == np.float32


def test_weights_multiply_token_by_token(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Registry("token weights", {"halving": f"{__name__}:halving"})
    monkeypatch.setattr(assign_module, "TOKEN_WEIGHTS", table)
    right, wrong = assign(GROUPS, "rloo", "halving")[0]
    assert right.advantages_T.tolist() == [1.0, 0.5]
    assert wrong.advantages_T.tolist() == [-1.0, -0.5, -0.25]
    assert right.advantage == 1.0  # of the whole rollout, as before
    rows = assign(GROUPS, "rloo", "halving", ["base=0.25"])
    assert rows[0][0].advantages_T.tolist() == [1.0, 0.25]
    assert [row.weights_T for row in rows[1]] == [None, None]  # nothing to weigh


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["bsae=1"], "did you mean 'base'"),
        (["base"], "'base' is not name=value"),
        (["base=half"], "base is a number, not 'half'"),
    ],
)
def test_settings_are_checked(
    settings: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Registry("token weights", {"halving": f"{__name__}:halving"})
    monkeypatch.setattr(assign_module, "TOKEN_WEIGHTS", table)
    with pytest.raises(PoiseError, match=message):
        assign(GROUPS, "rloo", "halving", settings)


@pytest.mark.parametrize(("word", "meant"), [("true", True), ("True", True), ("FALSE", False)])
def test_yes_and_no_are_true_and_false(word: str, meant: bool) -> None:
    def method(view: CreditView, *, loud: bool = False, times: int = 1) -> None: ...

    assert parse_settings("shout", method, [f"loud={word}"]) == {"loud": meant}
    with pytest.raises(PoiseError, match="loud is true or false, not 'yes'"):
        parse_settings("shout", method, ["loud=yes"])
    with pytest.raises(PoiseError, match="times is a whole number"):
        parse_settings("shout", method, ["times=1.5"])


def test_uniform_has_no_settings() -> None:
    with pytest.raises(PoiseError, match="'uniform' has no settings"):
        assign(GROUPS, "grpo", "uniform", ["share=1"])


def test_no_groups_no_rows() -> None:
    assert assign([], "grpo") == []


def test_unknown_names_are_met_with_the_nearest() -> None:
    with pytest.raises(PoiseError, match="did you mean 'grpo'"):
        assign(GROUPS, "gpro")
    with pytest.raises(PoiseError, match="did you mean 'uniform'"):
        assign(GROUPS, "grpo", "unifrom")


def surprised(view: CreditView) -> list[np.ndarray]:
    return [-logprobs_T for logprobs_T in view.logprobs]


def test_what_a_weighting_has_read_is_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the rows' names, and only where it was read."""
    methods = {"halving": f"{__name__}:halving", "surprised": f"{__name__}:surprised"}
    monkeypatch.setattr(assign_module, "TOKEN_WEIGHTS", Registry("token weights", methods))
    reader = PolicyReader(tiny.policy())
    assign(GROUPS, "rloo", "halving", reader=reader)
    assert reader.scores == {}
    rows = assign(GROUPS, "rloo", "surprised", reader=reader)
    assert sorted(reader.scores) == [("3:p", 0), ("3:p", 1)]  # those with signal
    for row in rows[0]:
        assert (reader.scores[row.name] == -row.weights_T).all()
        assert row.trainer_logprobs_T is None  # the first step's own pass scores it


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("rlsd", "fade=0"),
        ("rlsd", "mix=1.5"),
        ("serl", "fade=-1"),
        ("oar_g", "quantile=1.5"),
        ("oar_g", "boost=-1"),
        ("oar_p", "quantile=-0.1"),
        ("oar_p", "quantile=nan"),
    ],
)
def test_values_that_mean_nothing_are_refused_in_one_line(name: str, setting: str) -> None:
    weights_of = TOKEN_WEIGHTS.load(name)
    view = answered.view(answered.policy(), answered.rows())
    with pytest.raises(PoiseError, match=setting.partition("=")[0]):
        weights_of(view, **parse_settings(name, weights_of, [setting]))
