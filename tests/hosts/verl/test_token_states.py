"""Token weights from what verl's workers keep of a scoring pass, without verl: made-up passes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hosts.verl.test_step_coupling import run_pass

from counterpoise.credit.array_view import weights
from counterpoise.hosts.verl import token_states
from counterpoise.hosts.verl.token_states import ScoredRow, StateCapture, weigh_captured
from counterpoise.hosts.verl.weight_methods import STATE_READING_WEIGHTS, reads_states
from counterpoise.hosts.verl.weight_request import WeightRequest, evaluate_request
from counterpoise.types import Rollout, Row

ADVANTAGES, GROUPS = (0.7, -0.7, -0.4, 0.4), ("a", "a", "b", "b")


class OneRank:
    """An engine as rank 0 of one rank sees it."""

    def __init__(self, head: torch.nn.Linear) -> None:
        self.module = SimpleNamespace(config=SimpleNamespace(), get_output_embeddings=lambda: head)

    def get_data_parallel_rank(self) -> int:
        return 0

    def get_data_parallel_group(self) -> None:
        return None


def scoring_pass(packed: bool) -> tuple[StateCapture, torch.nn.Linear]:
    """The rows of two passes, gathered in one capture."""
    capture = StateCapture(0, keeps_head=True)
    for number in range(2):
        capture.first_index = 2 * number
        logprobs, data, head = run_pass(capture, packed, seed=number)
        loss, metrics = capture.keep_rows(model_output={"log_probs": logprobs}, data=data)
        assert (float(loss), metrics) == (0.0, {})
    return capture, head


def make_request(method: str, scored: list[ScoredRow], **changes: Any) -> WeightRequest:
    values: dict[str, Any] = {
        "method": method,
        "settings": (),
        "rows": [
            Row(group, advantage, len(row.tokens_T), index)
            for index, (group, advantage, row) in enumerate(
                zip(GROUPS, ADVANTAGES, scored, strict=True)
            )
        ],
        "batch_indices": [row.batch_index for row in scored],
        "tokens": [row.tokens_T for row in scored],
        "logprobs": [row.logprobs_T for row in scored],
        "entropies": [np.abs(row.logprobs_T) for row in scored],
        "token_texts": {},
        "temperature": 1.0,
        "iteration": 3,
    }
    return WeightRequest(**(values | changes))


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """One process without a process group; real runs gather from two ranks."""
    monkeypatch.setattr(token_states, "gather_in_parts", lambda rows, group, rank: list(rows))


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("method", STATE_READING_WEIGHTS)
def test_weights_are_those_of_the_array_interface(method: str, packed: bool) -> None:
    capture, head = scoring_pass(packed)
    rows = capture.rows
    assert [row.batch_index for row in rows] == [0, 1, 2, 3]
    settings = {"beta": -9.0} if method == "nthr" else {}  # so low that some token is above it
    texts = [f"{name}={value}" for name, value in settings.items()]
    result = weigh_captured(capture, make_request(method, rows, settings=texts), OneRank(head))
    expected = weights(
        method,
        advantages=ADVANTAGES,
        groups=GROUPS,
        tokens=[row.tokens_T for row in rows],
        hidden=[row.hidden_TD for row in rows],
        unembedding=head.weight.detach(),
        **settings,
    )
    assert result.fault == ""
    for ours_T, expected_T in zip(result.weights, expected, strict=True):
        np.testing.assert_allclose(ours_T, expected_T, atol=1e-6)
    assert len(np.unique(np.concatenate(expected).round(4))) > 1


def test_what_cannot_be_weighed_is_a_line() -> None:
    capture, head = scoring_pass(packed=True)
    request = make_request("nthr", capture.rows)
    engine = OneRank(head)
    missing = StateCapture(0, keeps_head=True)
    missing.rows, missing.head = capture.rows[1:], capture.head
    assert weigh_captured(missing, request, engine).fault.startswith("verl's scoring pass did not")
    capture.head = 2 * head.weight.detach()
    assert "more than a product" in weigh_captured(capture, request, engine).fault
    capture.head = head.weight.detach()
    wrong = make_request("shear", capture.rows, settings=["blur=-1"])
    assert weigh_captured(capture, wrong, engine).fault.startswith("shear: set stride")
    biased = OneRank(torch.nn.Linear(5, 11))
    assert weigh_captured(capture, request, biased).fault == "the model's output layer has a bias"


def test_a_function_of_the_users_reads_states_scores_and_texts(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "def mine(hidden, entropies, pieces, texts, positions, iteration, *, scale: float = 1.0):\n"
        "    columns = zip(hidden, entropies, pieces, texts)\n"
        "    return [scale * (h[:, 0] + e + [len(p) for p in ps] + len(t) + iteration)\n"
        "            for h, e, ps, t in columns]\n"
        "def scores(entropies): return entropies\n"
    )
    capture, head = scoring_pass(packed=True)
    rows = capture.rows
    method = f"{path}:mine"
    assert reads_states(method)
    assert not reads_states(f"{path}:scores")
    request = make_request(method, rows, settings=["scale=2"])
    texts = {token: "x" * (token % 3) for row in rows for token in row.tokens_T.tolist()}
    with_texts = [
        Row(row.group, row.advantage, row.num_tokens, row.index, rollout=rollout("yes"))
        for row in request.rows
    ]
    request = make_request(method, rows, settings=["scale=2"], rows=with_texts, token_texts=texts)
    result = weigh_captured(capture, request, OneRank(head))
    assert result.fault == ""
    for row, weights_T in zip(rows, result.weights, strict=True):
        expected = row.hidden_TD[:, 0].numpy() - row.logprobs_T + row.tokens_T % 3 + 3 + 3
        np.testing.assert_allclose(weights_T, 2 * expected, rtol=1e-5)
    without = make_request(f"{path}:scores", rows)
    for ours_T, entropies_T in zip(evaluate_request(without), without.entropies, strict=True):
        np.testing.assert_array_equal(ours_T, entropies_T)


def rollout(text: str) -> Rollout:
    return Rollout(
        prompt_id="",
        prompt="",
        answer="",
        response=text,
        reward=0.0,
        prompt_tokens=np.empty(0, np.int32),
        response_tokens=np.empty(0, np.int32),
        sampled_logprobs=np.empty(0, np.float32),
    )
