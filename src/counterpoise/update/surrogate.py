"""What every surrogate takes and gives. It is per token; averaging is `aggregate.py`'s business.

All surrogates are linear in the advantage, so a row whose advantages are all zero has neither loss
nor gradient and its forward pass is spared.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class SurrogateInputs:
    """The trained tokens of one micro-batch, flat [M]; rows are never cut across micro-batches."""

    logprobs: Tensor  # [M], of the policy being trained; carries the gradient
    old_logprobs: Tensor  # [M], of the policy that sampled the token
    advantages: Tensor  # [M], A_i * w_{i,t}
    row: Tensor  # [M], which row of the micro-batch a token belongs to
    num_rows: int
    clip_low: float
    clip_high: float


@dataclass(frozen=True, slots=True, eq=False)
class SurrogateOutputs:
    loss: Tensor  # [M]
    clipped: Tensor  # [M] bool: the clip took this token's gradient away
