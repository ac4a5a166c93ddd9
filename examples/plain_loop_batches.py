"""QB and RB in a plain PyTorch loop: whole groups, a quarter of each sign in every batch."""

import torch
from torch.distributions import Categorical

import counterpoise as poise

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Embedding(8, 16), torch.nn.Linear(16, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.03)
buffer = poise.RewardBalancedBuffer(tau=0.25, target=32)
ids_of: dict[tuple[str, int], torch.Tensor] = {}  # (group, index) -> token ids

for iteration in range(1, 11):
    ids = torch.arange(8).repeat_interleave(8)[:, None]  # 8 prompts of one token, 8 rollouts each
    for _ in range(5):
        ids = torch.cat((ids, Categorical(logits=model(ids[:, -1:])).sample()), dim=1)
    rewards_R = (ids[:, 1:] == ids[:, :1]).any(dim=1).float()  # the response contains the prompt
    advantages_PG = poise.advantages(rewards_R, groups=8).view(8, 8).tolist()
    for p, advantages_G in enumerate(advantages_PG):
        group = f"{iteration}:{p}"  # a group's name is never used again
        rows = [poise.Row(group, A, 5, i, born=iteration) for i, A in enumerate(advantages_G)]
        ids_of.update({row.name: ids[8 * p + row.index] for row in rows})
        buffer.add([rows])
    while batch := buffer.take(iteration):  # None: sample more
        plan = poise.compose("grouped", batch.rows, num_steps=2, seed=iteration)
        for step in plan.steps:
            step_ids = torch.stack([ids_of[batch.rows[i].name] for i in step])
            step_advantages_R = torch.tensor([batch.rows[i].advantage for i in step])
            logprobs_RT = Categorical(logits=model(step_ids[:, :-1])).log_prob(step_ids[:, 1:])
            optimizer.zero_grad()
            (-step_advantages_R[:, None] * logprobs_RT).mean().backward()
            optimizer.step()
        split_groups = poise.describe(batch.rows, plan)["split_groups"]
        print(f"split {split_groups}, positive {batch.n_positive}, negative {batch.n_negative}")
