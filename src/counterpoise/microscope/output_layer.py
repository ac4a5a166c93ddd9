"""An update of the unembedding alone: the output-layer proxy of eq. 6 to 9.

    W' = W + eta G,      G = (1 / N) sum_k A_k r_k h_k^T,      logits'_j = W' h_j

With a soft cap c, logits'_j = c tanh(W' h_j / c), and r_k has the slope of the cap as a factor.

The hidden states do not change, so the new log-probabilities need no forward pass of the body. With
tied embeddings W is a copy: changing it does not change the inputs. Half precision is computed in
float32: W + eta G in bfloat16 would round the step away.
"""

from __future__ import annotations

import torch
from torch import Tensor

from counterpoise.microscope.batch_tokens import Snapshot
from counterpoise.model.head import token_logprobs
from counterpoise.model.residuals import wide


def output_gradient(snapshot: Snapshot, unembedding: Tensor) -> Tensor:
    """G [V, D]: the ascent direction of eq. 2 for W."""
    # A copy, so that the gradient is that of the output layer alone where embeddings are tied.
    W = wide(unembedding.detach()).clone().requires_grad_()
    with torch.enable_grad():
        logprobs, _ = token_logprobs(
            wide(snapshot.hidden), W, snapshot.tokens, softcap=snapshot.softcap
        )
        objective = (snapshot.advantages.to(logprobs.dtype) * logprobs).sum() / len(snapshot)
    (gradient,) = torch.autograd.grad(objective, W)
    return gradient


@torch.no_grad()
def output_displacement(snapshot: Snapshot, unembedding: Tensor, change: Tensor) -> Tensor:
    """Delta log p of every token when W changes by `change`: [N]."""
    hidden, W = wide(snapshot.hidden), wide(unembedding)
    old_logprobs, new_logprobs = (
        token_logprobs(hidden, weights, snapshot.tokens, softcap=snapshot.softcap)[0]
        for weights in (W, W + change)
    )
    return new_logprobs - old_logprobs
