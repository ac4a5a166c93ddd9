"""Token values against all continuations of a tiny policy, enumerated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest
import tiny
import torch

from counterpoise.config import SampleConfig
from counterpoise.errors import PoiseError
from counterpoise.microscope.value import (
    Branch,
    BranchKind,
    branch_rewards,
    mixed_value,
    probability_of_others,
)
from counterpoise.model.load import Policy
from counterpoise.types import Prompt, Rollout, Row
from counterpoise.verify.scores import Scores

WORDS, END, LIMIT = 9, 1, 3
PROMPT = (5, 7, 2)
CONFIG = SampleConfig(max_new_tokens=LIMIT)


def reward(tokens: Sequence[int]) -> float:
    """Made up, and different for most tokens."""
    return float(sum((i + 2) * token for i, token in enumerate(tokens) if token != END) % 3 == 0)


class Judge:
    """Scores by `reward`, reading the tokens back from the text; counts what it is asked."""

    asked = 0
    about: Sequence[Prompt] = ()

    def score(
        self, responses: Sequence[str], answers: Sequence[str], prompts: Sequence[Prompt] = ()
    ) -> Scores:
        self.asked += len(responses)
        self.about = [*self.about, *prompts]
        return Scores([reward([int(word) for word in text.split()]) for text in responses])

    def close(self) -> None:
        pass


@cache
def policy() -> Policy:
    return tiny.policy(vocab_size=WORDS, seed=3)


@cache
def probabilities(prefix: tuple[int, ...]) -> np.ndarray:
    with torch.no_grad():
        logits = policy().model(torch.tensor([[*PROMPT, *prefix]])).logits[0, -1].double()
    return logits.softmax(-1).numpy()


@cache
def expected(prefix: tuple[int, ...]) -> float:
    """V of the state, by enumeration."""
    if len(prefix) == LIMIT or (prefix and prefix[-1] == END):
        return reward(prefix)
    return float(sum(p * expected((*prefix, v)) for v, p in enumerate(probabilities(prefix))))


def exact_value(prefix: tuple[int, ...], token: int) -> float:
    p = probabilities(prefix)
    others = [v for v in range(WORDS) if v != token]
    rest = sum(p[v] * expected((*prefix, v)) for v in others) / sum(p[v] for v in others)
    return expected((*prefix, token)) - rest


def row(tokens: Sequence[int]) -> Row:
    rollout = Rollout(
        "p", "p", "", "", reward(tokens), np.array(PROMPT, dtype=np.int32),
        np.array(tokens, dtype=np.int32), np.zeros(len(tokens), dtype=np.float32),
        finished=tokens[-1] == END,
    )  # fmt: skip
    return Row("p", 1.0, len(tokens), rollout=rollout)


ROWS = [row((4, 6, 3)), row((2, END)), row((4, 3, 8)), row((END,))]
CANDIDATES = [(i, t) for i, r in enumerate(ROWS) for t in range(r.num_tokens)]


def test_the_correction_is_an_identity() -> None:
    """(Q - V) / (1 - p) is Q - Q_other for every state and token, exactly."""
    for prefix in [(), *((v,) for v in range(WORDS)), *product(range(WORDS), repeat=2)]:
        if END in prefix:
            continue
        for token, p in enumerate(probabilities(prefix)):
            plain = expected((*prefix, token)) - expected(prefix)
            assert plain / (1 - p) == pytest.approx(exact_value(prefix, token), abs=1e-9)


def test_both_estimators_find_the_enumerated_value() -> None:
    kinds: tuple[BranchKind, ...] = ("taken", "free", "other")
    branches = [Branch(i, t, kind) for i, t in CANDIDATES for kind in kinds]
    rewards = branch_rewards(policy(), ROWS, branches, Judge(), CONFIG, continuations=1500)
    means = rewards.mean(1).reshape(-1, 3)
    errors = (rewards.std(1, ddof=1) / math.sqrt(1500)).reshape(-1, 3)
    for (i, t), (taken, free, other), error in zip(CANDIDATES, means, errors, strict=True):
        tokens = tuple(ROWS[i].content.response_tokens.tolist())
        exact, p = exact_value(tokens[:t], tokens[t]), probabilities(tokens[:t])[tokens[t]]
        mixed_error = math.hypot(error[0], error[1]) / (1 - p)
        forced_error = math.hypot(error[0], error[2])
        assert abs(mixed_value(taken, free, math.log(p)) - exact) < 4 * mixed_error + 1e-9
        assert abs(taken - other - exact) < 4 * forced_error + 1e-9
        assert forced_error <= 1.01 / math.sqrt(2 * 1500)


def test_a_state_is_sampled_once() -> None:
    """s + o of one token is s of the next, and rollouts of a prompt share what they share."""
    judge = Judge()
    branches = [
        Branch(0, 0, "taken"),  # 4
        Branch(0, 1, "free"),  # 4 again
        Branch(2, 1, "free"),  # 4, in another rollout
        Branch(0, 1, "other"),  # 4, then not 6
        Branch(2, 1, "other"),  # 4, then not 3
        Branch(0, 0, "free"),  # the prompt
        Branch(2, 0, "free"),
    ]
    rewards = branch_rewards(policy(), ROWS, branches, judge, CONFIG, continuations=16)
    assert judge.asked == 4 * 16
    assert (rewards[0] == rewards[1]).all()
    assert (rewards[1] == rewards[2]).all()
    assert (rewards[5] == rewards[6]).all()


def test_a_reward_may_ask_for_the_problem_of_a_continuation() -> None:
    rows, judge = [], Judge()
    for name, each in zip("ab", (ROWS[0], ROWS[2]), strict=True):
        content = replace(each.content, prompt=name, answer=name * 2, columns={"tests": name})
        rows.append(replace(each, rollout=content))
    branches = [Branch(1, 2, "taken"), Branch(0, 2, "free"), Branch(1, 2, "free")]
    branch_rewards(policy(), rows, branches, judge, CONFIG, continuations=4)
    known = [Prompt("p", name, name * 2, columns={"tests": name}) for name in "ab"]
    assert judge.about == [known[0]] * 4 + [known[1]] * 4


def test_problems_of_equal_text_are_judged_by_their_own_answers() -> None:
    """Equal tokens after equal prompts, but the rewards of one are not those of the other."""
    rows, judge = [], Judge()
    for answer in ("6", "7"):
        rows.append(replace(ROWS[0], rollout=replace(ROWS[0].content, answer=answer)))
    branches = [Branch(0, 1, "free"), Branch(1, 1, "free")]
    branch_rewards(policy(), rows, branches, judge, CONFIG, continuations=4)
    assert [problem.answer for problem in judge.about] == ["6"] * 4 + ["7"] * 4


def test_rewards_do_not_depend_on_what_else_is_asked_for() -> None:
    branches = [Branch(i, t, kind) for i, t in CANDIDATES for kind in ("taken", "free", "other")]
    together = branch_rewards(policy(), ROWS, branches, Judge(), CONFIG, continuations=12)
    for branch, rewards in zip(branches, together, strict=True):
        alone = branch_rewards(policy(), ROWS, [branch], Judge(), CONFIG, continuations=12)
        np.testing.assert_array_equal(alone[0], rewards)


def test_a_finished_or_full_response_is_not_sampled() -> None:
    judge = Judge()
    branches = [Branch(1, 1, "taken"), Branch(0, 2, "taken"), Branch(3, 0, "taken")]
    rewards = branch_rewards(policy(), ROWS, branches, judge, CONFIG, continuations=5)
    assert judge.asked == 0
    assert rewards.tolist() == [[reward(t)] * 5 for t in ((2, END), (4, 6, 3), (END,))]


def test_a_certain_token_has_no_mixed_value() -> None:
    assert math.isnan(mixed_value(1.0, 0.0, 0.0))
    assert mixed_value(1.0, 0.0, math.log(0.75)) == pytest.approx(4.0)
    # 1 - exp(-1e-20) is 0 in floating point; what is asked for is 1e-20.
    assert probability_of_others(-1e-20) == 1e-20
    assert mixed_value(0.25, 0.125, -1e-20) == pytest.approx(0.125e20)


def test_what_cannot_be_valued_is_refused() -> None:
    def ask(candidate: tuple[int, int] = (0, 0), **changes: object) -> None:
        config = SampleConfig(**{"max_new_tokens": LIMIT, **changes})  # type: ignore[arg-type]
        branch = Branch(*candidate, "taken")
        branch_rewards(policy(), ROWS, [branch], Judge(), config, continuations=2)

    with pytest.raises(PoiseError, match="no token 3 in row 0"):
        ask((0, 3))
    with pytest.raises(PoiseError, match="top_p=1"):
        ask(top_p=0.9)
    with pytest.raises(PoiseError, match="longer than"):
        ask(max_new_tokens=2)
    branch = Branch(0, 0, "taken")
    with pytest.raises(PoiseError, match="at least one continuation"):
        branch_rewards(policy(), ROWS, [branch], Judge(), CONFIG, continuations=0)
