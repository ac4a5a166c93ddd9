"""Held-out success with a 95 % interval over problems, not over samples.

    s_p = share of the samples of problem p with reward above 0,    success = mean_p s_p

Where rewards are graded (not all 0 or 1) the mean reward is what counts: the mean over problems of
the mean reward of their samples, with Student's t interval over problems. Samples without a reward
(nan) are left out, and so are problems none of whose samples has a reward.

Samples of one problem are not independent, so the interval treats each problem as one observation:
statistics/prompt_intervals.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from counterpoise.config import SampleConfig
from counterpoise.errors import PoiseError
from counterpoise.model.fit_memory import FittedSize, describe_prompts
from counterpoise.sample.collect import SamplerBinding, draw_in_batches
from counterpoise.sample.episodes import sample_responses, score_episodes
from counterpoise.seeds import seed_for
from counterpoise.statistics.prompt_intervals import (
    IntervalEstimate,
    format_reward,
    mean_estimate,
    share_estimate,
)
from counterpoise.store.evaluation_records import is_graded_evaluation, reward_estimate
from counterpoise.types import Prompt
from counterpoise.verify.scores import NO_CONTEXT, ScoringContext, Verifier


@dataclass(frozen=True, slots=True)
class HeldoutSuccess:
    """Success on the held-out problems under one evaluation setting.

    Example:
        HeldoutSuccess(mean=0.46, low=0.41, high=0.51, pass_any=0.83, mixed=0.73, prompts=128,
                       samples=8)
    """

    mean: float  # the success, mean_p s_p; called so since the first run folders
    low: float  # 95 % interval of the success
    high: float
    pass_any: float  # problems solved by at least one of their samples
    mixed: float  # problems solved by some samples and not by others
    prompts: int  # problems with a reward; those where every sample has none are left out
    samples: int  # drawn for each problem
    # Mean over problems of the mean reward of their samples; older records lack it.
    reward: float | None = None
    # 95 % interval of graded rewards, infinite if it is not known. None: all rewards are 0 or 1 and
    # `reward` equals `mean`, or the record is older than these two fields.
    reward_low: float | None = None
    reward_high: float | None = None

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> HeldoutSuccess:
        """Read the fields of this class from a line of evaluations.jsonl or benchmarks.jsonl."""
        required_names = [field.name for field in fields(cls) if field.default is MISSING]
        if missing_names := [name for name in required_names if name not in record]:
            log = "benchmarks" if "benchmark" in record else "evaluations"
            raise PoiseError(
                f"{log}.jsonl is damaged: iteration {record.get('iteration')} lacks "
                f"{', '.join(missing_names)}; poise check says what else is damaged"
            )
        success = cls(
            **{field.name: record[field.name] for field in fields(cls) if field.name in record}
        )
        if not is_graded_evaluation(record):
            return success
        return success._with_reward(reward_estimate(record))

    @property
    def is_graded(self) -> bool:
        return self.reward_low is not None

    @property
    def quantity(self) -> str:
        """The name of what `str(self)` shows: "success", or "reward" if rewards are graded."""
        return "reward" if self.is_graded else "success"

    @property
    def headline(self) -> IntervalEstimate:
        """The mean reward if rewards are graded, otherwise the success."""
        if self.reward is None or self.reward_low is None or self.reward_high is None:
            return IntervalEstimate(self.mean, self.low, self.high)
        return IntervalEstimate(self.reward, self.reward_low, self.reward_high)

    def as_graded(self) -> HeldoutSuccess:
        """The same evaluation with an interval of its mean reward.

        If all rewards are 0 or 1, this is the interval of the success.
        """
        return self if self.is_graded else self._with_reward(reward_estimate(self.to_record()))

    def _with_reward(self, reward: IntervalEstimate) -> HeldoutSuccess:
        return replace(self, reward=reward.mean, reward_low=reward.low, reward_high=reward.high)

    def to_record(self) -> dict[str, Any]:
        """The fields of a line of evaluations.jsonl; no interval of rewards that are 0 or 1."""
        record = asdict(self)
        if not self.is_graded:
            del record["reward_low"], record["reward_high"]
        elif not self.headline.is_bounded:  # JSON has no infinite numbers
            record |= {"reward_low": None, "reward_high": None}
        return record

    def __str__(self) -> str:
        return format_reward(self.headline) if self.is_graded else str(self.headline)


def with_same_quantity(
    before: HeldoutSuccess, after: HeldoutSuccess
) -> tuple[HeldoutSuccess, HeldoutSuccess]:
    """Make two evaluations of a run comparable: if one is graded, both are returned as graded.

    In a run with graded rewards, those of one evaluation may all happen to be 0 or 1.
    """
    if before.is_graded == after.is_graded:
        return before, after
    return before.as_graded(), after.as_graded()


def describe_evaluation_size(prompts: int) -> str:
    return f"{describe_prompts(prompts)} in this evaluation"


def fit_evaluation_size(sampler: SamplerBinding, num_prompts: int) -> FittedSize:
    """How many prompts an evaluation samples at once: `num_prompts` until memory runs out.

    Not `sampler.prompts_per_draw`, which begins at the few prompts of an iteration and stays
    lowered for the rest of the run.
    """
    fitted_size = FittedSize(max(1, num_prompts), describe=describe_evaluation_size)
    if sampler.prompts_per_draw:
        fitted_size.notify = sampler.prompts_per_draw.notify
    return fitted_size


def evaluate_policy(
    sampler: SamplerBinding,
    prompts: Sequence[Prompt],
    samples: int,
    config: SampleConfig,
    verifier: Verifier,
    seed: int,
    context: ScoringContext = NO_CONTEXT,
) -> HeldoutSuccess:
    """Sample every prompt `samples` times and verify the responses.

    Two policies evaluated with the same seed can be compared problem by problem.
    """
    # A seed depends only on a problem's position, so evaluating more problems does not change how
    # the first ones are sampled.
    seeds_PG = [
        [seed_for(seed, "evaluate", p, g) for g in range(samples)] for p in range(len(prompts))
    ]
    encoded_prompts = list(zip(prompts, sampler.policy.encode_all(prompts), strict=True))
    responses = draw_in_batches(
        lambda batch: sample_responses(
            sampler.policy,
            encoded_prompts[batch],
            seeds_PG[batch],
            config,
            sampler.sample,
            sampler.episodes,
            context,
        ),
        len(prompts),
        fit_evaluation_size(sampler, len(prompts)),  # all at once is fastest
    )
    scores = score_episodes(
        verifier,
        [response for group in responses for response in group],
        [prompt for prompt in prompts for _ in range(samples)],
        context,
    )
    rewards_PG = np.array(scores.rewards).reshape(len(prompts), samples)
    return summarize_rewards(rewards_PG, graded=scores.graded)


def summarize_rewards(rewards_PG: NDArray[np.float64], *, graded: bool = False) -> HeldoutSuccess:
    """Success and mean reward, from the reward of every sample.

    The success has an interval; the mean reward has one only if rewards are `graded`.
    """
    samples = rewards_PG.shape[1]
    rewards_PG = rewards_PG[~np.isnan(rewards_PG).all(axis=1)]
    if not len(rewards_PG):
        raise PoiseError(
            "the reward function returned None for every held-out response: check the columns it "
            "reads, or set evaluate.prompts=0"
        )
    # Without nan these are the plain means over samples.
    is_scored_PG = ~np.isnan(rewards_PG)
    solved_P = (rewards_PG > 0).sum(axis=1) / is_scored_PG.sum(axis=1)
    estimate = share_estimate(solved_P)
    reward = mean_estimate(np.nanmean(rewards_PG, axis=1))
    return HeldoutSuccess(
        mean=estimate.mean,
        low=estimate.low,
        high=estimate.high,
        pass_any=float((solved_P > 0).mean()),
        mixed=float(((solved_P > 0) & (solved_P < 1)).mean()),
        prompts=len(rewards_PG),
        samples=samples,
        reward=reward.mean,
        reward_low=reward.low if graded else None,
        reward_high=reward.high if graded else None,
    )
