"""Split problems into training and held-out ones by the hash of their ids, without shared texts."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from counterpoise.errors import PoiseError
from counterpoise.types import Prompt


def hold_out(
    prompts: Sequence[Prompt], count: int, where: str
) -> tuple[list[Prompt], list[Prompt]]:
    """(train, held out), where the held-out prompts are the `count` with the lowest blake2b(id)."""
    if count >= len(prompts):
        raise PoiseError(
            f"{where}: holding out {count} of {len(prompts)} records leaves none to train on; "
            "lower task.heldout"
        )
    # By hash, so that the choice does not depend on the order or on other records.
    heldout = sorted(prompts, key=lambda prompt: blake2b(prompt.id.encode()).digest())[:count]
    return drop_heldout_texts(prompts, heldout, where), heldout


def drop_heldout_texts(
    prompts: Sequence[Prompt], heldout: Sequence[Prompt], where: str
) -> list[Prompt]:
    """`prompts` without those whose text, ignoring white space and case, is in `heldout`."""
    heldout_texts = {normalize_problem(prompt.problem) for prompt in heldout}
    train = [prompt for prompt in prompts if normalize_problem(prompt.problem) not in heldout_texts]
    if not train:
        raise PoiseError(f"{where}: every training problem is also held out; use other files")
    return train


def normalize_problem(problem: str) -> str:
    """The text without differences in white space and case: equal for the same problem."""
    return " ".join(problem.split()).casefold()
