"""Training examples for second turns: the policy's wrong first turn, feedback, and a solution.

    prompt     problem, the wrong turn, the feedback of the environment           not trained
    response   the worked solution of the problem                                 trained

A model that never saw feedback cannot use it: the embedded one is hardly ever right in its second
try (docs/guide/your-data-and-reward.md). One first turn is sampled for every problem from the
weights that the warm-up starts from; a right first turn gives no example.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from counterpoise.config import RunConfig
from counterpoise.model.load import Policy
from counterpoise.sample.episodes import make_episode_player
from counterpoise.sample.native import sample
from counterpoise.seeds import seed_for
from counterpoise.types import Ints, Prompt
from counterpoise.verify.plugin_reward import training_context
from counterpoise.verify.scores import Verifier


def second_turns(
    policy: Policy, prompts: Sequence[Prompt], config: RunConfig, verifier: Verifier
) -> list[tuple[Prompt, Ints]]:
    """The problems with a wrong first turn, each with all tokens before the second turn."""
    first_turns = make_episode_player(replace(config.task, turns=1), verifier)
    if first_turns is None:
        return []
    encoded_prompts = [(prompt, policy.encode(prompt)) for prompt in prompts]
    seeds = [[seed_for(config.loop.seed, "second turns", i)] for i in range(len(encoded_prompts))]
    responses = first_turns.play(
        policy, encoded_prompts, seeds, config.sample, sample, training_context(config, 0)
    )
    examples = []
    for (prompt, tokens), (response,) in zip(encoded_prompts, responses, strict=True):
        # A response that was cut off has no proper end for the feedback to follow.
        if response.finished and (feedback := response.turns[0].feedback):
            reply = policy.encode_reply(first_turns.environment.next_message(prompt, feedback))
            first_tokens = tokens if response.prompt_tokens is None else response.prompt_tokens
            examples.append((prompt, np.concatenate((first_tokens, response.tokens, reply))))
    return examples
