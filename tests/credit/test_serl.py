"""SERL: what knowing the environment's word changes, on the tokens of actions alone."""

from __future__ import annotations

import math
from dataclasses import replace

import answered
import episodes
import numpy as np
import pytest
import torch

from counterpoise.credit.serl import FEEDBACK_TEMPLATE
from counterpoise.credit.serl import weights as serl
from counterpoise.credit.view import CreditView
from counterpoise.errors import PoiseError
from counterpoise.types import Row, Turn

ENCODE = answered.policy().encode
ROWS = [
    replace(row, rollout=replace(row.content, prompt_tokens=ENCODE(row.content.prompt)))
    for row in answered.rows()
]


def told(*tokens: int) -> np.ndarray:
    return np.array(tokens, dtype=np.int32)


def played(row: Row, *turns: Turn) -> Row:
    return replace(row, rollout=replace(row.content, turns=turns))


def cases() -> list[Row]:
    """Two turns; one that was right; a turn without an action; a response that nobody answered."""
    a, b, c, d = ROWS[1], ROWS[4], ROWS[5], ROWS[0]
    return [
        played(a, Turn(0, told(), (3, 5), "too high"), Turn(6, told(20, 21, 22), (12, 16), "low")),
        played(b, Turn(0, told(), (3, 7), "too low"), Turn(9, told(30), (10, 12), "")),
        played(c, Turn(0, told(), (0, 0), "not there"), Turn(4, told(31, 32), (9, 13), "too low")),
        d,
    ]


def expected(
    policy, row: Row, lam: float, temperature: float, texts: list[str] | None = None
) -> list[float]:
    found = [1.0] * row.num_tokens
    student = episodes.logprobs(policy, row, temperature).tolist()
    said = texts or [turn.feedback for turn in row.content.turns]
    for turn, text in zip(row.content.turns, said, strict=True):
        if not turn.feedback or not text:
            continue
        problem = row.content.first_message or row.content.prompt
        hint = FEEDBACK_TEMPLATE.format(problem=problem, feedback=text)
        moved = replace(row, rollout=replace(row.content, prompt_tokens=policy.encode(hint)))
        teacher = episodes.logprobs(policy, moved, temperature).tolist()
        for t in range(*turn.action):
            D = max(-20.0, min(20.0, teacher[t] - student[t]))
            sign = 1 if row.advantage > 0 else -1
            found[t] = (1 - lam) + lam * max(0.8, min(1.2, math.exp(sign * D)))
    return found


@pytest.mark.parametrize(("iteration", "lam"), [(1, 0.5), (26, 0.25)])
@pytest.mark.parametrize("micro_tokens", [25, 1000])
def test_against_the_formula(iteration: int, lam: float, micro_tokens: int) -> None:
    policy, rows = answered.policy(), cases()
    seen = answered.view(policy, rows, tokens=micro_tokens)
    found = serl(CreditView(rows, replace(seen.reader, iteration=iteration)))
    assert found is not None
    with torch.no_grad():
        for row, w_T in zip(rows, found, strict=True):
            np.testing.assert_allclose(w_T, expected(policy, row, lam, 0.8), atol=2e-5)
            assert w_T.dtype == np.float32


def test_the_teacher_reads_the_first_message_of_the_environment() -> None:
    """It replaces the problem for the student, so it must for the teacher."""
    policy, (row, *_) = answered.policy(), cases()
    message = "game 17 begins"
    content = replace(row.content, prompt_tokens=policy.encode(message), first_message=message)
    begun = replace(row, rollout=content)
    (found,) = serl(CreditView([begun], replace(answered.view(policy, []).reader, iteration=1)))
    with torch.no_grad():
        np.testing.assert_allclose(found, expected(policy, begun, 0.5, 0.8), atol=2e-5)
    # A rollout of a version that did not store the message cannot be weighed.
    unknown = replace(row, rollout=replace(content, first_message=""))
    with pytest.raises(PoiseError, match=r"^p0: its environment began with a message in place of"):
        serl(answered.view(policy, [unknown]))


def test_other_things_that_become_known() -> None:
    """The next observation, the rest of the episode, or a successful one of the group."""
    policy, (a, b, _, d) = answered.policy(), cases()
    right = replace(d, group=b.group, advantage=1.0, rollout=replace(d.content, response="so 7"))
    wrong = replace(b, advantage=-0.5)
    rows, unseen = [a, wrong, right], [""]
    a_tokens, b_tokens = a.content.response_tokens, b.content.response_tokens
    texts = {
        "next_observation": ([policy.decode([20, 21, 22]), "low"], [policy.decode([30]), ""]),
        "future": (
            [policy.decode([20, 21, 22]) + " " + policy.decode(a_tokens[6:]), "low"],
            [policy.decode([30]) + " " + policy.decode(b_tokens[9:]), ""],
        ),
        "success": (unseen * 2, ["so 7", ""]),
    }
    for mode, (of_a, of_b) in texts.items():
        seen = answered.view(policy, rows)
        view = CreditView(rows, replace(seen.reader, iteration=1))
        found = serl(view, feedback=mode)
        assert found is not None
        with torch.no_grad():
            np.testing.assert_allclose(found[0], expected(policy, a, 0.5, 0.8, of_a), atol=2e-5)
            np.testing.assert_allclose(found[1], expected(policy, wrong, 0.5, 0.8, of_b), atol=2e-5)
        assert (found[1] != 1).any()
        assert (found[2] == 1).all()
    with pytest.raises(PoiseError, match="unknown feedback of serl 'judge'"):
        serl(view, feedback="judge")


def test_only_actions_with_something_to_mend_are_weighed() -> None:
    rows = cases()
    found = serl(answered.view(answered.policy(), rows))
    assert found is not None
    weighed = [np.flatnonzero(w_T != 1).tolist() for w_T in found]
    assert set(weighed[0]) <= {3, 4, 12, 13, 14, 15}
    assert weighed[0]
    assert set(weighed[1]) <= {3, 4, 5, 6}  # its second turn was right
    assert set(weighed[2]) <= {9, 10, 11, 12}  # its first had no action
    assert not weighed[3]


def test_once_it_has_faded_nothing_is_computed() -> None:
    rows = cases()
    seen = answered.view(answered.policy(), rows)
    assert serl(CreditView(rows, replace(seen.reader, iteration=51))) is None
    assert serl(seen, mix=0.0) is None


def test_without_episodes_every_weight_is_one() -> None:
    policy = answered.policy()
    found = serl(answered.view(policy, ROWS))
    assert found is not None
    assert all((w_T == 1).all() for w_T in found)
    assert serl(answered.view(policy, [])) == []


def test_in_half_precision() -> None:
    rows = cases()
    exact, half = answered.policy(), answered.policy()
    half.model.bfloat16()
    wanted = serl(answered.view(exact, rows))
    found = serl(answered.view(half, rows))
    assert wanted is not None
    assert found is not None
    w_N, half_N = np.concatenate(wanted), np.concatenate(found)
    weighed = w_N != 1
    np.testing.assert_array_equal(half_N[~weighed], 1)
    # weights are within 0.096 of 1: those of another policy would be about 0.1 away
    assert np.abs(half_N - w_N)[weighed].mean() < 0.02
