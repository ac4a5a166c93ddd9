"""What a worker keeps of a step, without verl: two made-up ranks, packed and padded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from counterpoise.hosts.verl.head_capture import ROW_FIELD, HeadCapture, OutputLayer
from counterpoise.hosts.verl.step_coupling import (
    CapturedRow,
    CouplingRequest,
    RowCapture,
    decompose_step,
)
from counterpoise.microscope.coupling import decompose

PROMPT, LENGTHS, MASKS = 3, (4, 2), ([1, 0, 1, 1], [1, 1])
V, D = 11, 5


def nested(*rows: torch.Tensor) -> Any:
    return torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)


def token_mean(*, model_output: Any, data: Any, dp_group: Any = None) -> tuple[Any, dict[str, Any]]:
    """-dp_size sum A logp / N over the masked response tokens, as verl's loss counts them."""
    total = 0.0
    for logprobs_L, mask_T, advantages_T in zip(
        model_output["log_probs"].unbind(), data["response_mask"].unbind(),
        data["advantages"].unbind(), strict=True,
    ):  # fmt: skip
        before = logprobs_L[len(logprobs_L) - len(mask_T) - 1 : -1]
        total = total - (advantages_T * before * mask_T).sum()
    return data["dp_size"] * total / 7, {}


def run_pass(capture: HeadCapture, packed: bool, seed: int) -> tuple[Any, dict[str, Any], Any]:
    """A pass of two rows on one rank: its log-probabilities, its data and the output layer."""
    torch.manual_seed(7)
    head = torch.nn.Linear(D, V, bias=False)
    generator = torch.Generator().manual_seed(seed)
    ids = [torch.randint(V, (PROMPT + n,), generator=generator) for n in LENGTHS]
    hidden = [torch.randn(PROMPT + n, D, generator=generator) for n in LENGTHS]
    hook = head.register_forward_pre_hook(capture.read_head)
    states = torch.cat(hidden)[None] if packed else torch.nn.utils.rnn.pad_sequence(hidden, True)
    logits = head(states)
    hook.remove()
    by_row = logits[0].split([len(h) for h in hidden]) if packed else list(logits)
    logprobs = [
        torch.log_softmax(z[: len(i)], -1).gather(1, i.roll(-1)[:, None])[:, 0]
        for z, i in zip(by_row, ids, strict=True)
    ]
    data = {
        ROW_FIELD: torch.arange(2),
        "input_ids": nested(*ids),
        "response_mask": nested(*(torch.tensor(mask) for mask in MASKS)),
        "advantages": nested(torch.full((4,), 0.5), torch.full((2,), -0.5)),
        "dp_size": 2,
    }
    return nested(*logprobs), data, head


def capture_rank(rank: int, packed: bool, seed: int) -> tuple[RowCapture, torch.Tensor]:
    """The rows of one rank; all rows but the first of rank 1 are asked for."""
    request = CouplingRequest([0, 1, 3], ["a", "b", "a"], ["a"], 1.0)
    capture = RowCapture(request, first_index=2 * rank, keeps_head=rank == 0)
    logprobs, data, head = run_pass(capture, packed, seed)
    value, _ = capture.wrap_loss(token_mean)(model_output={"log_probs": logprobs}, data=data)
    value.backward()
    assert head.weight.grad is not None  # the step's own gradient is computed as ever
    return capture, head.weight.detach()


@pytest.mark.parametrize("packed", [True, False])
def test_the_rows_that_were_asked_for(packed: bool) -> None:
    captures = [capture_rank(rank, packed, seed=rank) for rank in range(2)]
    rows = [row for capture, _ in captures for row in capture.rows]
    assert [row.batch_index for row in rows] == [0, 1, 3]
    assert captures[1][0].head is None
    assert [len(row.tokens_T) for row in rows] == [3, 2, 2]  # the tool's token is not trained
    # One rank's share of the gradient, whatever verl multiplies its loss by.
    np.testing.assert_allclose(rows[0].pulls_T, 0.5 / 7, rtol=1e-6)
    np.testing.assert_allclose(rows[2].pulls_T, -0.5 / 7, rtol=1e-6)
    W = captures[0][1]
    for row in rows:
        expected = torch.log_softmax(row.hidden_TD @ W.T, -1)
        tokens = torch.from_numpy(row.tokens_T).long()
        np.testing.assert_allclose(
            row.logprobs_T, expected.gather(1, tokens[:, None])[:, 0], atol=1e-6
        )


def test_pushes_on_rank_0() -> None:
    captures = [capture_rank(rank, True, seed=rank) for rank in range(2)]
    rows = [row for capture, _ in reversed(captures) for row in capture.rows]
    request = CouplingRequest([0, 1, 3], ["a", "b", "a"], ["a"], 1.0)
    W = captures[0][1]
    result = decompose_step(2, request, rows, OutputLayer(W, 0.0))
    assert (result.step, result.batch_indices, result.fault) == (2, (0, 1, 3), "")
    in_order = sorted(rows, key=lambda row: row.batch_index)
    tokens, pulls = (
        torch.from_numpy(np.concatenate([getattr(row, name) for row in in_order]))
        for name in ("tokens_T", "pulls_T")
    )
    groups = torch.tensor([0] * 3 + [1] * 2 + [0] * 2)
    hidden = torch.cat([row.hidden_TD for row in in_order])
    expected = decompose(hidden, W, tokens.long(), pulls, groups, eta=len(tokens))
    assert result.measurement is not None
    torch.testing.assert_close(result.measurement.coupling.self_push, expected.self_push)
    parts = result.measurement.coupling.parts
    for part, values in expected.parts.items():
        torch.testing.assert_close(parts[part], values, rtol=1e-5, atol=1e-7)
    assert result.measurement.step == 2
    assert result.measurement.pushes is not None  # group "a" is watched
    assert np.isnan(result.measurement.displacement).all()


def test_a_model_whose_logits_are_not_w_h() -> None:
    capture, W = capture_rank(0, True, seed=0)
    request = CouplingRequest([0, 1, 3], ["a", "b", "a"], [], 1.0)
    rows: list[CapturedRow] = capture.rows
    result = decompose_step(0, request, rows, OutputLayer(2 * W, 0.0))
    assert result.measurement is None
    assert "more than a product of its output layer" in result.fault
