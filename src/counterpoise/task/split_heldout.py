"""Split problems into training and held-out ones by the hash of their ids, without shared texts."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

from counterpoise.errors import PoiseError
from counterpoise.types import Prompt


class PromptSplit(NamedTuple):
    """Training and held-out prompts; no problem is in both."""

    train: list[Prompt]
    heldout: list[Prompt]
    repeats: int  # training prompts that were dropped because they repeat a held-out text


def split_prompts(
    prompts: Sequence[Prompt], heldout: Sequence[Prompt] | int, where: str
) -> PromptSplit:
    """Split off the held-out prompts: those given, or as many of `prompts` as `heldout` says."""
    if not isinstance(heldout, int):
        train = drop_heldout_texts(prompts, heldout, where)
        return PromptSplit(train, list(heldout), len(prompts) - len(train))
    train, chosen_prompts = hold_out(prompts, heldout, where)
    return PromptSplit(train, chosen_prompts, len(prompts) - len(train) - len(chosen_prompts))


def hold_out(
    prompts: Sequence[Prompt], count: int, where: str
) -> tuple[list[Prompt], list[Prompt]]:
    """(train, held out), where the held-out prompts are the `count` with the lowest blake2b(id)."""
    if count >= len(prompts):
        raise PoiseError(
            f"{where}: holding out {count} of {len(prompts)} records leaves none to train on; "
            "lower task.heldout"
        )
    # By hash, so that the choice does not depend on the order, and further records change few of
    # the held-out prompts.
    heldout = sorted(prompts, key=lambda prompt: blake2b(prompt.id.encode()).digest())[:count]
    return drop_heldout_texts(prompts, heldout, where), heldout


def drop_heldout_texts(
    prompts: Sequence[Prompt], heldout: Sequence[Prompt], where: str
) -> list[Prompt]:
    """`prompts` without those whose text, ignoring white space and case, is in `heldout`."""
    heldout_texts = {normalize_problem(prompt.problem) for prompt in heldout}
    train = [prompt for prompt in prompts if normalize_problem(prompt.problem) not in heldout_texts]
    if not train:
        raise PoiseError(
            f"{where}: every training problem is also held out; hold out fewer, or train on other "
            "problems"
        )
    return train


def normalize_problem(problem: str) -> str:
    """The text without differences in white space and case: equal for the same problem."""
    return " ".join(problem.split()).casefold()
