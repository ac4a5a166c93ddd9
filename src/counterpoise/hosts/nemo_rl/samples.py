"""The samples of a step: the lines of train_data_stepN.jsonl, their groups and their texts.

    {"content": [["How many?", "4", "Environment: correct"]], "rewards": [1.0], "idx": 0,
     "token_ids": [[5, 6, 7, 8, 0, 0]], "token_loss_mask": [[0, 0, 1, 0, 0, 0]], ...}

Every field but `idx` is a list of one item: the writer cuts a batch of columns into batches of one
row.

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
from typing import Any

from counterpoise.errors import PoiseError
from counterpoise.hosts.importing.formats import check_reward, hash_prompt, hash_tokens
from counterpoise.hosts.importing.token_spans import (
    TokenSpans,
    is_token_list,
    select_numbers,
    split_by_mask,
)
from counterpoise.types import Turn

KNOWN_FORMAT = "NeMo-RL 0.6.0 to 7ea279ab"
NUMBER_LISTS = ("advantages", "generation_logprobs", "prev_logprobs")
REQUIRED_FIELDS = (
    "idx", "rewards", "input_lengths", "token_ids", "token_loss_mask", "sample_loss_mask",
    *NUMBER_LISTS,
)  # fmt: skip
TOKENS_OF_CUT_MESSAGE = 4


@dataclass(frozen=True, slots=True)
class Sample:
    """One row of a training batch.

    Its numbers are those of the trained tokens.
    """

    spans: TokenSpans
    reward: float
    is_trained: bool  # False: its weight in the loss is 0
    advantages_T: list[float]
    sampled_logprobs: list[float]
    trainer_logprobs: list[float]
    messages: list[str]  # [] where the texts are not written
    agent: str  # of NeMo Gym; "" without it

    @property
    def fewest_turns(self) -> int:
        """Turns that the mask tells apart; more if an environment's message has no tokens."""
        return max(1, len(self.spans.turns))


def parse_sample(record: dict[str, Any], index: int, where: str) -> Sample | None:
    """The sample of a line, the `index`-th of its file; None if no token of it was trained."""
    if record["idx"] != index or isinstance(record["idx"], bool):
        raise PoiseError(
            f"{where}: idx is {str(record['idx'])[:40]!r} and not {index}: lines are missing or in "
            "another order; copy the file again"
        )
    row = {name: _only_item(record, name, where) for name in REQUIRED_FIELDS[1:]}
    tokens, mask, length = row["token_ids"], row["token_loss_mask"], row["input_lengths"]
    if not is_token_list(tokens):
        raise PoiseError(f"{where}: token_ids is no list of token ids: written by another tool")
    if not isinstance(mask, list) or not set(map(type, mask)) <= {bool, int, float}:
        raise PoiseError(f"{where}: token_loss_mask is no list of 0 and 1: written by another tool")
    if not isinstance(length, int) or not 0 <= length <= min(len(tokens), len(mask)):
        raise PoiseError(
            f"{where}: input_lengths is {str(length)[:40]!r}, with {len(tokens)} token_ids and "
            f"{len(mask)} of token_loss_mask: written by another tool"
        )
    weight = row["sample_loss_mask"]
    if not isinstance(weight, int | float):
        raise PoiseError(f"{where}: sample_loss_mask is {weight!r}, not a number: remove the file")
    reward = row["rewards"]
    if "filtered_rewards" in record:
        # Dynamic sampling: `rewards` are those of all that was sampled, not in the order of rows.
        reward = _only_item(record, "filtered_rewards", where)
    # Padding is on the right.
    spans = split_by_mask(tokens[:length], mask[:length])
    if spans is None:
        return None
    numbers = {name: select_numbers(row[name], spans.trained_positions) for name in NUMBER_LISTS}
    missing = [name for name, values in numbers.items() if values is None]
    if missing:
        raise PoiseError(
            f"{where}: {missing[0]} is no list of numbers over all trained tokens: copy the file "
            "again"
        )
    return Sample(
        spans=spans,
        reward=check_reward(reward, where),
        is_trained=weight > 0,
        advantages_T=numbers["advantages"] or [],
        sampled_logprobs=numbers["generation_logprobs"] or [],
        trainer_logprobs=numbers["prev_logprobs"] or [],
        messages=_messages(record),
        agent=_agent_name(record),
    )


def _only_item(record: dict[str, Any], name: str, where: str) -> Any:
    values = record[name]
    if not isinstance(values, list) or len(values) != 1:
        raise PoiseError(
            f"{where}: '{name}' is not a list of one item: written by another version or tool; the "
            f"format of {KNOWN_FORMAT} can be read"
        )
    return values[0]


def _messages(record: dict[str, Any]) -> list[str]:
    """The contents of its messages; [] with NeMo Gym, whose messages have tokens only."""
    contents = record.get("content")
    messages = contents[0] if isinstance(contents, list) and len(contents) == 1 else None
    if not isinstance(messages, list) or not set(map(type, messages)) <= {str}:
        return []
    return messages if any(messages) else []


def _agent_name(record: dict[str, Any]) -> str:
    references = record.get("agent_ref")
    reference = references[0] if isinstance(references, list) and references else None
    name = reference.get("name") if isinstance(reference, dict) else None
    return name if isinstance(name, str) else ""


# -- groups and texts of a step --------------------------------------------------------------------


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
