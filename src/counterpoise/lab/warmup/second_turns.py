"""Second turns to learn from: the policy's own wrong turn, what is said to it, a solution.

    prompt     problem, the wrong turn, what the environment says to it           read
    response   the worked solution of the problem                                 learned

A model that was never answered does not know what to do with an answer: the embedded one is right
in 2 of 100 second tries (docs/turns.md). One first turn is drawn for every problem, by the weights
that the warm-up starts from; what was right gives no second turn.
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
    """Problems whose first turn was wrong, and all that comes before the second."""
    if config.task.environment == "none":
        return []
    environment = ENVIRONMENTS.load(config.task.environment)(1)
    asked = [(prompt, policy.encode(prompt.problem)) for prompt in prompts]
    seeds = [[seed_for(config.loop.seed, "second turns", i)] for i in range(len(asked))]
    first = EpisodePlayer(environment, verifier)
    played = first.play(policy, asked, seeds, config.sample, sample)
    found = []
    for (prompt, tokens), (response,) in zip(asked, played, strict=True):
        if response.finished and (feedback := response.turns[0].feedback):
            told = policy.encode_reply(environment.ask(prompt, feedback))
            found.append((prompt, np.concatenate((tokens, response.tokens, told))))
    return found
