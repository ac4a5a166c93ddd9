"""Passes that are filled up to a size: the same loss, tokens and gradients as they come."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch

from counterpoise.config import ModelConfig, UpdateConfig
from counterpoise.model.attention import PackedAttention
from counterpoise.model.load import Policy, load_policy, wrap_model
from counterpoise.model.scoring import score_logprobs
from counterpoise.update.graphs.padding import (
    loss_arrays,
    packing_arrays,
    pad_rows,
    round_up_to_power_of_two,
    round_up_tokens,
    segment_bounds,
)
from counterpoise.update.graphs.passes import CapturedPasses
from counterpoise.update.optimizer import Optimizer
from counterpoise.update.passes import EAGER, PassInputs, PassTensors, compute_loss
from counterpoise.update.repeatable import repeatable
from counterpoise.update.step import StepSettings, accumulate_gradient
from counterpoise.variants import SURROGATES


def used(rows, own: bool = False) -> PassInputs:
    return PassInputs(
        rows=rows,
        old_logprobs=[None if own and i % 2 else row.old_logprobs for i, row in enumerate(rows)],
        advantages=[row.advantages_T for row in rows],
        coefficients_R=np.linspace(0.01, 0.02, len(rows)).astype(np.float32),
    )


@pytest.mark.parametrize("n", [1, 7, 8, 9, 100, 1000, 16385, 70001])
def test_sizes_are_little_too_large(n: int) -> None:
    assert n <= round_up_tokens(n) < n + max(512, n / 15)
    assert round_up_tokens(round_up_tokens(n)) == round_up_tokens(n)
    assert n <= round_up_to_power_of_two(n, 128) <= max(128, 2 * n - 1)


@pytest.mark.parametrize("seed", range(4))
def test_filling_reaches_the_size_exactly(seed: int) -> None:
    rows = tiny.rows(groups=3 + seed, size=4, seed=seed)
    filled = pad_rows(rows)
    size, packing = filled.size, filled.packing
    assert len(packing.tokens_N) == size.prompt_tokens + size.response_tokens
    assert sum(n for _, n in packing.prompts) == size.prompt_tokens
    assert filled.num_real_tokens == sum(row.num_tokens for row in rows)
    assert packing.lengths[: len(rows)] == tuple(row.num_tokens for row in rows)
    assert max(n for _, n in (*packing.prompts, *packing.responses)) <= size.longest
    found = segment_bounds(filled)
    assert found["every"][-1] == len(packing.tokens_N)
    assert found["prompts"][-1] == size.prompt_tokens
    assert found["readers"][-1] == size.response_tokens
    assert max(np.diff(found["readers"])) <= size.longest_reader
    read = packing_arrays(filled) | loss_arrays(filled, used(rows))
    lengths = {name: len(x) for name, x in read.items()}
    M = size.response_tokens + size.rows
    assert {n for name, n in lengths.items() if name.endswith("_M")} == {M}


def test_the_filling_is_no_prompt_of_the_rows() -> None:
    """63 tokens of prompts ask for 449 more, seven times 64 and 1: the eighth was once [7]."""
    long = np.arange(2, 64, dtype=np.int32)
    rows = [
        replace(row, rollout=replace(row.content, prompt_tokens=prompt))
        for row, prompt in zip(tiny.rows(groups=2, size=1), ([7], long), strict=True)
    ]
    filled = pad_rows(rows)
    assert filled.size.prompt_tokens == 512
    assert sum(n for _, n in filled.packing.prompts) == 512
    assert len(filled.packing.prompts) == 10


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize(
    "config",
    [
        *(UpdateConfig(surrogate=name) for name in SURROGATES),
        UpdateConfig(kl=0.1, entropy_bonus=0.1, clip_dual=1.5),
        UpdateConfig(importance="token", importance_mode="mask", importance_cap=1.1),
    ],
    ids=[*SURROGATES, "penalties", "masked weights"],
)
def test_filling_changes_nothing(config: UpdateConfig, own: bool) -> None:
    policy = tiny.policy()
    rows = tiny.rows(groups=4, size=3, seed=5)
    given = used(rows, own)
    if config.kl:
        # The reference of filler tokens is 0: their exp(-d) must not reach the loss.
        near = [logprobs_T + 0.3 for logprobs_T in score_logprobs(policy, rows, 0.9, 10_000)]
        given = replace(given, reference_logprobs=near)
    expected = EAGER.gradients(policy, given, config, 0.9)
    gradients = [p.grad.clone() for p in policy.model.parameters()]

    filled = pad_rows(rows)
    tensors = {n: torch.from_numpy(x) for n, x in loss_arrays(filled, given).items()}
    read = {n: torch.from_numpy(x) for n, x in packing_arrays(filled).items()}
    packing = replace(
        filled.packing, predictors_M=read["predictors_M"], targets_M=read["targets_M"]
    )
    policy.decoder.reserve(packing.longest)
    feed = PassTensors(packing, PackedAttention(packing), num_rows=filled.size.rows, **tensors)
    found, loss, logprobs = compute_loss(policy, feed, config, 0.9)
    *again, pulled = torch.autograd.grad(loss, [*policy.model.parameters(), logprobs])
    M = filled.num_real_tokens
    torch.testing.assert_close(
        found.tokens_3M[:2, :M], expected.tokens_3M[:2], atol=1e-5, rtol=1e-5
    )
    torch.testing.assert_close(-pulled[:M], expected.tokens_3M[2], atol=1e-7, rtol=1e-4)
    assert not pulled[M:].any()
    torch.testing.assert_close(found.totals_4, expected.totals_4, atol=1e-6, rtol=1e-5)
    for left, right in zip(again, gradients, strict=True):
        torch.testing.assert_close(left, right, atol=1e-6, rtol=1e-4)


def test_on_a_cpu_passes_run_as_they_come() -> None:
    policy, rows = tiny.policy(), tiny.rows()
    config = UpdateConfig()
    one = accumulate_gradient(
        policy, rows, StepSettings(config, temperature=1.0, max_new_tokens=17)
    )
    gradients = [p.grad.clone() for p in policy.model.parameters()]
    policy.model.zero_grad()
    two = accumulate_gradient(
        policy,
        rows,
        StepSettings(config, temperature=1.0, max_new_tokens=17, passes=CapturedPasses()),
    )
    assert one.loss == two.loss
    for left, right in zip(policy.model.parameters(), gradients, strict=True):
        assert torch.equal(left.grad, right)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_captured_passes_give_the_gradients_of_those_that_run_as_they_come() -> None:
    policy = load_policy(ModelConfig(device="cuda", dtype="bfloat16"))
    config = UpdateConfig()
    captured = CapturedPasses()
    for turn in range(6):  # two sizes; the very first pass runs eagerly, padded like the others
        rows = tiny.rows(groups=6 + 4 * (turn % 2), size=8, seed=turn, longest=90)
        results = []
        for passes in (EAGER, captured):
            optimizer = Optimizer(policy.model, config)
            result = accumulate_gradient(
                policy,
                rows,
                StepSettings(config, temperature=1.0, max_new_tokens=90, passes=passes),
                keep_hidden=True,
                after_pass=optimizer.collect_gradients,
            )
            gradient = torch.cat([master.grad.flatten() for master in optimizer.masters])
            results.append((result, gradient))
            trained = [rows[i] for i in result.rows]
            scored = score_logprobs(policy, trained, 1.0, 20480, passes.read)
            for left, right in zip(result.logprobs, scored, strict=True):
                np.testing.assert_allclose(left, right, atol=0.1)
        (a, g), (b, h) = results
        assert float((g - h).norm() / g.norm()) < 0.02
        for left, right in zip(a.logprobs, b.logprobs, strict=True):
            np.testing.assert_allclose(left, right, atol=0.1)
        assert a.loss == pytest.approx(b.loss, abs=1e-3)
    assert captured._graphs is not None  # else all of them ran as they come
    assert len(captured._graphs) >= 3  # gradients and reading, in two sizes
    assert captured.launch_bound > 0  # no capture failed


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_first_pass_of_a_process_has_the_bits_of_later_ones() -> None:
    """A resumed run computes eagerly what the undisturbed one replays."""
    policy, config = load_policy(ModelConfig(device="cuda", dtype="bfloat16")), UpdateConfig()
    rows = tiny.rows(groups=6, size=8, longest=90)
    captured, outcomes = CapturedPasses(), []
    for _ in range(3):  # eager, captured, replayed
        optimizer = Optimizer(policy.model, config)
        settings = StepSettings(config, temperature=1.0, max_new_tokens=90, passes=captured)
        with repeatable():
            result = accumulate_gradient(
                policy, rows, settings, after_pass=optimizer.collect_gradients
            )
        scores = score_logprobs(policy, rows, 1.0, 20480, captured.read)
        gradient = torch.cat([master.grad.flatten() for master in optimizer.masters])
        outcomes.append((result.loss, gradient, np.concatenate(scores)))
    assert captured._graphs is not None
    assert captured._graphs.num_replays == 4
    for loss, gradient, scores in outcomes[1:]:
        assert loss == outcomes[0][0]
        assert torch.equal(gradient, outcomes[0][1])
        np.testing.assert_array_equal(scores, outcomes[0][2])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_captured_passes_have_the_kl_and_the_entropy_bonus() -> None:
    policy, captured = half_on_gpu("qwen3"), CapturedPasses()
    config = UpdateConfig(kl=0.2, entropy_bonus=0.05, clip_dual=1.5)
    for turn in range(4):
        made = tiny.rows(groups=6, size=8, seed=turn, longest=90)
        rows = [
            replace(row, reference_logprobs_T=logprobs_T + 0.3)
            for row, logprobs_T in zip(made, score_logprobs(policy, made, 1.0, 20480), strict=True)
        ]
        rows[3] = replace(rows[3], advantage=0.0)
        agree(policy, captured, rows, config)
    assert captured._graphs is not None
    assert captured._graphs.num_replays >= 3
    assert captured.launch_bound > 0


def half_on_gpu(architecture: str, **changes: object) -> Policy:
    """A tiny model in bfloat16 with no norm of exactly 1 and no bias of exactly 0."""
    made = tiny.policy(architecture, initializer_range=0.1, **changes)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in made.model.named_parameters():
            if name.endswith(("norm.weight", "bias")):
                weight.add_(0.3 * torch.randn(weight.shape, generator=generator))
    return wrap_model(architecture, made.model.to("cuda", torch.bfloat16), made.tokenizer)


def agree(
    policy: Policy, captured: CapturedPasses, rows: list, config: UpdateConfig | None = None
) -> None:
    """Loss, log-probabilities and every parameter's gradient, captured and as they come."""
    config, results = config or UpdateConfig(), []
    for passes in (EAGER, captured):
        optimizer = Optimizer(policy.model, config)
        result = accumulate_gradient(
            policy,
            rows,
            StepSettings(config, temperature=1.0, max_new_tokens=90, passes=passes),
            after_pass=optimizer.collect_gradients,
        )
        results.append((result, [master.grad.clone() for master in optimizer.masters]))
    (a, mine), (b, others) = results
    names = [name for name, _ in policy.model.named_parameters()]
    for name, left, right in zip(names, mine, others, strict=True):
        assert float((left - right).norm() / left.norm()) < 0.1, name
    for left, right in zip(a.logprobs, b.logprobs, strict=True):
        np.testing.assert_allclose(left, right, atol=0.05)
    assert a.loss == pytest.approx(b.loss, abs=1e-3)


SHAPES_WITH_BIASES = [
    ("llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 16}),
    ("llama", {"mlp_bias": True, "head_dim": 16, "tie_word_embeddings": False}),
    ("qwen2", {"hidden_size": 64, "tie_word_embeddings": False}),
    ("qwen3", {"attention_bias": True}),
]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("architecture", "changes"), SHAPES_WITH_BIASES)
def test_captured_passes_of_models_with_biases(architecture: str, changes: dict) -> None:
    policy, captured = half_on_gpu(architecture, **changes), CapturedPasses()
    for turn in range(4):
        agree(policy, captured, tiny.rows(groups=6, size=8, seed=turn, longest=90))
    assert captured._graphs is not None
    assert captured._graphs.num_replays >= 3
    assert captured.launch_bound > 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("architecture", "changes"), SHAPES_WITH_BIASES)
def test_old_and_new_log_probabilities_are_the_same_numbers(
    architecture: str, changes: dict
) -> None:
    """A pass with gradients rounds as one without: a ratio of unchanged weights is exactly 1."""
    policy, captured = half_on_gpu(architecture, **changes), CapturedPasses()
    rows = tiny.rows(groups=6, size=8, longest=90)
    for passes in (EAGER, captured, captured, captured):
        optimizer = Optimizer(policy.model, UpdateConfig())
        result = accumulate_gradient(
            policy,
            rows,
            StepSettings(UpdateConfig(), temperature=1.0, max_new_tokens=90, passes=passes),
            after_pass=optimizer.collect_gradients,
        )
        scored = score_logprobs(policy, [rows[i] for i in result.rows], 1.0, 20480, passes.read)
        for left, right in zip(result.logprobs, scored, strict=True):
            np.testing.assert_array_equal(left, right)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_captured_passes_notice_what_moved() -> None:
    """A longer table of angles, a weight with other memory, a weight changed where it lies."""
    policy, captured = half_on_gpu("llama", mlp_bias=True, head_dim=16), CapturedPasses()
    weight = policy.decoder.layers[0].mlp.down_proj.weight

    def move() -> None:
        weight.data = 1.5 * weight.data

    def change() -> None:
        with torch.no_grad():
            weight.mul_(0.5)

    rows = tiny.rows(groups=6, size=8, longest=90)
    for happens in (lambda: None, lambda: policy.decoder.reserve(50_000), move, change):
        happens()
        for _ in range(2):  # captured, then replayed
            agree(policy, captured, rows)
    assert captured.launch_bound > 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_heads_without_a_flash_kernel_run_as_they_come() -> None:
    """Heads of 12 (as those of 100 of a 3 B model): torch's own attention, nothing captured."""
    policy, captured = half_on_gpu("llama", mlp_bias=True), CapturedPasses()
    assert policy.decoder.head_dim == 12
    rows = tiny.rows(groups=4, size=4, longest=60)
    for _ in range(2):
        agree(policy, captured, rows)
    assert captured._graphs is None
    found = score_logprobs(policy, rows, 1.0, 20480, captured.read)
    exact = wrap_model("exact", policy.model.float().cpu(), policy.tokenizer)
    for left, right in zip(found, score_logprobs(exact, rows, 1.0, 20480), strict=True):
        np.testing.assert_allclose(left, right, atol=0.1)


def embedded(policy, rows) -> torch.Tensor:
    tokens = np.concatenate([row.content.response_tokens[:-1] for row in rows])
    where = torch.from_numpy(tokens.astype(np.int64)).to(policy.device)
    return policy.decoder.embedding(where).detach()


def test_states_by_given_embeddings() -> None:
    policy, rows = tiny.policy(), tiny.rows()
    given = embedded(policy, rows).requires_grad_()
    found = EAGER.states(policy, rows, given)
    expected = EAGER.read(policy, rows, 1.0).hidden_M  # the first of a row is the prompt's last
    later = [part[1:] for part in expected.split([row.num_tokens for row in rows])]
    torch.testing.assert_close(found, torch.cat(later), rtol=1e-5, atol=1e-6)
    (gradient,) = torch.autograd.grad(found.square().sum(), given)
    assert gradient.shape == given.shape
    assert gradient.abs().sum() > 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_captured_states_and_their_gradient() -> None:
    policy = load_policy(ModelConfig(device="cuda", dtype="bfloat16"))
    captured = CapturedPasses()
    weights = [p for p in policy.model.parameters() if p.requires_grad]
    for turn in range(6):
        rows = tiny.rows(groups=6 + 4 * (turn % 2), size=8, seed=turn, longest=90)
        for weight in weights:
            weight.requires_grad_(False)
        results = []
        for passes in (EAGER, captured):
            leaf = embedded(policy, rows).requires_grad_()
            found = passes.states(policy, rows, leaf)
            (gradient,) = torch.autograd.grad(found.float().square().sum(), leaf)
            results.append((found.detach().float(), gradient.float()))
        for weight in weights:
            weight.requires_grad_(True)
        for left, right in zip(*results, strict=True):
            assert float((left - right).norm() / left.norm()) < 0.02
        # training passes of the same pool, in between and after
        config = UpdateConfig()
        optimizer = Optimizer(policy.model, config)
        accumulate_gradient(
            policy,
            rows,
            StepSettings(config, temperature=1.0, max_new_tokens=90, passes=captured),
            after_pass=optimizer.collect_gradients,
        )
        assert all(master.grad is not None for master in optimizer.masters)
    assert captured._graphs is not None
    assert len(captured._graphs) >= 3
    assert captured.launch_bound > 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_nothing_may_be_replayed_between_the_two_ways() -> None:
    policy = load_policy(ModelConfig(device="cuda", dtype="bfloat16"))
    captured, rows = CapturedPasses(), tiny.rows(groups=6, size=8, longest=90)
    policy.model.requires_grad_(False)
    for _ in range(2):
        captured.read(policy, rows, 1.0)
        leaf = embedded(policy, rows).requires_grad_()
        found = captured.states(policy, rows, leaf)
    captured.read(policy, rows, 1.0)
    with pytest.raises(AssertionError, match="between forward and backward"):
        found.sum().backward()
