"""Samples of a step -> their groups and texts.

A prompt is all that stands before the first trained token. Samples with equal prompt tokens are a
group; NeMo-RL itself takes them for one when it computes advantages. One exception: of prompts that
are too long NeMo-RL keeps 4 tokens of each message and takes all their samples out of the loss
(data/processors.py). The tokens of such prompts can be equal, so there the texts must be equal too.

The messages of a sample are those of its prompt and then, for each turn, the policy's and the
environment's: 2 for each turn. Files say neither the roles nor the turns. The mask shows the turns,
except where an environment's message has no tokens; so the number of a prompt's messages is the
smallest that any sample of its group gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from counterpoise.hosts.importing.formats import hash_prompt, hash_tokens
from counterpoise.hosts.nemo_rl.samples import Sample
from counterpoise.types import Turn

TOKENS_OF_CUT_MESSAGE = 4


@dataclass(frozen=True, slots=True)
class SampleTexts:
    """Which prompt a sample answers, and the texts where they are certain."""

    prompt_id: str
    prompt: str | None
    response: str | None
    turns: tuple[Turn, ...]


def name_prompts(samples: Sequence[Sample]) -> list[SampleTexts]:
    """The prompt and the texts of each sample, in their order."""
    indices_of_tokens: dict[tuple[str, str], list[int]] = {}
    for index, sample in enumerate(samples):
        key = (sample.agent, hash_tokens(sample.spans.prompt))
        indices_of_tokens.setdefault(key, []).append(index)
    texts: dict[int, SampleTexts] = {}
    for (agent, token_hash), indices in indices_of_tokens.items():
        members = [samples[index] for index in indices]
        prompts = _prompt_messages(members)
        texts_differ = len({tuple(prompt) for prompt in prompts if prompt is not None}) > 1
        may_be_cut = not any(sample.is_trained for sample in members)
        for index, sample, prompt in zip(indices, members, prompts, strict=True):
            prompt_hash = token_hash
            if may_be_cut and prompt is not None and (texts_differ or _is_short(sample, prompt)):
                prompt_hash = hash_prompt("\0".join([token_hash, *prompt]))
            is_certain = may_be_cut or not texts_differ
            prompt_id = f"{agent or 'nemo-rl'}/{prompt_hash}"
            texts[index] = _texts(prompt_id, sample, prompt if is_certain else None)
    return [texts[index] for index in range(len(samples))]


def _is_short(sample: Sample, prompt: list[str]) -> bool:
    return len(sample.spans.prompt) <= TOKENS_OF_CUT_MESSAGE * len(prompt)


def _prompt_messages(members: Sequence[Sample]) -> list[list[str] | None]:
    """The messages of each sample's prompt; None where there are no texts, or too few."""
    numbers = [
        len(sample.messages) - 2 * sample.fewest_turns for sample in members if sample.messages
    ]
    number = min(numbers, default=0)
    return [
        sample.messages[:number]
        if number > 0 and sample.messages and (len(sample.messages) - number) % 2 == 0
        else None
        for sample in members
    ]


def _texts(prompt_id: str, sample: Sample, prompt: list[str] | None) -> SampleTexts:
    if prompt is None:
        return SampleTexts(prompt_id, None, None, sample.spans.turns)
    answers = sample.messages[len(prompt) :: 2]
    replies = sample.messages[len(prompt) + 1 :: 2]
    turns = sample.spans.turns
    if len(turns) == len(answers):
        # The reply to the last turn is not part of the sequence that was trained.
        feedback = [*replies[: len(turns) - 1], ""]
        turns = tuple(
            replace(turn, feedback=text) for turn, text in zip(turns, feedback, strict=True)
        )
    return SampleTexts(prompt_id, "".join(prompt), "".join(answers), turns)
