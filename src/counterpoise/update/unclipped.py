"""L_t = -rho_t A_t,  rho_t = pi(o_t) / pi_old(o_t): the ratio without a clip.

Unbiased for rows of an older policy, and nothing bounds it: KL-Cov, for one, penalises a few tokens
in the clip's place. arXiv:2505.22617
"""

from __future__ import annotations

import torch

from counterpoise.update.surrogate import SurrogateInputs, SurrogateOutputs


def surrogate(x: SurrogateInputs) -> SurrogateOutputs:
    ratio = torch.exp(x.logprobs - x.old_logprobs)
    nothing = torch.zeros_like(ratio, dtype=torch.bool)
    return SurrogateOutputs(loss=-ratio * x.advantages, clipped=nothing)
