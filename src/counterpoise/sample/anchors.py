"""CRPO's generic-response anchors: group members sampled from a less informative prompt.

    group    G - a responses to the problem, then a responses to its generic text (Prompt.generic)

All G responses are verified against the same answer and share one baseline. An anchor lacks the
information that a good answer needs, so the other responses should beat it, and even a group whose
other responses are all correct keeps a training signal.

The update treats an anchor like any other response to the problem: its old log-probabilities are
computed with the problem as the prompt, because the terms that a group shares cancel only under one
common prompt. Of the sampler's log-probabilities, given the generic text, only the mean is kept
(`Rollout.generic_logprob`, for `credit.weights=crpo`); the anchor's own are stored as nan.
arXiv:2605.25511 uses G = 8, a = 1 and, as generic text, the prompt without its character
description; the released code instead trains an anchor with the text that it was sampled from as
its prompt.
"""

from __future__ import annotations

from collections.abc import Sequence

from counterpoise.config import SampleConfig
from counterpoise.errors import PoiseError
from counterpoise.model.load import Policy
from counterpoise.sample.sampler import SampleFunction
from counterpoise.types import Ints, Prompt, Response


def check_generic_texts(prompts: Sequence[Prompt], config: SampleConfig) -> None:
    """Raise before sampling starts if anchors are requested and a prompt has no generic text."""
    without_generic = next((prompt for prompt in prompts if not prompt.generic), None)
    if config.anchors and without_generic:
        raise PoiseError(
            f"sample.anchors: prompt '{without_generic.id}' has no generic text: name its field in "
            "task.generic_field, or set sample.anchors=0"
        )


def sample_with_anchors(
    policy: Policy,
    prompts: Sequence[tuple[Prompt, Ints]],
    seeds_PG: Sequence[Sequence[int]],
    config: SampleConfig,
    sample: SampleFunction,
) -> list[list[Response]]:
    """Like `sample`, but the last `config.anchors` responses of a group answer the generic text."""
    num_informed = config.group_size - config.anchors
    prompt_tokens = [tokens for _, tokens in prompts]
    generic_tokens = [policy.encode(prompt.generic) for prompt, _ in prompts]
    informed_PG = sample(
        policy, prompt_tokens, [seeds[:num_informed] for seeds in seeds_PG], config
    )
    anchors_PG = sample(
        policy, generic_tokens, [seeds[num_informed:] for seeds in seeds_PG], config
    )
    return [
        [*informed_G, *anchors_G]
        for informed_G, anchors_G in zip(informed_PG, anchors_PG, strict=True)
    ]
