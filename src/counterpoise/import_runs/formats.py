"""What a source is, what its reader hands over, and how a source is recognised by its files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from counterpoise.batch.plan_rollouts import LARGEST_REWARD
from counterpoise.errors import PoiseError
from counterpoise.variants import IMPORTERS


@dataclass(frozen=True, slots=True)
class Sample:
    """One rollout as its source wrote it; None is what the source does not say.

    Example:
        Sample(group="3:trl/5f0c2a91d3b7", prompt_id="trl/5f0c2a91d3b7", reward=1.0,
               prompt="Ana has ...", response="... \\boxed{11}")
    """

    group: str  # same prompt, same step
    prompt_id: str  # the same in every step
    reward: float
    prompt: str | None = None
    response: str | None = None
    answer: str = ""
    prompt_tokens: list[int] | None = None  # [S]
    response_tokens: list[int] | None = None  # [T], those that were trained
    sampled_logprobs: list[float] | None = None  # [T]
    several_turns: bool = False  # prompt + response is not all that the model saw


@dataclass(frozen=True, slots=True)
class Step:
    """The rollouts of one training step, numbered as its source numbered it.

    Example:
        Step(number=3, samples=(s0, s1, ...))
    """

    number: int
    samples: tuple[Sample, ...]


Tell = Callable[[str], None]  # takes a sentence the user should read


@dataclass(frozen=True, slots=True)
class Source:
    """A trainer whose rollouts can be read.

    Example:
        Source("verl", "STEP.jsonl of trainer.rollout_data_dir", find, read, has_tokens=False)
    """

    title: str
    files: str  # what it writes, in words
    find: Callable[[Path], list[Path]]  # its files at a path, in the order of steps; [] if none
    read: Callable[[Sequence[Path], str, Tell], Iterator[Step]]  # files, --reward, notes
    has_tokens: bool  # False: texts only, so that counting tokens takes a tokenizer


def recognise(path: Path, name: str | None = None) -> tuple[Source, list[Path]]:
    """The source of the files at `path`: the one that is named, or the only one that fits."""
    if not path.exists():
        raise PoiseError(f"{path} does not exist: check the path")
    if name is not None:
        source = _load(name)
        files = source.find(path)
        if not files:
            raise PoiseError(f"{path} holds no rollouts of {source.title}: {source.files}")
        return source, files
    every = {each: _load(each) for each in IMPORTERS}
    found = {each: files for each, s in every.items() if (files := s.find(path))}
    if not found:
        known = "; ".join(f"{source.title}: {source.files}" for source in every.values())
        raise PoiseError(f"{path} holds no rollouts that can be read ({known})")
    if len(found) > 1:
        each = " and of ".join(found)
        raise PoiseError(f"{path} holds rollouts of {each}: choose by --from {next(iter(found))}")
    ((only, files),) = found.items()
    return every[only], files


def wrote(path: Path) -> str:
    """The trainer whose rollouts lie in the folder, by the names of its files; "": none's."""
    return next((s.title for s in map(_load, IMPORTERS) if s.find(path)), "")


def _load(name: str) -> Source:
    return cast(Source, IMPORTERS.load(name))


def name_of(prompt: str) -> str:
    """A short name for a prompt: sources name none that lasts from step to step.

    Example:
        >>> name_of("Ana has 3 pens.")
        '6900703b6ffd'
    """
    return hashlib.sha256(prompt.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def check_reward(reward: object, where: str) -> float:
    """A finite number that `poise plan` takes."""
    if isinstance(reward, bool) or not isinstance(reward, int | float):
        raise PoiseError(f"{where}: the reward {reward!r} is not a number: remove that rollout")
    if not abs(reward) <= LARGEST_REWARD:  # nan too
        raise PoiseError(f"{where}: the reward {reward!r} is not finite: remove that rollout")
    return float(reward)
