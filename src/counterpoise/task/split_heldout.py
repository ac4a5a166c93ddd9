"""Keeping problems out of training: by the hash of their ids, and never the same text twice."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from counterpoise.errors import PoiseError
from counterpoise.types import Prompt


def hold_out(
    prompts: Sequence[Prompt], count: int, where: str
) -> tuple[list[Prompt], list[Prompt]]:
    """(train, held out): the `count` lowest by blake2b(id), and the rest without their texts."""
    if count >= len(prompts):
        raise PoiseError(
            f"{where}: holding out {count} of {len(prompts)} records leaves none to train on; "
            "lower task.heldout"
        )
    kept = sorted(prompts, key=lambda prompt: blake2b(prompt.id.encode()).digest())[:count]
    return drop_heldout_texts(prompts, kept, where), kept


def drop_heldout_texts(
    prompts: Sequence[Prompt], kept: Sequence[Prompt], where: str
) -> list[Prompt]:
    """`prompts` less those whose problem text, white space and case aside, is in `kept`."""
    texts = {normalize_problem(prompt.problem) for prompt in kept}
    train = [prompt for prompt in prompts if normalize_problem(prompt.problem) not in texts]
    if not train:
        raise PoiseError(f"{where}: every training problem is also held out; use other files")
    return train


def normalize_problem(problem: str) -> str:
    """What makes two problem texts the same one."""
    return " ".join(problem.split()).casefold()
