"""One pass of a step: packed rows -> log-probabilities -> loss -> gradients.

    L = sum_m c_m (w_m (L_m + D_m) + kl K_m - entropy_bonus H_m)

L_m is by the surrogate, c_m the coefficient of the token's row, w_m its importance weight, D_m an
added term or 0, K_m the KL from the reference (`update/kl_penalty.py`) and H_m the entropy. kl is
one number for all tokens, or one for each row (`update/kl_control.py`).

`PassTensors` holds everything a pass reads; `compute_loss` reads nothing else but the weights. So a
pass can be captured once and replayed with new inputs (`update/graphs/passes.py`).
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
from counterpoise.update.importance import bound_weights
from counterpoise.update.rules.rule import LossTerm
from counterpoise.update.surrogates import SurrogateInputs
from counterpoise.variants import IMPORTANCE_WEIGHTS, KL_ESTIMATORS, SURROGATES


@dataclass(frozen=True, slots=True, eq=False)
class PassInputs:
    """The rows of one pass, with the step's old log-probabilities, advantages and coefficients."""

    rows: Sequence[Row]
    old_logprobs: Sequence[Floats | None]  # per row [T]; None: this pass computes them
    advantages: Sequence[Floats]  # per row [T]
    coefficients_R: Floats
    term: LossTerm | None = None  # added by the step's rule
    reference_logprobs: Sequence[Floats] | None = None  # per row [T]; None: no KL in the loss
    kl_coefficients: Sequence[float] | None = None  # per row; None: update.kl for all


@dataclass(frozen=True, slots=True, eq=False)
class PassTensors:
    """What a pass reads, as tensors. M: response tokens, flat in the order of the rows."""

    packing: Packing
    attend: PackedAttention
    row_M: Tensor
    old_M: Tensor
    unscored_M: Tensor  # 1 where the pass itself computes the old log-probability
    sampled_M: Tensor  # log-probabilities by the sampler
    advantages_M: Tensor
    coefficients_M: Tensor
    num_rows: int
    reference_M: Tensor | None = None  # None: no KL in the loss
    kl_coefficients_M: Tensor | None = None  # None: update.kl


@dataclass(frozen=True, slots=True, eq=False)
class PassOutputs:
    """What a pass computes besides gradients."""

    tokens_3M: Tensor  # log-probabilities, entropies, pulls: -dL / d log-probability
    totals_4: Tensor  # loss, its part by the added term, number of clipped and of capped tokens
    hidden_MD: Tensor


class Passes(ReadingPasses, Protocol):
    """How the passes of a step are run: eagerly, or captured as CUDA graphs."""

    def gradients(
        self, policy: Policy, inputs: PassInputs, config: UpdateConfig, temperature: float
    ) -> PassOutputs:
        """Add the gradients to the weights' `.grad`."""
        ...

    def release_memory(self) -> None:
        """Free what is kept between passes; it is made again when it is needed."""
        ...


def build_tensors(policy: Policy, inputs: PassInputs) -> PassTensors:
    """Pack the rows and move their arrays to the device."""
    packing = pack_rows(policy, inputs.rows)
    return tensors_from_arrays(
        policy, packing, PackedAttention(packing), flatten_inputs(inputs), len(inputs.rows)
    )


def flatten_inputs(inputs: PassInputs) -> dict[str, np.ndarray]:
    """The token vectors of `PassTensors` by name, flat over the rows."""
    lengths = [len(advantages_T) for advantages_T in inputs.advantages]
    old_logprobs = [
        np.zeros(length) if logprobs_T is None else logprobs_T
        for logprobs_T, length in zip(inputs.old_logprobs, lengths, strict=True)
    ]
    is_unscored_R = [logprobs_T is None for logprobs_T in inputs.old_logprobs]
    vectors = {
        "row_M": np.repeat(np.arange(len(lengths)), lengths),
        "old_M": np.concatenate(old_logprobs),
        "unscored_M": np.repeat(is_unscored_R, lengths),
        "sampled_M": np.concatenate([row.content.sampled_logprobs for row in inputs.rows]),
        "advantages_M": np.concatenate(inputs.advantages),
        "coefficients_M": np.repeat(inputs.coefficients_R, lengths),
    }
    if inputs.reference_logprobs is not None:
        vectors["reference_M"] = np.concatenate(inputs.reference_logprobs)
    if inputs.kl_coefficients is not None:
        vectors["kl_coefficients_M"] = np.repeat(inputs.kl_coefficients, lengths)
    return vectors


def tensors_from_arrays(
    policy: Policy,
    packing: Packing,
    attend: PackedAttention,
    vectors: dict[str, np.ndarray],
    num_rows: int,
) -> PassTensors:
    """Move the arrays to the device; row numbers stay integers, the rest is at least float32."""
    dtype = np.float64 if policy.decoder.dtype == torch.float64 else np.float32
    tensors = {
        name: to_device(vector, policy.device, None if name == "row_M" else dtype)
        for name, vector in vectors.items()
    }
    return PassTensors(packing=packing, attend=attend, num_rows=num_rows, **tensors)


def compute_loss(
    policy: Policy,
    tensors: PassTensors,
    config: UpdateConfig,
    temperature: float,
    added_term: Callable[[ForwardOutputs, Tensor], Tensor] | None = None,
) -> tuple[PassOutputs, Tensor, Tensor]:
    """Return outputs, the loss to differentiate, and the log-probabilities [M] it depends on.

    The pulls in the outputs are still 0: the caller, which differentiates, sets them to minus the
    loss's gradient with respect to these log-probabilities.

    `added_term` gives a term of the loss [M] from the pass and the old log-probabilities.
    """
    forward = forward_packed(
        policy,
        tensors.packing,
        tensors.attend,
        temperature,
        checkpointing=config.checkpointing,
        train_entropy=config.entropy_bonus > 0,
    )
    logprobs, entropies = forward.logprobs_M, forward.entropies_M
    # On-policy rows have no trainer_logprobs_T yet: their old log-probabilities are those of this
    # pass, without a gradient, so that the ratio is exactly 1 and its gradient that of log pi.
    old_logprobs = torch.where(tensors.unscored_M > 0, logprobs.detach(), tensors.old_M)
    surrogate = SURROGATES.load(config.surrogate)(
        SurrogateInputs(
            logprobs=logprobs,
            old_logprobs=old_logprobs,
            advantages=tensors.advantages_M,
            row=tensors.row_M,
            num_rows=tensors.num_rows,
            clip_low=config.clip_low,
            clip_high=config.clip_high,
            clip_dual=config.clip_dual,
        )
    )
    importance_ratio = IMPORTANCE_WEIGHTS.load(config.importance)(
        old_logprobs - tensors.sampled_M, tensors.row_M, tensors.num_rows
    )
    importance_weights = bound_weights(
        importance_ratio, config.importance_cap, config.importance_mode
    )
    loss = (surrogate.loss * importance_weights * tensors.coefficients_M).sum()
    added_loss = torch.zeros_like(loss)
    if added_term:
        added_loss = (
            added_term(forward, old_logprobs) * importance_weights * tensors.coefficients_M
        ).sum()
        loss = loss + added_loss
    # Filler tokens of a padded pass have a coefficient of 0 and must not be counted.
    has_loss = tensors.coefficients_M != 0
    if tensors.reference_M is not None:
        # exp(-d) of a filler token could overflow, and 0 times infinity is not a number.
        log_ratio = torch.where(has_loss, logprobs - tensors.reference_M, 0.0)
        kl_M = KL_ESTIMATORS.load(config.kl_estimator)(log_ratio)
        if tensors.kl_coefficients_M is None:
            loss = loss + config.kl * (kl_M * tensors.coefficients_M).sum()
        else:
            loss = loss + (kl_M * tensors.kl_coefficients_M * tensors.coefficients_M).sum()
    if config.entropy_bonus:
        loss = loss - config.entropy_bonus * (entropies * tensors.coefficients_M).sum()
        entropies = entropies.detach()
    num_clipped = (surrogate.clipped & has_loss).sum()
    num_capped = ((importance_ratio > config.importance_cap) & has_loss).sum()
    pass_outputs = PassOutputs(
        tokens_3M=torch.stack((logprobs.detach(), entropies, torch.zeros_like(entropies))),
        totals_4=torch.stack(
            (loss, added_loss, num_clipped.to(loss.dtype), num_capped.to(loss.dtype))
        ).detach(),
        hidden_MD=forward.hidden_M.detach(),
    )
    return pass_outputs, loss, logprobs


class EagerPasses(EagerReading):
    """Passes that run eagerly, kernel by kernel."""

    def gradients(
        self, policy: Policy, inputs: PassInputs, config: UpdateConfig, temperature: float
    ) -> PassOutputs:
        added_term = partial(inputs.term, inputs.rows) if inputs.term else None
        outputs, loss, logprobs = compute_loss(
            policy, build_tensors(policy, inputs), config, temperature, added_term
        )
        # The pull on a token is minus the loss's gradient with respect to its log-probability.
        logprobs.retain_grad()
        loss.backward()
        assert logprobs.grad is not None
        outputs.tokens_3M[2] = -logprobs.grad
        return outputs

    def release_memory(self) -> None:
        """Nothing is kept."""


EAGER = EagerPasses()
