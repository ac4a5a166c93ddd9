"""Stages 1 and 2 bound to a run: an iteration's prompts, their responses, their groups.

One round is the rule. With dynamic sampling (`sample/dynamic_sampling.py`) there may be more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from counterpoise.config import RunConfig
from counterpoise.model.fit_memory import GENERAL_REMEDY, PROMPTS_CAPTION, MicroBatch
from counterpoise.model.load import Policy
from counterpoise.sample.anchors import sample_with_anchors
from counterpoise.sample.build_groups import build_groups
from counterpoise.sample.dynamic_sampling import RefilledBatch, refill_groups, replacement_prompts
from counterpoise.sample.episodes import EpisodePlayer, sample_responses
from counterpoise.sample.native import sample as native
from counterpoise.sample.sampler import SampleFunction
from counterpoise.seeds import rng_for, seed_for
from counterpoise.types import Group, Ints, Prompt, Response
from counterpoise.verify.extra_rewards import further
from counterpoise.verify.scores import Scores, Verifier, verified

EncodedPrompt = tuple[Prompt, Ints]  # a prompt and its tokens


@dataclass(frozen=True, slots=True)
class SamplerBinding:
    """Who draws, by which weights, and how much at once."""

    policy: Policy
    prompts_per_draw: MicroBatch | None = None  # prompts; None: all of them until memory runs out
    sample: SampleFunction = native
    episodes: EpisodePlayer | None = None  # who answers; None: nobody


class RolloutCollector:
    """Draws and verifies the groups of one iteration, round after round, and keeps them all."""

    def __init__(
        self, sampler_binding: SamplerBinding, config: RunConfig, verifier: Verifier, end_stage: Callable[[str], None],
        iteration: int,
    ) -> None:  # fmt: skip
        """`end_stage` is told when a stage has ended."""
        self.sampler_binding, self.config, self.verifier = sampler_binding, config, verifier
        self.end_stage, self.iteration = end_stage, iteration
        self.collected_groups: list[Group] = []  # in the order they were drawn
        self.scores = Scores([])

    def collect_groups(self, prompts: Sequence[EncodedPrompt]) -> list[Group]:
        """Those of one round; none where there are no prompts."""
        if not prompts:
            return []
        config, now = self.config, self.iteration
        G = config.sample.group_size
        responses_PG = draw_responses(
            self.sampler_binding, prompts, config, now, prompts_before=len(self.collected_groups)
        )
        self.end_stage("sample")
        texts = [response.text for responses in responses_PG for response in responses]
        asked = [prompt for prompt, _ in prompts for _ in range(G)]
        scores = verified(self.verifier, texts, asked)
        also_PG = further([prompt for prompt, _ in prompts], responses_PG, config)
        groups = build_groups(
            prompts, responses_PG, scores.rewards, now, also_PG, config.sample.anchors
        )
        self.end_stage("verify")
        self.collected_groups += groups
        self.scores = self.scores.and_then(scores)
        return groups


def sample_groups(
    collector: RolloutCollector,
    train_set: Sequence[EncodedPrompt],
    config: RunConfig,
    iteration: int,
) -> RefilledBatch:
    """The groups of iteration `iteration`, and those that were drawn and dropped on the way."""
    prompts = pick_prompts(train_set, config, iteration)
    others = replacement_prompts(
        train_set, [prompt for prompt, _ in prompts], config.loop.seed, iteration
    )
    return refill_groups(
        collector.collect_groups(prompts),
        lambda missing: collector.collect_groups(list(islice(others, missing))),
        config.sample.refills,
    )


def pick_prompts(
    train_set: Sequence[EncodedPrompt], config: RunConfig, iteration: int
) -> list[EncodedPrompt]:
    """The prompts of iteration `iteration`: shuffled epochs, an incomplete last iteration left out."""
    P = config.sample.prompts
    epoch, place = divmod(iteration - 1, len(train_set) // P)
    order = rng_for(config.loop.seed, "prompts", epoch).permutation(len(train_set))
    return [train_set[i] for i in order[place * P : (place + 1) * P]]


def draw_responses(
    sampler_binding: SamplerBinding,
    prompts: Sequence[EncodedPrompt],
    config: RunConfig,
    iteration: int,
    *,
    prompts_before: int = 0,
) -> list[list[Response]]:
    """G responses for every prompt, each from a seed of its own; a part at a time if need be.

    `prompts_before` prompts of the iteration were drawn before these.
    """
    P, G = len(prompts), config.sample.group_size
    seeds_PG = [
        [seed_for(config.loop.seed, "sample", iteration, p * G + g) for g in range(G)]
        for p in range(prompts_before, prompts_before + P)
    ]

    def parts(size: int) -> list[list[Response]]:
        drawn: list[list[Response]] = []
        for start in range(0, P, size):
            part = slice(start, start + size)
            asked = (
                sampler_binding.policy,
                prompts[part],
                seeds_PG[part],
                config.sample,
                sampler_binding.sample,
            )
            if config.sample.anchors:
                drawn += sample_with_anchors(*asked)
            else:
                drawn += sample_responses(*asked, sampler_binding.episodes)
        return drawn

    at_once = sampler_binding.prompts_per_draw or MicroBatch(P, caption=PROMPTS_CAPTION)
    return at_once.run_fitting(parts, smallest=1, total=P, remedy=GENERAL_REMEDY)
