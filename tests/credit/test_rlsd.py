"""RLSD: what knowing the answer changes."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import answered
import numpy as np
import pytest
import torch

from counterpoise.config import CreditConfig
from counterpoise.credit.hints import HINT_TEMPLATE, check_reference_answers
from counterpoise.credit.rlsd import trust_weights
from counterpoise.credit.rlsd import weights as rlsd
from counterpoise.credit.view import CreditView
from counterpoise.errors import PoiseError
from counterpoise.model.reading_passes import EAGER_READING
from counterpoise.types import Prompt

ROWS = answered.rows()


def logprobs(policy, prompt, response, temperature: float) -> list[float]:
    found = []
    for t in range(len(response)):
        ids = torch.from_numpy(np.concatenate((prompt, response[:t])).astype(np.int64))
        with torch.no_grad():
            logits = policy.model(ids[None]).logits[0, -1] / temperature
        found.append(float(torch.log_softmax(logits, dim=-1)[int(response[t])]))
    return found


@pytest.mark.parametrize(("iteration", "lam"), [(1, 0.5), (26, 0.25), (50, 0.01)])
def test_against_the_formula(iteration: int, lam: float) -> None:
    policy = answered.policy()
    seen = answered.view(policy, ROWS)
    view = CreditView(ROWS, replace(seen.reader, iteration=iteration))
    for row, w_T in zip(ROWS, rlsd(view), strict=True):
        c = row.content
        hint = policy.encode(HINT_TEMPLATE.format(problem=c.prompt, answer=c.answer))
        teacher = logprobs(policy, hint, c.response_tokens, 0.8)
        student = logprobs(policy, c.prompt_tokens, c.response_tokens, 0.8)
        sign = 1 if row.advantage > 0 else -1
        expected = []
        for after, before in zip(teacher, student, strict=True):
            D = max(-20.0, min(20.0, after - before))
            w = max(0.8, min(1.2, math.exp(sign * D)))
            expected.append((1 - lam) + lam * w)
        np.testing.assert_allclose(w_T, expected, atol=2e-5)
        assert w_T.dtype == np.float32


def test_a_teacher_that_follows_reads_with_its_own_weights() -> None:
    policy, earlier = answered.policy(), answered.policy(seed=3)
    weights = {name: p.detach() for name, p in earlier.model.named_parameters()}
    seen = answered.view(policy, ROWS)
    view = CreditView(ROWS, replace(seen.reader, teacher=weights, iteration=1))
    for row, w_T in zip(ROWS, rlsd(view, mix=1.0, clip=0.9, teacher_every=10), strict=True):
        c = row.content
        hint = policy.encode(HINT_TEMPLATE.format(problem=c.prompt, answer=c.answer))
        teacher = np.array(logprobs(earlier, hint, c.response_tokens, 0.8))
        student = np.array(logprobs(policy, c.prompt_tokens, c.response_tokens, 0.8))
        D = np.clip(teacher - student, -20, 20)
        expected = np.clip(np.exp(np.sign(row.advantage) * D), 0.1, 1.9)
        np.testing.assert_allclose(w_T, expected, atol=2e-5)
    with pytest.raises(PoiseError, match="teacher_every must be 0 or above"):
        rlsd(view, teacher_every=-1)


def test_by_hand() -> None:
    teacher = np.log(np.array([0.5, 0.55, 0.1, 0.9], dtype=np.float32))
    student = np.log(np.array([0.5, 0.5, 0.5, 0.001], dtype=np.float32))
    np.testing.assert_allclose(
        trust_weights(teacher, student, 1, 1.0, 0.2), [1, 1.1, 0.8, 1.2], rtol=1e-5
    )
    np.testing.assert_allclose(
        trust_weights(teacher, student, -1, 1.0, 0.2), [1, 1 / 1.1, 1.2, 0.8], rtol=1e-5
    )
    np.testing.assert_allclose(
        trust_weights(teacher, student, 1, 0.5, 0.2), [1, 1.05, 0.9, 1.1], rtol=1e-5
    )
    far = np.array([-1e30], dtype=np.float32)
    assert np.isfinite(trust_weights(far, np.zeros(1, np.float32), -1, 1.0, 1e9)).all()


def test_once_it_has_faded_nothing_is_computed() -> None:
    seen = answered.view(answered.policy(), ROWS)
    assert rlsd(CreditView(ROWS, replace(seen.reader, iteration=51))) is None
    assert rlsd(seen, mix=0.0) is None


def test_without_a_reference_answer_every_weight_is_one() -> None:
    policy = answered.policy()
    blind = replace(ROWS[0], rollout=replace(ROWS[0].content, answer=""))
    found = rlsd(answered.view(policy, [blind, ROWS[1]]))
    assert (found[0] == 1).all()
    assert not (found[1] == 1).all()
    assert rlsd(answered.view(policy, [])) == []


def test_rows_without_an_answer_are_not_read_by_the_teacher() -> None:
    blind = replace(ROWS[0], rollout=replace(ROWS[0].content, answer=""))
    view = answered.view(answered.policy(), [blind, ROWS[1], blind])
    rows_read = []

    def read(policy, rows, *arguments):
        rows_read.extend(rows)
        return EAGER_READING.read(policy, rows, *arguments)

    reader = replace(view.reader, passes=SimpleNamespace(read=read))
    first, hinted, last = CreditView(view.rows, reader).hinted_logprobs
    assert first is None
    assert last is None
    assert [len(row.content.response_tokens) for row in rows_read] == [len(hinted)]


def test_data_without_any_answer_is_refused() -> None:
    problems = [Prompt("p/1", "one", ""), Prompt("p/2", "two", "")]
    message = "tells a teacher the reference answer, and none of the 2 problems has one"
    with pytest.raises(PoiseError, match=f"^credit.weights=rlsd {message}"):
        check_reference_answers(CreditConfig(weights="rlsd"), problems)
    with pytest.raises(PoiseError, match=f"^credit.rule=sdpg {message}"):
        check_reference_answers(CreditConfig(rule="sdpg"), problems)
    check_reference_answers(CreditConfig(weights="rlsd"), [*problems, Prompt("p/3", "3", "4")])
    check_reference_answers(CreditConfig(), problems)
