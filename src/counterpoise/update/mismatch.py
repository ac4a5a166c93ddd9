"""How far the sampler is from the trainer at the same weights, over the tokens of an update.

    d_t = log pi_old(o_t) - log mu(o_t)        mu: the sampler

    sampler_mismatch        mean |d_t|
    sampler_mismatch_max    max |d_t|
    sampler_ratio_std       standard deviation of exp(d_t), the importance ratio

No pass is made for it: rows of later steps were scored before the update, and those of the first
step that were sampled in this iteration are computed by the very weights that sampled them. Where
old log-probabilities are the sampler's own, only the latter are known.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from counterpoise.types import Row, StepResult


def mismatch(
    batch: Sequence[Row], results: Sequence[StepResult], now: int
) -> dict[str, float | None]:
    """For metrics.jsonl; None where nothing was updated."""
    first = next((result for result in results if result.rows), None)
    differences = []
    for result in results:
        for i, logprobs_T in zip(result.rows, result.logprobs, strict=True):
            row = batch[i]
            fresh = result is first and row.born == now
            by_trainer_T = logprobs_T if fresh and row.scored_T is None else row.scored_T
            if by_trainer_T is not None:
                differences.append(by_trainer_T - row.content.sampled_logprobs)
    d = np.concatenate(differences).astype(np.float64) if differences else np.empty(0)
    d = d[np.isfinite(d)]
    known = len(d) > 0
    return {
        "sampler_mismatch": float(np.abs(d).mean()) if known else None,
        "sampler_mismatch_max": float(np.abs(d).max()) if known else None,
        "sampler_ratio_std": float(np.exp(d).std()) if known else None,
    }
