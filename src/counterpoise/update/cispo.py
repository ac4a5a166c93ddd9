"""L_t = -sg[clip(rho_t, 1 - low, 1 + high)] A_t log pi(o_t).

The weight is clipped, the gradient never: every token keeps pushing, with a bounded step.
arXiv:2506.13585
"""

from __future__ import annotations

import torch

from counterpoise.update.surrogate import SurrogateInputs, SurrogateOutputs


def surrogate(x: SurrogateInputs) -> SurrogateOutputs:
    ratio = torch.exp(x.logprobs - x.old_logprobs).detach()
    weight = ratio.clamp(1 - x.clip_low, 1 + x.clip_high)
    nothing = torch.zeros_like(ratio, dtype=torch.bool)
    return SurrogateOutputs(loss=-weight * x.advantages * x.logprobs, clipped=nothing)
