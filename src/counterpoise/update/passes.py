"""One pass of a step: packed rows -> log-probabilities -> loss -> gradients.

    L = sum_m c_m w_m (L_m + D_m)        L_m by the surrogate, c_m the coefficient of the token's
                                         row, w_m its importance weight, D_m an added term or 0

`PassTensors` holds everything a pass reads, as tensors; `compute_loss` reads nothing else but the weights. So a
pass can be captured once and fed anew (`update/graphs/passes.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from counterpoise.config import UpdateConfig
from counterpoise.model.attention import PackedAttention
from counterpoise.model.load import Policy
from counterpoise.model.packing import Packing
from counterpoise.model.reading_passes import EagerReading, ReadingPasses
from counterpoise.model.scoring import ForwardOutputs, forward_packed, pack_rows
from counterpoise.model.transfer import to_device
from counterpoise.types import Floats, Row
from counterpoise.update.rules.rule import LossTerm
from counterpoise.update.surrogates import SurrogateInputs
from counterpoise.variants import IMPORTANCE_WEIGHTS, SURROGATES


@dataclass(frozen=True, slots=True, eq=False)
class PassInputs:
    """The rows of one pass, and what the step knows of them."""

    rows: Sequence[Row]
    old_logprobs: Sequence[Floats | None]  # per row [T]; None: what the pass itself gives
    advantages: Sequence[Floats]  # per row [T]
    coefficients_R: Floats
    term: LossTerm | None = None  # what the step's rule adds


@dataclass(frozen=True, slots=True, eq=False)
class PassTensors:
    """What a pass reads. M: response tokens, flat in the order of the rows."""

    packing: Packing
    attend: PackedAttention
    row_M: Tensor
    old_M: Tensor
    own_M: Tensor  # 1 where the pass itself gives the old log-probability
    sampled_M: Tensor  # log-probabilities by the sampler
    advantages_M: Tensor
    coefficients_M: Tensor
    num_rows: int


@dataclass(frozen=True, slots=True, eq=False)
class PassOutputs:
    """What a pass leaves behind, besides gradients."""

    tokens_3M: Tensor  # log-probabilities, entropies, pulls
    totals_4: Tensor  # loss, the added term's part of it; clipped tokens, capped weights
    hidden_MD: Tensor


class Passes(ReadingPasses, Protocol):
    """How the passes of an update are run: as they come, or captured."""

    def gradients(
        self, policy: Policy, used: PassInputs, config: UpdateConfig, temperature: float
    ) -> PassOutputs:
        """Adds the gradients to the weights' `.grad`."""
        ...


def build_tensors(policy: Policy, used: PassInputs) -> PassTensors:
    packing = pack_rows(policy, used.rows)
    return tensors_from_arrays(
        policy, packing, PackedAttention(packing), flatten_inputs(used), len(used.rows)
    )


def flatten_inputs(used: PassInputs) -> dict[str, np.ndarray]:
    """The token vectors of a feed, by name, in its order."""
    lengths = [len(advantages_T) for advantages_T in used.advantages]
    known = [
        np.zeros(n) if x is None else x for x, n in zip(used.old_logprobs, lengths, strict=True)
    ]
    return {
        "row_M": np.repeat(np.arange(len(lengths)), lengths),
        "old_M": np.concatenate(known),
        "own_M": np.repeat([x is None for x in used.old_logprobs], lengths),
        "sampled_M": np.concatenate([row.content.sampled_logprobs for row in used.rows]),
        "advantages_M": np.concatenate(used.advantages),
        "coefficients_M": np.repeat(used.coefficients_R, lengths),
    }


def tensors_from_arrays(
    policy: Policy,
    packing: Packing,
    attend: PackedAttention,
    vectors: dict[str, np.ndarray],
    num_rows: int,
) -> PassTensors:
    dtype = np.float64 if policy.decoder.dtype == torch.float64 else np.float32
    tensors = {
        name: to_device(x, policy.device, None if name == "row_M" else dtype)
        for name, x in vectors.items()
    }
    return PassTensors(packing=packing, attend=attend, num_rows=num_rows, **tensors)


def compute_loss(
    policy: Policy,
    given: PassTensors,
    config: UpdateConfig,
    temperature: float,
    added: Callable[[ForwardOutputs, Tensor], Tensor] | None = None,
) -> tuple[PassOutputs, Tensor, Tensor]:
    """(what was found, the loss to differentiate, the log-probabilities that carry pulls)

    `added` is a term of the loss [M] by the pass and the old log-probabilities.
    """
    result = forward_packed(
        policy, given.packing, given.attend, temperature, checkpointing=config.checkpointing
    )
    logprobs, entropies = result.logprobs_M, result.entropies_M
    old = torch.where(given.own_M > 0, logprobs.detach(), given.old_M)
    outputs = SURROGATES.load(config.surrogate)(
        SurrogateInputs(
            logprobs=logprobs,
            old_logprobs=old,
            advantages=given.advantages_M,
            row=given.row_M,
            num_rows=given.num_rows,
            clip_low=config.clip_low,
            clip_high=config.clip_high,
        )
    )
    ratio = IMPORTANCE_WEIGHTS.load(config.importance)(
        old - given.sampled_M, given.row_M, given.num_rows
    )
    weights = ratio.clamp(max=config.importance_cap)
    loss = (outputs.loss * weights * given.coefficients_M).sum()
    more = torch.zeros_like(loss)
    if added:
        more = (added(result, old) * weights * given.coefficients_M).sum()
        loss = loss + more
    counts = given.coefficients_M != 0
    clipped, capped = (outputs.clipped & counts).sum(), ((ratio > weights) & counts).sum()
    found = PassOutputs(
        tokens_3M=torch.stack((logprobs.detach(), entropies, torch.zeros_like(entropies))),
        totals_4=torch.stack((loss, more, clipped.to(loss.dtype), capped.to(loss.dtype))).detach(),
        hidden_MD=result.hidden_M.detach(),
    )
    return found, loss, logprobs


class EagerPasses(EagerReading):
    """Passes that run as they come."""

    def gradients(
        self, policy: Policy, used: PassInputs, config: UpdateConfig, temperature: float
    ) -> PassOutputs:
        added = partial(used.term, used.rows) if used.term else None
        found, loss, logprobs = compute_loss(
            policy, build_tensors(policy, used), config, temperature, added
        )
        logprobs.retain_grad()
        loss.backward()
        assert logprobs.grad is not None
        found.tokens_3M[2] = -logprobs.grad
        return found


EAGER = EagerPasses()
