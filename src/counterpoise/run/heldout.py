"""Held-out success with a 95 % interval that knows which samples belong to one problem.

    s_p = share of the samples of problem p with reward above 0,    success = mean_p s_p

Samples of one problem are not independent, so the problems are what is counted:
prompt_intervals.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from counterpoise.config import SampleConfig
from counterpoise.model.load import Policy
from counterpoise.sample.episodes import EpisodePlayer, sample_responses
from counterpoise.sample.native import sample as native
from counterpoise.sample.sampler import SampleFunction
from counterpoise.seeds import seed_for
from counterpoise.statistics.prompt_intervals import IntervalEstimate, share_estimate
from counterpoise.types import Prompt
from counterpoise.verify.scores import Verifier, score_responses


@dataclass(frozen=True, slots=True)
class Success:
    """Success at one way of sampling (`config/evaluation_settings.py`).

    Example:
        Success(mean=0.46, low=0.41, high=0.51, pass_any=0.83, mixed=0.73, prompts=128, samples=8)
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
    def of(cls, record: Mapping[str, Any]) -> Success:
        """From a line of evaluations.jsonl, which holds more."""
        return cls(**{f.name: record[f.name] for f in fields(cls) if f.name in record})

    def __str__(self) -> str:
        return str(IntervalEstimate(self.mean, self.low, self.high))


def judge(
    policy: Policy,
    prompts: Sequence[Prompt],
    samples: int,
    config: SampleConfig,
    verifier: Verifier,
    seed: int,
    sample: SampleFunction = native,
    episodes: EpisodePlayer | None = None,
) -> Success:
    """Sample every prompt `samples` times and verify. The same seed gives paired comparisons."""
    seeds = [
        [seed_for(seed, "evaluate", p, g) for g in range(samples)] for p in range(len(prompts))
    ]
    asked = [(p, policy.encode(p.problem)) for p in prompts]
    responses = sample_responses(policy, asked, seeds, config, sample, episodes)
    texts = [r.text for group in responses for r in group]
    rewards = score_responses(verifier, texts, [p for p in prompts for _ in range(samples)]).rewards
    return summarise(np.array(rewards).reshape(len(prompts), samples))


def summarise(rewards_PG: NDArray[np.float64]) -> Success:
    solved_P = (rewards_PG > 0).mean(axis=1)
    found = share_estimate(solved_P)
    P, G = rewards_PG.shape
    return Success(
        mean=found.mean,
        low=found.low,
        high=found.high,
        pass_any=float((solved_P > 0).mean()),
        mixed=float(((solved_P > 0) & (solved_P < 1)).mean()),
        prompts=P,
        samples=G,
        reward=float(rewards_PG.mean()),
    )
