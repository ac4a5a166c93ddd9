"""Run a forward pass with weights other than the model's, and restore weights after use.

Measurements need to know what a policy would do if its weights were slightly different. No weight
is copied for that: the pass receives other tensors by parameter name, and tied weights stay tied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from counterpoise.errors import PoiseError
from counterpoise.model.load import Policy
from counterpoise.model.scoring import ForwardOutputs, ForwardPass, forward, hidden_states
from counterpoise.types import Row

# Parameter name -> a tensor of its shape; parameters without an entry do not move.
WeightDirection = Mapping[str, Tensor]


def forward_with_weights(
    policy: Policy, weights: Mapping[str, Tensor], rows: Sequence[Row], temperature: float = 1.0
) -> ForwardOutputs:
    """The forward pass with the named weights replaced; it runs in their precision."""
    outputs: ForwardOutputs = _call_with_weights(
        policy, weights, rows, lambda: forward(policy, rows, temperature)
    )
    return outputs


def read_with_weights(weights: Mapping[str, Tensor]) -> ForwardPass:
    """A function for the argument `forward_pass` of `score_logprobs` that uses these weights."""

    def read(policy: Policy, rows: Sequence[Row], temperature: float) -> ForwardOutputs:
        with torch.no_grad():
            return forward_with_weights(policy, weights, rows, temperature)

    return read


def states_with_weights(
    policy: Policy, weights: Mapping[str, Tensor], rows: Sequence[Row]
) -> tuple[Tensor, Tensor]:
    """`hidden_states` [M, D] by these weights, and their unembedding [V, D]; no gradients."""

    def read_states() -> tuple[Tensor, Tensor]:
        return hidden_states(policy, rows), policy.decoder.unembedding.detach()

    states, unembedding = _call_with_weights(policy, weights, rows, read_states)
    return states, unembedding


def trained_parameters(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """The parameters that an update moves, by name: with LoRA those of the adapter alone."""
    return [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]


def check_parameter_names(policy: Policy, names: Iterable[str]) -> None:
    """Raise for a name that no parameter of the model has."""
    if unknown_names := sorted(set(names) - {name for name, _ in policy.model.named_parameters()}):
        raise PoiseError(f"the model has no parameter '{unknown_names[0]}'")


def _call_with_weights(
    policy: Policy,
    weights: Mapping[str, Tensor],
    rows: Sequence[Row],
    run_pass: Callable[[], Any],
) -> Any:
    """The result of `run_pass`, during which the named weights are replaced."""
    check_parameter_names(policy, weights)
    # The rotary table outlives this pass, so it must be built in the model's own precision.
    policy.decoder.reserve(
        max(len(row.content.prompt_tokens) + row.num_tokens_read for row in rows)
    )
    parameters = {f"model.{name}": tensor for name, tensor in weights.items()}
    return torch.func.functional_call(_PassModule(policy, run_pass), parameters, ())


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


class _PassModule(nn.Module):
    """A pass as a module, so that `functional_call` can replace its parameters."""

    def __init__(self, policy: Policy, run_pass: Callable[[], Any]) -> None:
        super().__init__()
        self.model = policy.model
        self.run_pass = run_pass

    def forward(self) -> Any:
        return self.run_pass()
