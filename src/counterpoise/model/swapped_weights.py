"""Run a forward pass with weights other than the model's, and restore weights after use.

Measurements need to know what a policy would do if its weights were slightly different. No weight
is copied for that: the pass receives other tensors by parameter name, and tied weights stay tied.
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

# Parameter name -> a tensor of its shape; parameters without an entry do not move.
WeightDirection = Mapping[str, Tensor]


def forward_with_weights(
    policy: Policy, weights: Mapping[str, Tensor], rows: Sequence[Row], temperature: float = 1.0
) -> ForwardOutputs:
    """The forward pass with the named weights replaced; it runs in their precision."""
    if unknown_names := sorted(
        set(weights) - {name for name, _ in policy.model.named_parameters()}
    ):
        raise PoiseError(f"the model has no parameter '{unknown_names[0]}'")
    # The rotary table outlives this pass, so it must be built in the model's own precision.
    policy.decoder.reserve(
        max(len(row.content.prompt_tokens) + row.num_tokens_read for row in rows)
    )
    parameters = {f"model.{name}": tensor for name, tensor in weights.items()}
    outputs: ForwardOutputs = torch.func.functional_call(
        _ForwardModule(policy), parameters, (rows, temperature)
    )
    return outputs


@contextmanager
def restored_weights(model: nn.Module) -> Iterator[None]:
    """Restore the weights afterwards, bit for bit, whatever happens inside."""
    original_weights = [parameter.detach().clone() for parameter in model.parameters()]
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, original in zip(model.parameters(), original_weights, strict=True):
                parameter.copy_(original)


class _ForwardModule(nn.Module):
    """The forward pass as a module, so that `functional_call` can replace its parameters."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.model = policy.model
        self.policy = policy

    def forward(self, rows: Sequence[Row], temperature: float) -> ForwardOutputs:
        return forward(self.policy, rows, temperature)
