"""The interface between importers and `poise import`: sources, their steps and rollouts.

A source is a trainer whose rollouts we can read; it is recognised by the names of its files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from counterpoise.batch.plan_file import LARGEST_REWARD
from counterpoise.errors import PoiseError
from counterpoise.variants import IMPORTERS


@dataclass(frozen=True, slots=True)
class ImportedRollout:
    """One rollout as its source wrote it; None for what the source does not write.

    Example:
        ImportedRollout(group="3:trl/5f0c2a91d3b7", prompt_id="trl/5f0c2a91d3b7", reward=1.0,
                        prompt="Ana has ...", response="... \\boxed{11}")
    """

    group: str  # same prompt, same step
    prompt_id: str  # the same in every step
    reward: float
    prompt: str | None = None
    response: str | None = None
    answer: str = ""
    prompt_tokens: list[int] | None = None  # [S]
    response_tokens: list[int] | None = None  # [T], the trained ones
    sampled_logprobs: list[float] | None = None  # [T]
    several_turns: bool = False  # the model saw more than prompt + response


@dataclass(frozen=True, slots=True)
class ImportedStep:
    """The rollouts of one training step, with the step number of its source.

    Example:
        ImportedStep(number=3, rollouts=(r0, r1, ...))
    """

    number: int
    rollouts: tuple[ImportedRollout, ...]


AddNote = Callable[[str], None]  # receives a sentence that the user should read


@dataclass(frozen=True, slots=True)
class RolloutSource:
    """A trainer whose rollouts can be read.

    Example:
        RolloutSource("verl", "STEP.jsonl of trainer.rollout_data_dir", find_files, read_steps,
                      has_tokens=False)
    """

    title: str
    file_description: str  # the files it writes, in words
    find_files: Callable[[Path], list[Path]]  # its files at a path, by step; [] if none
    read_steps: Callable[[Sequence[Path], str, AddNote], Iterator[ImportedStep]]
    has_tokens: bool  # False: texts only, so counting tokens takes a tokenizer


def recognise_source(path: Path, name: str | None = None) -> tuple[RolloutSource, list[Path]]:
    """The source of the files at `path`: the named one, or else the only match."""
    if not path.exists():
        raise PoiseError(f"{path} does not exist: check the path")
    if name is not None:
        source = _load_source(name)
        files = source.find_files(path)
        if not files:
            raise PoiseError(
                f"{path} holds no rollouts of {source.title}: {source.file_description}"
            )
        return source, files
    sources = {importer: _load_source(importer) for importer in IMPORTERS}
    matches = {name: files for name in sources if (files := sources[name].find_files(path))}
    if not matches:
        readable = "; ".join(
            f"{source.title}: {source.file_description}" for source in sources.values()
        )
        raise PoiseError(f"{path} holds no rollouts that can be read ({readable})")
    if len(matches) > 1:
        names = " and of ".join(matches)
        raise PoiseError(
            f"{path} holds rollouts of {names}: choose by --from {next(iter(matches))}"
        )
    ((only_match, files),) = matches.items()
    return sources[only_match], files


def identify_trainer(path: Path) -> str:
    """The trainer whose rollouts lie in the folder, judged by file names; "" if there is none."""
    sources = map(_load_source, IMPORTERS)
    return next((source.title for source in sources if source.find_files(path)), "")


def _load_source(name: str) -> RolloutSource:
    return cast(RolloutSource, IMPORTERS.load(name))


def hash_prompt(prompt: str) -> str:
    """A short id of a prompt's text: sources give prompts no id that lasts across steps.

    Example:
        >>> name_of("Ana has 3 pens.")
        '6900703b6ffd'
    """
    return hashlib.sha256(prompt.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def check_reward(reward: object, where: str) -> float:
    """The reward as a float; it must be finite and within the range of `poise plan`."""
    if isinstance(reward, bool) or not isinstance(reward, int | float):
        raise PoiseError(f"{where}: the reward {reward!r} is not a number: remove that rollout")
    if not abs(reward) <= LARGEST_REWARD:  # also true for NaN
        raise PoiseError(f"{where}: the reward {reward!r} is not finite: remove that rollout")
    return float(reward)
