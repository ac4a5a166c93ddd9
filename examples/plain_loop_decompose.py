"""Predict how a step moves every token and which tokens cause it; compare with the step."""

import torch
from torch.distributions import Categorical

import counterpoise as poise

torch.manual_seed(0)
body, head = torch.nn.Embedding(8, 16), torch.nn.Linear(16, 8, bias=False)
optimizer = torch.optim.SGD(head.parameters(), lr=0.01)

ids = torch.arange(8).repeat_interleave(8)[:, None]  # 8 prompts of one token, 8 rollouts each
for _ in range(5):
    ids = torch.cat((ids, Categorical(logits=head(body(ids[:, -1:]))).sample()), dim=1)
hidden_N, tokens_N = body(ids[:, :-1]).flatten(0, 1).detach(), ids[:, 1:].flatten()
rewards_R = (ids[:, 1:] == ids[:, :1]).any(dim=1).float()  # the response contains the prompt
advantages_N = poise.advantages(rewards_R, groups=8).repeat_interleave(5)
groups_N = torch.arange(8).repeat_interleave(8 * 5)

coupling = poise.decompose(hidden_N, head.weight, tokens_N, advantages_N, groups_N, eta=0.01)
before_N = Categorical(logits=head(hidden_N)).log_prob(tokens_N)
(-advantages_N * before_N).mean().backward()
optimizer.step()
change_N = (Categorical(logits=head(hidden_N)).log_prob(tokens_N) - before_N).detach()
print(f"change {change_N.abs().max():.1e}, error {(coupling.total - change_N).abs().max():.1e}")
print(f"by itself {coupling.self_push.abs().mean():.1e}, ", end="")
print(f"by others {coupling.from_others.abs().mean():.1e}")
