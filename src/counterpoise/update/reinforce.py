"""L_t = -A_t log pi(o_t): the surrogate of the paper's analysis (eq. 2), no ratio, no clip.

Exact only while the policy is the one that sampled; later steps of a plan are off-policy.
"""

from __future__ import annotations

import torch

from counterpoise.update.surrogate import SurrogateInputs, SurrogateOutputs


def surrogate(x: SurrogateInputs) -> SurrogateOutputs:
    nothing = torch.zeros_like(x.logprobs, dtype=torch.bool)
    return SurrogateOutputs(loss=-x.advantages * x.logprobs, clipped=nothing)
