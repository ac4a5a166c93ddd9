"""Stages 1 and 2 bound to a run: an iteration's prompts, their responses, their groups.

One round is the rule. With dynamic sampling (`sample/dynamic_sampling.py`) there may be more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from counterpoise.config import RunConfig
from counterpoise.model.fit_memory import NO_MEMORY, PROMPTS, MicroBatch
from counterpoise.model.load import Policy
from counterpoise.sample.anchors import sample_with_anchors
from counterpoise.sample.build_groups import gather
from counterpoise.sample.dynamic_sampling import Refilled, further_prompts, refill
from counterpoise.sample.episodes import Episodes, respond
from counterpoise.sample.native import sample as native
from counterpoise.sample.sampler import Sample
from counterpoise.seeds import rng_for, seed_for
from counterpoise.types import Group, Ints, Prompt, Response
from counterpoise.verify.extra_rewards import further
from counterpoise.verify.scores import Scores, Verifier, verified

Encoded = tuple[Prompt, Ints]  # a prompt and its tokens


@dataclass(frozen=True, slots=True)
class Drawer:
    """Who draws, by which weights, and how much at once."""

    policy: Policy
    at_once: MicroBatch | None = None  # prompts; None: all of them until memory runs out
    sample: Sample = native
    episodes: Episodes | None = None  # who answers; None: nobody


class Asked:
    """Draws and verifies the groups of one iteration, round after round, and keeps them all."""

    def __init__(
        self, drawer: Drawer, config: RunConfig, verifier: Verifier, lap: Callable[[str], None],
        now: int,
    ) -> None:  # fmt: skip
        """`lap` is told when a stage has ended."""
        self.drawer, self.config, self.verifier = drawer, config, verifier
        self.lap, self.now = lap, now
        self.all: list[Group] = []  # in the order they were drawn
        self.scores = Scores([])

    def groups(self, prompts: Sequence[Encoded]) -> list[Group]:
        """Those of one round; none where there are no prompts."""
        if not prompts:
            return []
        config, now = self.config, self.now
        G = config.sample.group_size
        responses_PG = draw(self.drawer, prompts, config, now, first=len(self.all))
        self.lap("sample")
        texts = [response.text for responses in responses_PG for response in responses]
        asked = [prompt for prompt, _ in prompts for _ in range(G)]
        scores = verified(self.verifier, texts, asked)
        also_PG = further([prompt for prompt, _ in prompts], responses_PG, config)
        groups = gather(prompts, responses_PG, scores.rewards, now, also_PG, config.sample.anchors)
        self.lap("verify")
        self.all += groups
        self.scores = self.scores.and_then(scores)
        return groups


def sample_groups(
    asked: Asked, train_set: Sequence[Encoded], config: RunConfig, now: int
) -> Refilled:
    """The groups of iteration `now`, and those that were drawn and dropped on the way."""
    prompts = pick_prompts(train_set, config, now)
    others = further_prompts(train_set, [prompt for prompt, _ in prompts], config.loop.seed, now)
    return refill(
        asked.groups(prompts),
        lambda missing: asked.groups(list(islice(others, missing))),
        config.sample.refills,
    )


def pick_prompts(train_set: Sequence[Encoded], config: RunConfig, now: int) -> list[Encoded]:
    """The prompts of iteration `now`: shuffled epochs, an incomplete last iteration left out."""
    P = config.sample.prompts
    epoch, place = divmod(now - 1, len(train_set) // P)
    order = rng_for(config.loop.seed, "prompts", epoch).permutation(len(train_set))
    return [train_set[i] for i in order[place * P : (place + 1) * P]]


def draw(
    drawer: Drawer, prompts: Sequence[Encoded], config: RunConfig, now: int, *, first: int = 0
) -> list[list[Response]]:
    """G responses for every prompt, each from a seed of its own; a part at a time if need be.

    `first` prompts of the iteration were drawn before these.
    """
    P, G = len(prompts), config.sample.group_size
    seeds_PG = [
        [seed_for(config.loop.seed, "sample", now, p * G + g) for g in range(G)]
        for p in range(first, first + P)
    ]

    def parts(size: int) -> list[list[Response]]:
        drawn: list[list[Response]] = []
        for start in range(0, P, size):
            part = slice(start, start + size)
            asked = drawer.policy, prompts[part], seeds_PG[part], config.sample, drawer.sample
            if config.sample.anchors:
                drawn += sample_with_anchors(*asked)
            else:
                drawn += respond(*asked, drawer.episodes)
        return drawn

    at_once = drawer.at_once or MicroBatch(P, what=PROMPTS)
    return at_once.fitting(parts, least=1, most=P, remedy=NO_MEMORY)
