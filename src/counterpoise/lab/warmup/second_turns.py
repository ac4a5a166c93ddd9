"""Training examples for second turns: the policy's wrong first turn, feedback, and a solution.

    prompt     problem, the wrong turn, the feedback of the environment           not trained
    response   the worked solution of the problem                                 trained

A model that never saw feedback cannot use it: the embedded one is right in 2 of 100 second tries
(docs/guide/your-data-and-reward.md). One first turn is sampled for every problem from the weights
that the warm-up starts from; a right first turn gives no example.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from counterpoise.config import RunConfig
from counterpoise.model.load import Policy
from counterpoise.sample.episodes import EpisodePlayer
from counterpoise.sample.native import sample
from counterpoise.seeds import seed_for
from counterpoise.types import Ints, Prompt
from counterpoise.variants import ENVIRONMENTS
from counterpoise.verify.scores import Verifier


def second_turns(
    policy: Policy, prompts: Sequence[Prompt], config: RunConfig, verifier: Verifier
) -> list[tuple[Prompt, Ints]]:
    """The problems with a wrong first turn, each with all tokens before the second turn."""
    if config.task.environment == "none":
        return []
    environment = ENVIRONMENTS.load(config.task.environment)(1)  # one turn, then feedback
    encoded_prompts = [(prompt, policy.encode(prompt)) for prompt in prompts]
    seeds = [[seed_for(config.loop.seed, "second turns", i)] for i in range(len(encoded_prompts))]
    first_turns = EpisodePlayer(environment, verifier)
    responses = first_turns.play(policy, encoded_prompts, seeds, config.sample, sample)
    examples = []
    for (prompt, tokens), (response,) in zip(encoded_prompts, responses, strict=True):
        # A response that was cut off has no proper end for the feedback to follow.
        if response.finished and (feedback := response.turns[0].feedback):
            reply = policy.encode_reply(environment.ask(prompt, feedback))
            examples.append((prompt, np.concatenate((tokens, response.tokens, reply))))
    return examples
