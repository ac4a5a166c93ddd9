"""A pass with other weights than the model's, and weights that are given back after use.

Measurements ask what a policy would do if its weights were a little different. Nothing is copied
over for that: the pass is lent other tensors by name, and tied ones stay tied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from counterpoise.errors import PoiseError
from counterpoise.model.load import Policy
from counterpoise.model.scoring import ForwardOutputs, forward
from counterpoise.types import Row

WeightDirection = Mapping[
    str, Tensor
]  # parameter name -> a tensor of its shape; missing: stands still


def forward_with_weights(
    policy: Policy, weights: Mapping[str, Tensor], rows: Sequence[Row], temperature: float = 1.0
) -> ForwardOutputs:
    """The forward pass with other weights, by parameter name, in their precision."""
    if strangers := sorted(set(weights) - {name for name, _ in policy.model.named_parameters()}):
        raise PoiseError(f"the direction names a parameter the model lacks: {strangers[0]}")
    # the rotary table outlives the pass: it must be made in the model's own precision
    policy.decoder.reserve(
        max(len(row.content.prompt_tokens) + row.num_read for row in rows)
    )
    lent = {f"model.{name}": tensor for name, tensor in weights.items()}
    result: ForwardOutputs = torch.func.functional_call(_Pass(policy), lent, (rows, temperature))
    return result


@contextmanager
def restored_weights(model: nn.Module) -> Iterator[None]:
    """Whatever happens inside, the weights are as they were afterwards, bit by bit."""
    kept = [p.detach().clone() for p in model.parameters()]
    try:
        yield
    finally:
        with torch.no_grad():
            for p, was in zip(model.parameters(), kept, strict=True):
                p.copy_(was)


class _Pass(nn.Module):
    """A forward as a module, so that `functional_call` can lend it other parameters."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.model = policy.model
        self.policy = policy

    def forward(self, rows: Sequence[Row], temperature: float) -> ForwardOutputs:
        return forward(self.policy, rows, temperature)
