"""Held-out success with a 95 % interval over problems, not over samples.

    s_p = share of the samples of problem p with reward above 0,    success = mean_p s_p

Samples of one problem are not independent, so the interval treats each problem as one observation:
statistics/prompt_intervals.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from counterpoise.config import SampleConfig
from counterpoise.sample.collect import SamplerBinding
from counterpoise.sample.episodes import sample_responses, score_episodes
from counterpoise.seeds import seed_for
from counterpoise.statistics.prompt_intervals import IntervalEstimate, share_estimate
from counterpoise.types import Prompt
from counterpoise.verify.scores import Verifier


@dataclass(frozen=True, slots=True)
class HeldoutSuccess:
    """Success on the held-out problems under one evaluation setting.

    Example:
        HeldoutSuccess(mean=0.46, low=0.41, high=0.51, pass_any=0.83, mixed=0.73, prompts=128,
                       samples=8)
    """

    mean: float
    low: float
    high: float
    pass_any: float  # problems solved by at least one of their samples
    mixed: float  # problems solved by some samples and not by others
    prompts: int
    samples: int
    reward: float | None = None  # mean over all samples; older records lack it

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> HeldoutSuccess:
        """Read the fields of this class from a line of evaluations.jsonl, which has others too."""
        names = [field.name for field in fields(cls) if field.name in record]
        return cls(**{name: record[name] for name in names})

    def __str__(self) -> str:
        return str(IntervalEstimate(self.mean, self.low, self.high))


def evaluate_policy(
    sampler: SamplerBinding,
    prompts: Sequence[Prompt],
    samples: int,
    config: SampleConfig,
    verifier: Verifier,
    seed: int,
) -> HeldoutSuccess:
    """Sample every prompt `samples` times and verify the responses.

    Two policies evaluated with the same seed can be compared problem by problem.
    """
    # A seed depends only on a problem's position, so evaluating more problems does not change how
    # the first ones are sampled.
    seeds_PG = [
        [seed_for(seed, "evaluate", p, g) for g in range(samples)] for p in range(len(prompts))
    ]
    encoded_prompts = [(prompt, sampler.policy.encode(prompt)) for prompt in prompts]
    responses = sample_responses(
        sampler.policy, encoded_prompts, seeds_PG, config, sampler.sample, sampler.episodes
    )
    rewards = score_episodes(
        verifier,
        [response for group in responses for response in group],
        [prompt for prompt in prompts for _ in range(samples)],
    ).rewards
    return summarize_rewards(np.array(rewards).reshape(len(prompts), samples))


def summarize_rewards(rewards_PG: NDArray[np.float64]) -> HeldoutSuccess:
    """Success and its interval from the reward of every sample."""
    solved_P = (rewards_PG > 0).mean(axis=1)
    estimate = share_estimate(solved_P)
    P, G = rewards_PG.shape
    return HeldoutSuccess(
        mean=estimate.mean,
        low=estimate.low,
        high=estimate.high,
        pass_any=float((solved_P > 0).mean()),
        mixed=float(((solved_P > 0) & (solved_P < 1)).mean()),
        prompts=P,
        samples=G,
        reward=float(rewards_PG.mean()),
    )
