"""The reference policy: the weights at the start of the run, frozen.

It is a copy of the weights that are trained, in the model's own precision: of a LoRA model only the
adapter as it was at the start (a new one adds nothing to the model). Everything that compares the
policy with its start reads it through `score_reference`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from counterpoise.credit.view import PolicyReader
from counterpoise.model.load import Policy
from counterpoise.model.scoring import ForwardOutputs, score_logprobs
from counterpoise.model.swapped_weights import forward_with_weights
from counterpoise.types import Floats, Row

ReferenceWeights = Mapping[str, Tensor]  # by parameter name


def copy_weights(policy: Policy) -> dict[str, Tensor]:
    """A copy of the trained weights by parameter name; call it before the first update."""
    return {
        name: parameter.detach().clone()
        for name, parameter in policy.model.named_parameters()
        if parameter.requires_grad
    }


def score_reference(
    reader: PolicyReader, reference: ReferenceWeights, rows: Sequence[Row]
) -> list[Floats]:
    """Log-probabilities of the rows' tokens by the reference, per row [T], in micro-batches."""

    def forward_reference(
        policy: Policy, rows: Sequence[Row], temperature: float
    ) -> ForwardOutputs:
        with torch.no_grad():
            return forward_with_weights(policy, reference, rows, temperature)

    return score_logprobs(
        reader.policy, rows, reader.temperature, reader.micro_batch, forward_reference
    )
