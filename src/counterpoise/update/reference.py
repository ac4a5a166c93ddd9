"""Copies of the weights: the reference, from the start of a run, and a teacher, renewed during it.

Either is a copy of the weights that are trained, in the model's own precision. Of a LoRA model only
the adapter is copied; a new adapter adds nothing, so the reference is then the base model.
Everything that compares the policy with its start reads the reference through `score_reference`.
The teacher (of RLSD, SERL and SDPG) is copied anew every few iterations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from counterpoise.credit.view import PolicyReader
from counterpoise.model.load import Policy
from counterpoise.types import Floats, Row

ReferenceWeights = Mapping[str, Tensor]  # by parameter name


def copy_weights(policy: Policy) -> dict[str, Tensor]:
    """A copy of the trained weights as they are now, by parameter name."""
    return {
        name: parameter.detach().clone()
        for name, parameter in policy.model.named_parameters()
        if parameter.requires_grad
    }


def score_reference(
    reader: PolicyReader, reference: ReferenceWeights, rows: Sequence[Row]
) -> list[Floats]:
    """Log-probabilities of the rows' tokens by the reference, per row [T], in micro-batches."""
    return reader.logprobs(rows, reference)


def sync_teacher(
    policy: Policy, teacher: dict[str, Tensor] | None, interval: int, iteration: int
) -> dict[str, Tensor] | None:
    """The teacher's weights in this iteration: a copy of the policy's every `interval` iterations.

    interval = 0: None, the policy itself is the teacher.
    """
    if not interval:
        return None
    is_due = (iteration - 1) % interval == 0
    return copy_weights(policy) if is_due or teacher is None else teacher
