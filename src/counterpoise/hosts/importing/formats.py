"""The interface between importers and `poise import`: sources, their steps and rollouts.

A source is a trainer whose rollouts we can read; it is recognised by its files and what is in them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, cast

import pyarrow as pa

from counterpoise.batch.plan_file import LARGEST_REWARD
from counterpoise.errors import PoiseError
from counterpoise.hosts.importing.notes import ImportNotes
from counterpoise.types import Turn
from counterpoise.variants import IMPORTERS

MOST_SUBFOLDERS = 50  # that are searched for a suggestion
NAMED_SUBFOLDERS = 8  # in it


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
    answer: str = ""  # the reference answer
    prompt_tokens: list[int] | None = None  # [S]
    response_tokens: list[int] | None = None  # [T], the trained ones
    num_tokens: int | None = None  # T, of sources that write how many tokens there are, not which
    sampled_logprobs: list[float] | None = None  # [T]
    finished: bool | None = None  # False: cut off
    # What follows the prompt, where an environment spoke too and no tokens are known: (whether the
    # policy wrote it, text). --tokenizer makes tokens and turns of it.
    segments: tuple[tuple[bool, str], ...] = ()
    turns: tuple[Turn, ...] = ()  # of an episode
    advantage: float | None = None  # of the whole rollout
    advantages_T: list[float] | None = None  # [T]
    trainer_logprobs: list[float] | None = None  # [T], before the update
    entropies: list[float] | None = None  # [T], by the trainer
    # Copied as they are into its line of rollouts/.
    further_fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def length(self) -> int:
        """Trained tokens of the response; 0 if not even their number is known."""
        return self.num_tokens or len(self.response_tokens or ())


@dataclass(frozen=True, slots=True)
class Schedule:
    """Which rollouts really shared an optimizer step, and where each of them was computed.

    Example:
        Schedule(optimizer_steps=((0, 3), (1, 2)), rank_of_rollout={0: 0, 3: 1, 1: 0, 2: 1})
    """

    optimizer_steps: tuple[tuple[int, ...], ...]  # indices in ImportedStep.rollouts; none twice
    rank_of_rollout: Mapping[int, int] = field(default_factory=dict)  # data-parallel
    # Counted from 0 on that rank in each optimizer step.
    micro_batch_of_rollout: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ImportedStep:
    """The rollouts of one training step, with the step number of its source.

    It becomes an iteration of the run folder: the source may have split its rollouts over several
    optimizer steps.

    Example:
        ImportedStep(number=3, rollouts=(r0, r1, ...))
    """

    number: int
    rollouts: tuple[ImportedRollout, ...]
    schedule: Schedule | None = None  # None: the files do not say
    plan_record: dict[str, Any] | None = None  # a line of plans.jsonl, copied unchanged
    plan_metrics: Mapping[str, Any] = field(default_factory=dict)  # of that plan, in metrics.jsonl
    token_table: pa.Table | None = None  # a table of tokens/, copied unchanged


def ignore_progress(activity: str) -> None: ...


@dataclass(frozen=True, slots=True)
class ImportContext:
    """What an importer is given besides its files."""

    title: str  # of the source
    reward: str  # the option --reward; "" if it was not given
    scratch: Path  # an empty folder that is removed after the import
    notes: ImportNotes = field(default_factory=ImportNotes)  # what the user should know
    show_progress: Callable[[str], None] = ignore_progress
    columns: str = ""  # the option --columns, which only tables take
    has_tokenizer: bool = False  # --tokenizer was given

    def refuse_reward_option(self, reason: str) -> None:
        """Raise if --reward was given to a source that has one reward only.

        `reason` goes on after the source's title: "writes one score".
        """
        if self.reward:
            raise PoiseError(
                "--reward names columns of tables, and of TRL's and ms-swift's files; "
                f"{self.title} {reason}"
            )


@dataclass(frozen=True, slots=True)
class CopiedFolder:
    """What a folder of ours, from which rollouts are copied, says of all of them.

    Example:
        CopiedFolder(Path("out/theirs"), "TRL", tokenizer="Qwen/Qwen3-0.6B", encoded_tokens=True)
    """

    path: Path
    trainer: str  # that wrote the rollouts
    tokenizer: str | None = None
    notes: tuple[str, ...] = ()
    encoded_tokens: bool = False  # tokens are those of the texts, encoded again


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
    read_steps: Callable[[Sequence[Path], ImportContext], Iterator[ImportedStep]]
    has_tokens: bool  # False: texts only, so counting tokens takes a tokenizer
    is_foreign: bool = True  # False: our own files
    is_fallback: bool = False  # True: others that recognise the files come first
    # Files that are tried if --from names the source, though they were not recognised.
    find_candidates: Callable[[Path], list[Path]] = lambda path: []
    # The folder of ours that the files lie in; None: in none.
    find_copied_folder: Callable[[Sequence[Path]], CopiedFolder | None] = lambda files: None


def recognise_source(path: Path, name: str | None = None) -> tuple[RolloutSource, list[Path]]:
    """The source of the files at `path`: the named one, or else the only match."""
    if not path.exists():
        raise PoiseError(f"{path} does not exist: check the path")
    if name is not None:
        source = _load_source(name)
        files = source.find_files(path) or source.find_candidates(path)
        if not files:
            hint = _suggest_subfolders(path, [source]) or f": {source.file_description}"
            raise PoiseError(f"{path} holds no rollouts of {source.title}{hint}")
        return source, files
    sources = {importer: _load_source(importer) for importer in IMPORTERS}
    matches = {name: files for name in sources if (files := sources[name].find_files(path))}
    if len(matches) > 1:  # a fallback reads what has the usual columns, as others' files may have
        matches = {name: matches[name] for name in matches if not sources[name].is_fallback}
    if not matches:
        if hint := _suggest_subfolders(path, sources.values()):
            raise PoiseError(f"{path} holds no rollouts{hint}")
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
    """The trainer whose rollouts lie in the folder; "" if there is none."""
    sources = map(_load_source, IMPORTERS)
    return next((source.title for source in sources if source.find_files(path)), "")


def explain_foreign_run(folder: Path, command: str) -> str:
    """What to do before `poise COMMAND` if another trainer's rollouts lie there; "" if none do."""
    writer = identify_trainer(folder)
    if not writer:
        return ""
    return (
        f"{folder} holds rollouts written by {writer}: run poise import {folder} --out DIR, then "
        f"poise {command} DIR"
    )


def _suggest_subfolders(path: Path, sources: Iterable[RolloutSource]) -> str:
    """Name the folders directly below `path` that can be imported; "" if there are none."""
    title_of_folder: dict[Path, str] = {}
    for folder in islice(_subfolders(path), MOST_SUBFOLDERS):
        # A folder that cannot be read is no suggestion.
        with suppress(OSError, PoiseError):
            titles = [source.title for source in sources if source.find_files(folder)]
            if titles:
                title_of_folder[folder] = titles[0]
    if not title_of_folder:
        return ""
    folders = list(title_of_folder)
    if len(folders) == 1:
        title = title_of_folder[folders[0]]
        return f" itself; {folders[0]} holds those of {title}: poise import {folders[0]}"
    names = ", ".join(
        f"{folder.name} ({title})"
        for folder, title in islice(title_of_folder.items(), NAMED_SUBFOLDERS)
    )
    unnamed = len(folders) - NAMED_SUBFOLDERS
    further = f" and {unnamed} more" if unnamed > 0 else ""
    return (
        f" itself; {len(folders)} folders below it do: {names}{further}. Import each by itself, as "
        f"poise import {folders[0]}"
    )


def _subfolders(path: Path) -> list[Path]:
    try:
        return sorted(child for child in path.iterdir() if child.is_dir())
    except OSError:  # a file, or a folder of somebody else
        return []


def _load_source(name: str) -> RolloutSource:
    return cast(RolloutSource, IMPORTERS.load(name))


# -- what several importers need ------------------------------------------------------------------


def hash_prompt(prompt: str) -> str:
    """A short id of a prompt's text: sources give prompts no id that lasts across steps.

    Example:
        >>> hash_prompt("Ana has 3 pens.")
        '6900703b6ffd'
    """
    return hashlib.sha256(prompt.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def hash_tokens(tokens: Sequence[int]) -> str:
    """A short id of a prompt of which only the tokens are known."""
    return hash_prompt(" ".join(map(str, tokens)))


def check_reward(reward: object, where: str) -> float:
    """The reward as a float; it must be finite and within the range of `poise plan`."""
    if isinstance(reward, bool) or not isinstance(reward, int | float):
        raise PoiseError(f"{where}: the reward {reward!r} is not a number: remove that rollout")
    if not abs(reward) <= LARGEST_REWARD:  # also true for NaN
        raise PoiseError(
            f"{where}: the reward {reward!r} is not finite, or beyond {LARGEST_REWARD:g}: "
            "remove that rollout"
        )
    return float(reward)


def answer_text(answer: object) -> str:
    """A reference answer as text; "" where there is none."""
    if answer is None:
        return ""
    return answer if isinstance(answer, str) else json.dumps(answer, default=str)


def render_text(content: Any, where: str) -> str:
    """A text as it is; messages as their contents, with roles where there are several.

    Example:
        >>> render_text([{"role": "user", "content": "How many?"}], "")
        'How many?'
    """
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not all(isinstance(message, dict) for message in content):
        raise PoiseError(f"{where}: {content!r} is neither a text nor a list of messages")
    texts = [message_text(message.get("content")) for message in content]
    if len(texts) == 1:
        return texts[0]
    return "\n\n".join(
        f"{message.get('role')}: {text}" for message, text in zip(content, texts, strict=True)
    )


def message_text(content: Any) -> str:
    """The text of a message, whose content is a text or a list of parts."""
    if isinstance(content, list):
        return "".join(str(item.get("text") or "") for item in content if isinstance(item, dict))
    return "" if content is None else str(content)
