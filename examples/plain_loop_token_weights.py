"""Token weights in a plain PyTorch GRPO loss: advantages [R] become A * w [R, T]."""

import torch
from torch.distributions import Categorical

import counterpoise as poise

torch.manual_seed(0)
body, head = torch.nn.Embedding(8, 16), torch.nn.Linear(16, 8, bias=False)
optimizer = torch.optim.AdamW([*body.parameters(), *head.parameters()], lr=0.03)
success = []

for _ in range(20):
    ids = torch.arange(8).repeat_interleave(8)[:, None]  # 8 prompts of one token, 8 rollouts each
    for _ in range(5):
        ids = torch.cat((ids, Categorical(logits=head(body(ids[:, -1:]))).sample()), dim=1)
    tokens_RT, mask_RT = ids[:, 1:], torch.ones(64, 5)  # the mask is 0 at padding
    rewards_R = (tokens_RT == ids[:, :1]).any(dim=1).float()  # the response contains the prompt
    advantages_R, hidden = poise.advantages(rewards_R, groups=8), body(ids[:, :-1])
    weights_RT = poise.weights(
        "cancellation", advantages=advantages_R, groups=8, mask=mask_RT, tokens=tokens_RT,
        hidden=hidden, unembedding=head.weight, strength=0.5,
    )  # fmt: skip
    advantages_RT = advantages_R[:, None] * weights_RT
    old_logprobs_RT = Categorical(logits=head(hidden)).log_prob(tokens_RT).detach()
    for _ in range(2):  # optimizer steps on the same batch
        logprobs_RT = Categorical(logits=head(body(ids[:, :-1]))).log_prob(tokens_RT)
        ratio_RT = (logprobs_RT - old_logprobs_RT).exp()
        clipped_RT = ratio_RT.clamp(0.8, 1.28)
        gain_RT = torch.minimum(ratio_RT * advantages_RT, clipped_RT * advantages_RT)
        optimizer.zero_grad()
        (-(gain_RT * mask_RT).sum() / mask_RT.sum()).backward()
        optimizer.step()
    success.append(rewards_R.mean().item())
print(f"success {success[0]:.0%} -> {success[-1]:.0%}")
