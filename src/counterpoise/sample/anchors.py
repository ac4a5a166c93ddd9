"""CRPO's generic-response anchors: what the policy says when it is not told what makes the problem.

    group    G - a responses to the problem, then a responses to its generic text (Prompt.generic)

All are verified against the same answer and share a baseline, so an anchor, which lacks what a good
answer needs, is a member that the others are to beat: also in a group that is all right otherwise.
In training it is a response to the problem like the others, with old log-probabilities after the
problem: a group cancels what it shares only after one prompt. What the sampler said of it after
the generic text is not used. arXiv:2605.25511, where G = 8, a = 1 and the generic text is the
prompt without its character; the released code trains an anchor after the text it was drawn from.
"""

from __future__ import annotations

from collections.abc import Sequence

from counterpoise.config import SampleConfig
from counterpoise.errors import PoiseError
from counterpoise.model.load import Policy
from counterpoise.sample.sampler import SampleFunction
from counterpoise.types import Ints, Prompt, Response


def check_generic_texts(prompts: Sequence[Prompt], config: SampleConfig) -> None:
    """Before anything is drawn: anchors need a text of their own."""
    missing = next((prompt for prompt in prompts if not prompt.generic), None)
    if config.anchors and missing:
        raise PoiseError(
            f"sample.anchors: prompt '{missing.id}' has no generic text: name its field by "
            "task.generic_field, or set sample.anchors=0"
        )


def sample_with_anchors(
    policy: Policy,
    prompts: Sequence[tuple[Prompt, Ints]],
    seeds_PG: Sequence[Sequence[int]],
    config: SampleConfig,
    sample: SampleFunction,
) -> list[list[Response]]:
    """As `sample`; the last `config.anchors` responses of a prompt come after its generic text."""
    own = config.group_size - config.anchors
    tokens, generic = zip(*((t, policy.encode(p.generic)) for p, t in prompts), strict=True)
    informed = sample(policy, tokens, [seeds[:own] for seeds in seeds_PG], config)
    anchors = sample(policy, generic, [seeds[own:] for seeds in seeds_PG], config)
    return [[*some, *others] for some, others in zip(informed, anchors, strict=True)]
