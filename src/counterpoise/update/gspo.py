"""L_t = -min(s_t A_t, clip(s_t, 1 - low, 1 + high) A_t),  s_t = sg[s_i] pi(o_t) / sg[pi(o_t)].

s_i = exp(mean_t log rho_t) is the length-normalised ratio of the whole response: one clip decision
per response. Its clip range is far narrower than GRPO's: the paper takes 3e-4 and 4e-4.
arXiv:2507.18071
"""

from __future__ import annotations

import torch

from counterpoise.update.surrogate import SurrogateInputs, SurrogateOutputs


def surrogate(x: SurrogateInputs) -> SurrogateOutputs:
    log_ratio = (x.logprobs - x.old_logprobs).detach()
    sums = torch.zeros(x.num_rows, dtype=log_ratio.dtype, device=log_ratio.device)
    counts = torch.zeros_like(sums)
    sums.index_add_(0, x.row, log_ratio)
    counts.index_add_(0, x.row, torch.ones_like(log_ratio))
    sequence_ratio = torch.exp(sums / counts)[x.row]
    ratio = sequence_ratio * torch.exp(x.logprobs - x.logprobs.detach())
    bounded = ratio.clamp(1 - x.clip_low, 1 + x.clip_high)
    gain, bounded_gain = ratio * x.advantages, bounded * x.advantages
    return SurrogateOutputs(loss=-torch.minimum(gain, bounded_gain), clipped=bounded_gain < gain)
