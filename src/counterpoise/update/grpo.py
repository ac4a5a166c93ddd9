"""L_t = -min(rho_t A_t, clip(rho_t, 1 - low, 1 + high) A_t),  rho_t = pi(o_t) / pi_old(o_t).

PPO's pessimistic bound on every token; `high` above `low` (clip-higher, DAPO) lets unlikely tokens
rise further before the gradient stops. arXiv:2402.03300, arXiv:2503.14476
"""

from __future__ import annotations

import torch

from counterpoise.update.surrogate import SurrogateInputs, SurrogateOutputs


def surrogate(x: SurrogateInputs) -> SurrogateOutputs:
    ratio = torch.exp(x.logprobs - x.old_logprobs)
    bounded = ratio.clamp(1 - x.clip_low, 1 + x.clip_high)
    gain, bounded_gain = ratio * x.advantages, bounded * x.advantages
    return SurrogateOutputs(loss=-torch.minimum(gain, bounded_gain), clipped=bounded_gain < gain)
