"""Collect an iteration's rollouts: sample responses, verify them, build groups.

Usually one round is enough; dynamic sampling (`sample/dynamic_sampling.py`) may add more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from counterpoise.config import RunConfig
from counterpoise.model.fit_memory import SAMPLING_REMEDY, FittedSize, describe_prompts
from counterpoise.model.load import Policy
from counterpoise.sample.anchors import sample_with_anchors
from counterpoise.sample.build_groups import build_groups
from counterpoise.sample.choose_prompts import EncodedPrompt, PromptChoice
from counterpoise.sample.dynamic_sampling import RefilledBatch, refill_groups, replacement_prompts
from counterpoise.sample.episodes import EpisodePlayer, sample_responses, score_episodes
from counterpoise.sample.native import sample as native
from counterpoise.sample.sampler import SampleFunction
from counterpoise.seeds import seed_for
from counterpoise.types import Group, Response
from counterpoise.verify.extra_rewards import score_extra_rewards
from counterpoise.verify.plugin_reward import training_context
from counterpoise.verify.scores import Scores, Verifier


@dataclass(frozen=True, slots=True)
class SamplerBinding:
    """A sampler together with the policy it samples from and the limits it works under."""

    policy: Policy
    # How many prompts to sample at once: a size reduced after running out of memory stays for later
    # draws. None: every draw tries all of its prompts first.
    prompts_per_draw: FittedSize | None = None
    sample: SampleFunction = native
    episodes: EpisodePlayer | None = None  # None: single-turn responses, no environment


class RolloutCollector:
    """Samples and verifies the groups of one iteration, round by round, and keeps all of them."""

    def __init__(
        self,
        sampler_binding: SamplerBinding,
        config: RunConfig,
        verifier: Verifier,
        end_stage: Callable[[str], None],
        iteration: int,
    ) -> None:
        """`end_stage` is called with the name of a stage when it has finished (for timing)."""
        self.sampler_binding, self.config, self.verifier = sampler_binding, config, verifier
        self.end_stage, self.iteration = end_stage, iteration
        self.collected_groups: list[Group] = []  # of all rounds, in sampling order
        self.scores = Scores([])

    def collect_groups(self, prompts: Sequence[EncodedPrompt]) -> list[Group]:
        """Sample and verify one round; without prompts there are no groups."""
        if not prompts:
            return []
        config, iteration = self.config, self.iteration
        G = config.sample.group_size
        responses_PG = draw_responses(
            self.sampler_binding,
            prompts,
            config,
            iteration,
            prompts_before=len(self.collected_groups),
        )
        self.end_stage("sample")
        responses = [response for responses_G in responses_PG for response in responses_G]
        prompt_of_response = [prompt for prompt, _ in prompts for _ in range(G)]
        token_ids = [response.tokens for response in responses]
        context = training_context(config, iteration - 1, token_ids)
        scores = score_episodes(self.verifier, responses, prompt_of_response, context)
        extra = score_extra_rewards(
            [prompt for prompt, _ in prompts], responses_PG, config, context
        )
        for extra_scores in extra.scores:
            scores = scores.add_failures_and_logs(extra_scores)
        groups = build_groups(
            prompts,
            responses_PG,
            scores.rewards,
            iteration,
            extra.rewards_PG,
            config.sample.anchors,
            scores.logged,
        )
        self.end_stage("verify")
        self.collected_groups += groups
        self.scores = self.scores.concatenate(scores)
        return groups


def sample_groups(
    collector: RolloutCollector,
    choice: PromptChoice,
    config: RunConfig,
    iteration: int,
) -> RefilledBatch:
    """The groups of an iteration, and those that dynamic sampling dropped on the way."""
    chosen_prompts = [prompt for prompt, _ in choice.prompts]
    unused_prompts = replacement_prompts(
        choice.replacements, chosen_prompts, config.loop.seed, iteration
    )
    return refill_groups(
        collector.collect_groups(choice.prompts),
        lambda missing: collector.collect_groups(list(islice(unused_prompts, missing))),
        config.sample.refills,
    )


def draw_responses(
    sampler_binding: SamplerBinding,
    prompts: Sequence[EncodedPrompt],
    config: RunConfig,
    iteration: int,
    *,
    prompts_before: int = 0,
) -> list[list[Response]]:
    """G responses for every prompt, in smaller batches of prompts where memory runs out.

    `prompts_before` prompts of the iteration were sampled in earlier rounds.
    """
    P, G = len(prompts), config.sample.group_size
    # A seed depends only on the iteration and the response's place in it, never on how prompts are
    # batched, so running out of memory changes no response.
    seeds_PG = [
        [
            seed_for(config.loop.seed, "sample", iteration, prompt_index * G + response_index)
            for response_index in range(G)
        ]
        for prompt_index in range(prompts_before, prompts_before + P)
    ]

    # The verifier judges the turns of an episode while it is played.
    context = training_context(config, iteration - 1)

    def draw_batch(batch: slice) -> list[list[Response]]:
        arguments = (
            sampler_binding.policy,
            prompts[batch],
            seeds_PG[batch],
            config.sample,
            sampler_binding.sample,
        )
        if config.sample.anchors:
            return sample_with_anchors(*arguments)
        return sample_responses(*arguments, sampler_binding.episodes, context)

    prompts_per_draw = sampler_binding.prompts_per_draw or FittedSize(P, describe=describe_prompts)
    return draw_in_batches(draw_batch, P, prompts_per_draw)


def draw_in_batches(
    draw_batch: Callable[[slice], list[list[Response]]],
    num_prompts: int,
    prompts_per_draw: FittedSize,
    remedy: str = SAMPLING_REMEDY,
) -> list[list[Response]]:
    """The responses of all prompts; a `draw_batch` slice has at most `prompts_per_draw` prompts."""

    def draw_all(batch_size: int) -> list[list[Response]]:
        return [
            responses_G
            for start in range(0, num_prompts, batch_size)
            for responses_G in draw_batch(slice(start, start + batch_size))
        ]

    return prompts_per_draw.run_fitting(draw_all, smallest=1, total=num_prompts, remedy=remedy)
