from __future__ import annotations

from dataclasses import replace

import pytest
import tiny
import torch

from counterpoise.microscope.batch_tokens import take_snapshot, token_residuals
from counterpoise.microscope.coupling import decompose
from counterpoise.microscope.masking import output_layer_effects
from counterpoise.microscope.output_layer import output_displacement, output_gradient
from counterpoise.microscope.pairs import gradient_norms, kernel_rows, pair_coupling


def test_gradient_is_the_sum_of_outer_products() -> None:
    policy = tiny.policy()
    policy.model.double()
    seen, W = take_snapshot(policy, tiny.rows()), policy.decoder.unembedding.detach()
    R = token_residuals(seen.hidden, W, seen.tokens)
    literal = sum(
        a * torch.outer(r, h) for a, r, h in zip(seen.advantages, R, seen.hidden, strict=True)
    ) / len(seen)
    torch.testing.assert_close(output_gradient(seen, W), literal)
    with torch.no_grad():
        torch.testing.assert_close(output_gradient(seen, W), literal)


def test_displacement_is_the_proxy_to_first_order_and_exact_beyond() -> None:
    policy = tiny.policy()
    policy.model.double()
    seen, W = take_snapshot(policy, tiny.rows()), policy.decoder.unembedding.detach()
    gradient = output_gradient(seen, W)
    proxy = decompose(seen.hidden, W, seen.tokens, seen.advantages, seen.groups, eta=1e-7)
    moved = output_displacement(seen, W, 1e-7 * gradient)
    torch.testing.assert_close(moved, proxy.total, rtol=1e-4, atol=1e-13)

    large = 3.0 * gradient
    logits = seen.hidden @ (W + large).T
    after = torch.log_softmax(logits, dim=1).gather(1, seen.tokens[:, None]).squeeze(1)
    torch.testing.assert_close(output_displacement(seen, W, large), after - seen.logprobs)


def test_no_change_moves_nothing() -> None:
    policy = tiny.policy()
    seen, W = take_snapshot(policy, tiny.rows()), policy.decoder.unembedding.detach()
    assert not output_displacement(seen, W, torch.zeros_like(W)).any()


def test_a_small_step_survives_bfloat16() -> None:
    policy = tiny.policy()
    seen = take_snapshot(policy, tiny.rows())
    seen = replace(seen, hidden=seen.hidden.bfloat16())
    W = policy.decoder.unembedding.detach().bfloat16()
    gradient = output_gradient(seen, W)
    assert gradient.dtype == torch.float32
    moved = output_displacement(seen, W, 1e-4 * gradient)
    assert (moved != 0).float().mean() > 0.9
    assert ((W + 1e-4 * gradient.bfloat16()) == W).float().mean() > 0.9  # what it would have been


def test_a_model_that_caps_its_logits() -> None:
    """Gemma 2: kernel, gradient and effects of masking are those of the capped distribution."""
    policy = tiny.policy("gemma2", final_logit_softcapping=2.0, head_dim=16)
    policy.model.double()
    policy.decoder.unembedding.data *= 6  # so that the cap acts
    seen, W = take_snapshot(policy, tiny.rows(groups=2)), policy.decoder.unembedding.detach()
    assert seen.softcap == 2.0

    def logprobs(weights: torch.Tensor) -> torch.Tensor:
        logits = 2 * torch.tanh(seen.hidden @ weights.T / 2)
        return torch.log_softmax(logits, dim=1).gather(1, seen.tokens[:, None]).squeeze(1)

    torch.testing.assert_close(logprobs(W), seen.logprobs.double(), rtol=1e-4, atol=1e-5)
    score_N = torch.autograd.functional.jacobian(logprobs, W).flatten(1)
    pushes = seen.advantages.double() @ score_N / len(seen)
    gradient = output_gradient(seen, W)
    torch.testing.assert_close(gradient.flatten(), pushes)
    moved = logprobs(W + 0.3 * gradient) - logprobs(W)
    torch.testing.assert_close(output_displacement(seen, W, 0.3 * gradient), moved)

    kernel, places = score_N @ score_N.T, torch.arange(len(seen))
    arguments = seen.hidden, W, seen.tokens
    torch.testing.assert_close(kernel_rows(*arguments, places, softcap=2.0), kernel)
    norms = gradient_norms(*arguments, softcap=2.0)
    torch.testing.assert_close(norms, kernel.diagonal().sqrt())
    pairs = pair_coupling(*arguments, places, places.flip(0), softcap=2.0)
    torch.testing.assert_close(pairs.phi * pairs.similarity, kernel[places, places.flip(0)])

    masked = torch.tensor([1, 2, 3])
    kept = seen.advantages.double().index_fill(0, masked, 0) @ score_N / len(seen)
    (effect,) = output_layer_effects(seen, W, gradient, 0, [masked], eta=0.3)
    without = logprobs(W + 0.3 * kept.view_as(W))
    assert effect == pytest.approx(float((logprobs(W + 0.3 * gradient) - without)[0]))
