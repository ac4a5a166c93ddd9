"""Weights for tokens drawn by a sampler that differs slightly from the trainer.

    truncate    w = min(ratio, C)
    mask        w = ratio where ratio <= C, else 0

    token       ratio_t = rho_t                    rho_t = pi_old(o_t) / mu(o_t)
    sequence    ratio_t = prod_s rho_s             one number for all tokens of a response
    off         ratio_t = 1

pi_old is the policy that sampled, as the trainer computes it; mu is the same weights as the sampler
computes them, slightly off with another engine or precision. Multiplied by w, token losses have the
mean that they would have under pi_old instead of mu, except where the cap C bounds w. `mask` leaves
out tokens above the cap instead, since so large a ratio is more likely an error of the sampler than
information; they still count in the loss's denominator. `token`
ignores that the earlier tokens were drawn by mu as well; `sequence` does not, but its ratio varies
more with longer responses. No gradient flows through w. With `update.old_logprobs=sampler` the
surrogate's own ratio is pi / mu, which already corrects: `update.importance` must be off.

C = 2; common values are 1.5 to 5 for tokens and 2 to 10 for sequences (verl's rollout correction).
Truncated importance sampling: Ionides 2008, J. Comput. Graph. Stat. 17(2).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from counterpoise.types import Row, StepResult


def off(log_ratio_M: Tensor, row_M: Tensor, num_rows: int) -> Tensor:
    """No correction: a ratio of 1."""
    return torch.ones_like(log_ratio_M)


def token(log_ratio_M: Tensor, row_M: Tensor, num_rows: int) -> Tensor:
    """The ratio of each token by itself."""
    return log_ratio_M.exp()


def sequence(log_ratio_M: Tensor, row_M: Tensor, num_rows: int) -> Tensor:
    """The product of a response's token ratios, for each of its tokens."""
    sums_R = torch.zeros(num_rows, dtype=log_ratio_M.dtype, device=log_ratio_M.device)
    return sums_R.index_add_(0, row_M, log_ratio_M).exp()[row_M]


def bound_weights(ratio_M: Tensor, cap: float, mode: str) -> Tensor:
    """The weights w by the ratios; `mode` says what becomes of ratios above the cap."""
    if mode == "mask":
        return torch.where(ratio_M <= cap, ratio_M, 0.0)
    return ratio_M.clamp(max=cap)


def sampler_mismatch(
    batch: Sequence[Row], results: Sequence[StepResult], iteration: int
) -> dict[str, float | None]:
    """How far the sampler is from the trainer at the same weights, over the tokens of an update.

        d_t = log pi_old(o_t) - log mu(o_t)        mu: the sampler

        sampler_mismatch        mean |d_t|
        sampler_mismatch_max    max |d_t|
        sampler_ratio_std       standard deviation of exp(d_t), the importance ratio

    For metrics.jsonl; None where nothing was updated. No extra pass is needed: rows of later steps
    were scored before the update, and for rows of the first step that were sampled in this
    iteration, the step's own pass ran at the weights that sampled them. With
    `update.old_logprobs=sampler` nothing is scored before, so only such rows of the first step are
    measured.
    """
    # Only the first step that trained rows ran at the weights that sampled them.
    first_result = next((result for result in results if result.rows), None)
    differences = []
    for result in results:
        for i, logprobs_T in zip(result.rows, result.logprobs, strict=True):
            row = batch[i]
            is_fresh = result is first_result and row.born == iteration
            trainer_logprobs_T = (
                logprobs_T
                if is_fresh and row.trainer_logprobs_T is None
                else row.trainer_logprobs_T
            )
            if trainer_logprobs_T is not None:
                differences.append(trainer_logprobs_T - row.content.sampled_logprobs)
    difference_N = np.concatenate(differences).astype(np.float64) if differences else np.empty(0)
    difference_N = difference_N[np.isfinite(difference_N)]
    has_tokens = len(difference_N) > 0
    return {
        "sampler_mismatch": float(np.abs(difference_N).mean()) if has_tokens else None,
        "sampler_mismatch_max": float(np.abs(difference_N).max()) if has_tokens else None,
        "sampler_ratio_std": float(np.exp(difference_N).std()) if has_tokens else None,
    }
