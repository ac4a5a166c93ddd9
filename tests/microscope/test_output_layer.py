from __future__ import annotations

from dataclasses import replace

import tiny
import torch

from counterpoise.microscope.batch_tokens import take_snapshot, token_residuals
from counterpoise.microscope.coupling import decompose
from counterpoise.microscope.output_layer import output_displacement, output_gradient


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
