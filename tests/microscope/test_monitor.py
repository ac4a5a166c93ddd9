"""The monitor sees the step's own tensors, changes nothing, and adds up."""

from __future__ import annotations

import numpy as np
import pytest
import tiny
import torch

from counterpoise.config import UpdateConfig
from counterpoise.microscope.batch_tokens import take_snapshot
from counterpoise.microscope.likely_tokens import TOP_TOKENS
from counterpoise.microscope.monitor import Monitor
from counterpoise.microscope.monitor_records import (
    METRIC_NAMES,
    likely_table,
    monitor_metrics,
    push_table,
    token_columns,
)
from counterpoise.model.load import Policy, wrap_model
from counterpoise.types import Row, StepResult
from counterpoise.update.optimizer import Optimizer
from counterpoise.update.step import StepSettings, take_step

TEMPERATURE = 0.8


def step(policy: Policy, rows: list[Row], monitor: Monitor | None, **changes: object) -> StepResult:
    config = UpdateConfig(**{"lr": 1e-2, "optimizer": "sgd", "micro_tokens": 50, **changes})
    return take_step(
        policy,
        Optimizer(policy.model, config),
        rows,
        StepSettings(config, temperature=TEMPERATURE, max_new_tokens=17),
        observer=monitor,
    )


def looked(rows: list[Row], **changes: object) -> tuple[Policy, Monitor, StepResult]:
    policy, monitor = tiny.policy(), Monitor(TEMPERATURE, 50, {"p0"})
    return policy, monitor, step(policy, rows, monitor, **changes)


def test_looking_changes_nothing() -> None:
    rows = tiny.rows()
    seen, _, first = looked(rows)
    blind = tiny.policy()
    second = step(blind, rows, None)
    for a, b in zip(seen.model.parameters(), blind.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert first.loss == second.loss
    assert first.hidden == second.hidden == ()


def test_displacement_is_what_the_step_did() -> None:
    rows = tiny.rows()
    before = take_snapshot(tiny.policy(), rows, TEMPERATURE, 50).logprobs
    policy, monitor, _ = looked(rows)
    after = take_snapshot(policy, rows, TEMPERATURE, 50).logprobs
    (view,) = monitor.measurements
    np.testing.assert_allclose(view.displacement, (after - before).numpy(), atol=1e-6)


def test_an_update_of_nothing_is_all_stable_exactly() -> None:
    _, monitor, _ = looked(tiny.rows(), lr=0.0)
    found = monitor_metrics(monitor.measurements)
    assert found["stable_positive"] == found["stable_negative"] == 1.0
    assert found["moved_positive"] == found["moved_negative"] == found["flipped"] == 0.0
    assert found["cancellation"] > 0  # the pulls are there all the same
    assert found["proxy_agreement"] is None


def test_coupling_is_that_of_the_pulls() -> None:
    """pull = -dL/dlogp; for one unit of SGD on W alone it predicts the displacement."""
    rows = tiny.rows()
    policy = tiny.policy()
    seen = take_snapshot(policy, rows, TEMPERATURE, 50)
    W = policy.decoder.unembedding.detach().clone().requires_grad_()
    logprobs = torch.log_softmax(seen.hidden @ W.T / TEMPERATURE, dim=-1)
    logprobs = logprobs.gather(1, seen.tokens[:, None]).squeeze(1)
    _, monitor, result = looked(rows)
    pulls = torch.from_numpy(np.concatenate(result.pulls))
    (gradient,) = torch.autograd.grad((pulls * logprobs).sum(), W, retain_graph=True)
    expected = torch.stack(
        [(torch.autograd.grad(lp, W, retain_graph=True)[0] * gradient).sum() for lp in logprobs]
    )
    found = monitor.measurements[0].coupling.total
    torch.testing.assert_close(
        found, expected.detach(), rtol=1e-3, atol=1e-4 * expected.abs().max().item()
    )


def test_pulls_are_advantages_over_tokens_on_policy_and_zero_where_clipped() -> None:
    policy = tiny.policy()
    rows = tiny.rows(off_policy=3.0)
    result = step(policy, rows, None)
    ratio = [np.exp(a - b) for a, b in zip(result.logprobs, result.old_logprobs, strict=True)]
    for pull, r, A, c in zip(
        result.pulls, ratio, result.advantages, result.coefficients, strict=True
    ):
        bounded = np.clip(r, 0.8, 1.28)
        expected = np.where(bounded * A < r * A, 0.0, c * r * A)
        np.testing.assert_allclose(pull, expected, rtol=1e-4, atol=1e-8)
    assert any((pull == 0).any() for pull in result.pulls)


def test_numbers_and_columns_fit_together() -> None:
    rows = tiny.rows()
    _, monitor, _ = looked(rows)
    N = sum(row.num_tokens for row in rows)
    found, table = (
        monitor_metrics(monitor.measurements),
        token_columns(monitor.measurements, np.arange(N), N),
    )
    assert tuple(found) == METRIC_NAMES
    assert all(len(values) == N for values in table.values())
    total = sum(values for name, values in table.items() if name != "displacement")
    np.testing.assert_allclose(
        total,
        monitor.measurements[0].coupling.total.numpy(),
        rtol=1e-3,
        atol=1e-5 * np.abs(total).max(),
    )
    A = np.concatenate([row.advantages_T for row in rows])
    against = np.sign(A) * np.sign(table["displacement"]) * (np.abs(table["displacement"]) > 1e-6)
    assert found["flipped"] == pytest.approx(float((against < 0).mean()))
    assert found["boosted_positive"] + found["suppressed_positive"] + found[
        "stable_positive"
    ] == pytest.approx(1.0)
    shares = [share for _, _, share in found["cancellation_types"]]
    assert shares == sorted(shares, reverse=True)
    assert all(0 <= index <= 1 for _, index, _ in found["cancellation_types"])


def test_pushes_are_the_strongest_terms_of_the_sum() -> None:
    rows = tiny.rows()
    _, monitor, result = looked(rows)
    trace = push_table(monitor.measurements, [result.rows])
    assert trace is not None
    table = trace.columns
    watched = {i for i, row in enumerate(rows) if row.group == "p0"}
    assert set(table["row"].tolist()) == watched
    seen = take_snapshot(tiny.policy(), rows, TEMPERATURE, 50)
    W = tiny.policy().decoder.unembedding.detach() / TEMPERATURE
    place = {
        (r, t): n
        for n, (r, t) in enumerate(zip(seen.rows.tolist(), seen.positions.tolist(), strict=True))
    }
    pulls = torch.from_numpy(np.concatenate(result.pulls))
    R = -torch.softmax(seen.hidden @ W.T, dim=-1)
    R[torch.arange(len(seen)), seen.tokens] += 1
    whole = (R @ R.T) * (seen.hidden @ seen.hidden.T) * pulls[None] / TEMPERATURE**2
    for row, position in {(0, 0), (1, 0)}:
        mine = (table["row"] == row) & (table["position"] == position)
        j = place[row, position]
        others = whole[j].clone()
        others[j] = 0
        expected = sorted(others.topk(6).values.tolist() + (-others).topk(6).values.neg().tolist())
        np.testing.assert_allclose(sorted(table["push"][mine]), expected, rtol=1e-3)
        for by_row, by_position, push in zip(
            table["by_row"][mine], table["by_position"][mine], table["push"][mine], strict=True
        ):
            assert float(others[place[by_row, by_position]]) == pytest.approx(push, rel=1e-3)


@pytest.mark.parametrize("measured", [None, {("p0", 1), ("p0", 2), ("p1", 0)}])
def test_likely_tokens_are_the_policys_before_and_after_the_step(
    measured: set[tuple[str, int]] | None,
) -> None:
    rows, policy = tiny.rows(), tiny.policy()
    monitor = Monitor(TEMPERATURE, 50, {"p0"}, measured_rows=measured)
    result = step(policy, rows, monitor)
    trace = likely_table(monitor.measurements, [result.rows])
    assert trace is not None
    table = trace.columns
    watched = [
        i
        for i, row in enumerate(rows)
        if row.group == "p0" and (measured is None or row.name in measured)
    ]
    assert sorted(set(table["row"].tolist())) == watched
    distributions = {}
    for column, seen_policy in (("logprob", tiny.policy()), ("new_logprob", policy)):
        seen = take_snapshot(seen_policy, rows, TEMPERATURE, 50)
        W = seen_policy.decoder.unembedding.detach() / TEMPERATURE
        distributions[column] = torch.log_softmax(seen.hidden @ W.T, dim=-1)
    places = zip(seen.rows.tolist(), seen.positions.tolist(), strict=True)
    place = {name: n for n, name in enumerate(places)}
    for row in watched:
        for position in range(rows[row].num_tokens):
            mine = (table["row"] == row) & (table["position"] == position)
            n, tokens = place[row, position], torch.from_numpy(table["token"][mine]).long()
            expected = distributions["logprob"][n].topk(TOP_TOKENS)
            assert tokens.tolist() == expected.indices.tolist()
            for column, logprobs in distributions.items():
                np.testing.assert_allclose(table[column][mine], logprobs[n][tokens], atol=2e-5)
    assert np.abs(table["new_logprob"] - table["logprob"]).max() > 1e-4


def test_one_group_one_sign_and_a_single_token() -> None:
    rows = [row for row in tiny.rows(groups=1) if row.sign > 0]
    _, monitor, _ = looked(rows)
    found = monitor_metrics(monitor.measurements)
    assert found["boosted_negative"] is None
    assert found["cancellation"] == pytest.approx(0.0, abs=1e-6)
    lone = tiny.rows(groups=1, longest=1)[:1]
    _, monitor, result = looked(lone, surrogate="reinforce")
    assert push_table(monitor.measurements, [result.rows]) is None
    assert monitor_metrics(monitor.measurements)["own_share"] == pytest.approx(1.0)
    assert monitor_metrics([]) == dict.fromkeys(METRIC_NAMES)
    assert token_columns([], np.arange(0), 0) == {}


def test_the_index_of_a_type_is_the_cancelled_share_of_its_row() -> None:
    from counterpoise.microscope.token_types import type_pulls

    hidden = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 2.0]])
    tokens = torch.tensor([5, 5, 7])
    logprobs = torch.log(torch.tensor([0.5, 0.5, 0.25]))
    found = type_pulls(hidden, tokens, logprobs, torch.tensor([1.0, -0.5, 1.0]))
    assert found.token_ids.tolist() == [5, 7]
    assert found.net.tolist() == pytest.approx([0.25, 1.5])
    assert found.gross.tolist() == pytest.approx([0.75, 1.5])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_half_precision_sees_the_same_to_a_few_per_cent() -> None:
    """The step computes in bfloat16 there; its layers are few, so it stays near float32."""
    rows = tiny.rows(groups=4, size=8, shortest=8)
    sizes = {"hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1}
    here = tiny.policy("llama", initializer_range=0.05, **sizes)
    here.model.bfloat16().float()  # both have the same weights
    there = tiny.policy("llama", initializer_range=0.05, **sizes)
    there = wrap_model("tiny", there.model.to("cuda", torch.bfloat16), there.tokenizer)
    views = []
    for policy in (here, there):
        monitor = Monitor(TEMPERATURE, 10_000, {"p0"})
        step(policy, rows, monitor, lr=0.0, micro_tokens=10_000)
        assert monitor.seconds > 0
        views += monitor.measurements
    on_cpu, on_gpu = (view.coupling for view in views)
    assert not on_gpu.total.is_cuda
    for name in ("total", "self_push", "positive"):
        exact, found = getattr(on_cpu, name), getattr(on_gpu, name)
        assert float((found - exact).norm() / exact.norm()) < 0.05
    assert (
        monitor_metrics(views[1:])["stable_positive"] == 1.0
    )  # an update of nothing, by the same kernels
