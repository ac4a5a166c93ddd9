"""Advantages in a plain PyTorch loop: one call on the rewards of a batch."""

import torch
from torch.distributions import Categorical

import counterpoise as poise

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Embedding(8, 16), torch.nn.Linear(16, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.03)
success = []

for _ in range(20):
    ids = torch.arange(8).repeat_interleave(8)[:, None]  # 8 prompts of one token, 8 rollouts each
    for _ in range(5):
        ids = torch.cat((ids, Categorical(logits=model(ids[:, -1:])).sample()), dim=1)
    rewards_R = (ids[:, 1:] == ids[:, :1]).any(dim=1).float()  # the response contains the prompt
    advantages_R = poise.advantages(rewards_R, groups=8, method="rloo")  # every 8 rows a group
    logprobs_RT = Categorical(logits=model(ids[:, :-1])).log_prob(ids[:, 1:])
    optimizer.zero_grad()
    (-advantages_R[:, None] * logprobs_RT).mean().backward()
    optimizer.step()
    success.append(rewards_R.mean().item())
print(f"success {success[0]:.0%} -> {success[-1]:.0%}")
