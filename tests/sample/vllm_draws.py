"""What the tests of a real vLLM share: prompts, seeds, and draws against the trainer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from counterpoise.config.load import config_from_tables
from counterpoise.model.load import Policy
from counterpoise.model.scoring import score_logprobs
from counterpoise.sample import vllm_host
from counterpoise.task.load import load_task
from counterpoise.types import Ints, Response, Rollout, Row

real_vllm = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not vllm_host.is_supported(vllm_host.installed_version() or ""),
        reason=f"no supported vLLM is installed: {vllm_host.INSTALL_REMEDY}",
    ),
]
CONFIG = config_from_tables({"sample": {"engine": "vllm"}})
SEEDS = [[100 * p + g for g in range(4)] for p in range(8)]


def some_prompts(policy: Policy) -> list[Ints]:
    return [policy.encode(prompt.problem) for prompt in load_task(CONFIG.task).train[: len(SEEDS)]]


def rows(prompts: Sequence[Ints], drawn: Sequence[Sequence[Response]]) -> list[Row]:
    return [
        Row(
            group=str(p),
            advantage=1.0,
            num_tokens=len(response.tokens),
            rollout=Rollout("", "", "", "", 0.0, prompt, response.tokens, response.logprobs),
        )
        for p, (prompt, group) in enumerate(zip(prompts, drawn, strict=True))
        for response in group
    ]


def differences(
    policy: Policy, prompts: Sequence[Ints], drawn: Sequence[Sequence[Response]], temperature: float
) -> np.ndarray:
    made = rows(prompts, drawn)
    by_trainer = np.concatenate(score_logprobs(policy, made, temperature, 20_000))
    return np.abs(by_trainer - np.concatenate([row.content.sampled_logprobs for row in made]))


def shaken(policy: Policy, seed: int) -> None:
    """Other weights, in place."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in policy.model.parameters():
            p.add_(0.05 * p.std() * torch.randn(p.shape, generator=generator))
