"""`poise import`: a foreign run -> rollouts/step_00012.jsonl, metrics.jsonl and imported.json.

Where the source says which rollouts shared an optimizer step there are also plans.jsonl and, with
the trainer's log-probabilities, tokens/step_00012.parquet. There is no config.toml: the other
trainer's options are not known. Fields that a source does not write are left out of the lines. One
step is in memory at a time. The folder appears when it is complete, or not at all.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from counterpoise.errors import (
    UNEXPECTED_VALUE_ERRORS,
    PoiseError,
    first_line,
    format_count,
)
from counterpoise.files import atomic_write, cannot_write
from counterpoise.hosts.importing.formats import (
    ImportContext,
    ImportedRollout,
    ImportedStep,
    ignore_progress,
    recognise_source,
)
from counterpoise.hosts.importing.notes import ImportNotes
from counterpoise.hosts.importing.plan_records import has_advantage, record_schedule
from counterpoise.hosts.importing.tokens import (
    complete_step,
    load_tokenizer,
    vocabulary_texts,
)
from counterpoise.store.folder import (
    ENCODED_TOKENS,
    IMPORTED,
    SCHEMA,
    VOCABULARY,
    RunFolder,
    is_imported,
)
from counterpoise.store.plain_values import plain_text
from counterpoise.store.schema import step_file_name
from counterpoise.store.turns import turns_to_records

NAMED_FILES = 5  # in a note
TABLE = "table"  # the source that takes --columns


@dataclass(frozen=True, slots=True)
class ImportSummary:
    """What an import read, in numbers.

    Example:
        ImportSummary("TRL", steps=2, rollouts=16, groups=4, tokens=233,
                      notes=("reward = correct",))
    """

    source: str
    steps: int
    rollouts: int
    groups: int
    tokens: int
    notes: tuple[str, ...]

    def terminal_text(self, out: Path) -> str:
        """A line with the counts, and one for each note."""
        counts = (
            f"{format_count(self.steps, 'step')}, {format_count(self.rollouts, 'rollout')} of "
            f"{format_count(self.groups, 'group')}, {format_count(self.tokens, 'token')}"
        )
        return "\n  ".join((f"{self.source}: {counts} -> {out}", *self.notes))


def import_run(
    path: Path,
    out: Path,
    name: str | None = None,
    tokenizer: str = "",
    reward: str = "",
    columns: str = "",
    show_progress: Callable[[str], None] = ignore_progress,
) -> ImportSummary:
    """Read the rollouts at `path` and write them to the new folder `out`."""
    if is_imported(out):
        raise PoiseError(f"{out} already holds imported rollouts: choose another --out")
    RunFolder.check_free(out)
    source, files = recognise_source(path, _name_source(name, columns))
    if not source.has_tokens and not tokenizer:
        raise PoiseError(
            f"{source.title} wrote texts without token counts: name the tokenizer of the model "
            "that was trained, as --tokenizer Qwen/Qwen3-0.6B"
        )
    notes = ImportNotes()
    copied = source.find_copied_folder(files)
    loaded = load_tokenizer(tokenizer) if tokenizer else None
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(out) as temporary:
            (temporary / "rollouts").mkdir(parents=True)
            scratch = temporary / "scratch"
            scratch.mkdir()
            context = ImportContext(
                source.title,
                reward,
                scratch,
                notes,
                show_progress,
                columns=columns,
                has_tokenizer=loaded is not None,
            )
            writer = StepWriter(temporary, source.title, notes)
            steps = _explain_odd_values(source.read_steps(files, context), source.title, path)
            for step in _reject_repeated_steps(steps, path):
                show_progress(f"step {step.number}: {writer.rollouts:,} rollouts so far")
                writer.write(_with_tokens(step, loaded, writer, notes))
            if not writer.metrics:
                raise _explain_empty_import(path, source.title, notes)
            _note_empty_files(files, notes)
            sentences = notes.sentences()
            if copied is not None:
                sentences = list(dict.fromkeys([*copied.notes, *sentences]))
            trainer = source.title if copied is None else copied.trainer
            summary = _summarise(trainer, writer.metrics, sentences)
            writer.write_logs()
            shutil.rmtree(scratch)
            # Reports show each token's text, so they need the vocabulary.
            if loaded is not None and (writer.wrote_token_tables or writer.source_lacks_tokens):
                show_progress("vocabulary")
                RunFolder(temporary).write_vocabulary(vocabulary_texts(loaded))
            elif copied is not None and (copied.path / VOCABULARY).is_file():
                shutil.copyfile(copied.path / VOCABULARY, temporary / VOCABULARY)
            header = {
                "schema": SCHEMA,
                "source": summary.source,
                "tokenizer": tokenizer or (copied.tokenizer if copied else None),
                "notes": sentences,
                ENCODED_TOKENS: writer.source_lacks_tokens
                or (copied is not None and copied.encoded_tokens),
            }
            (temporary / IMPORTED).write_text(json.dumps(header, indent=1), encoding="utf-8")
    except OSError as fault:
        raise cannot_write(out, fault) from fault
    return summary


def _name_source(name: str | None, columns: str) -> str | None:
    """The source that --from names; only tables have --columns."""
    if columns and name not in (None, TABLE):
        raise PoiseError(f"--columns is for tables: leave it out, or --from {name}")
    return TABLE if columns else name


def _with_tokens(
    step: ImportedStep, tokenizer: Any, writer: StepWriter, notes: ImportNotes
) -> ImportedStep:
    """The step with tokens or texts that the source left out, which writer and notes remember."""
    writer.source_lacks_tokens |= any(
        rollout.response_tokens is None and rollout.num_tokens is None for rollout in step.rollouts
    )
    complete, empty_responses = complete_step(step, tokenizer)
    notes.count("counted as one end token each: {}", "empty response", empty_responses)
    return complete


def _explain_odd_values(
    steps: Iterator[ImportedStep], title: str, path: Path
) -> Iterator[ImportedStep]:
    """Importers check for common bad values; turn any other failure into a one-line error."""
    while True:
        try:
            step = next(steps)
        except StopIteration:
            return
        except UNEXPECTED_VALUE_ERRORS as fault:
            raise PoiseError(
                f"{path} is damaged, or {title} of another version wrote it: "
                f"{type(fault).__name__}: {first_line(fault)}; docs/guide/any-run.md says which "
                "versions are known"
            ) from fault
        yield step


def _reject_repeated_steps(steps: Iterator[ImportedStep], path: Path) -> Iterator[ImportedStep]:
    numbers: set[int] = set()
    for step in steps:
        if step.number in numbers:
            raise PoiseError(f"{path} holds step {step.number} twice: import each run by itself")
        numbers.add(step.number)
        yield step


def _explain_empty_import(path: Path, title: str, notes: ImportNotes) -> PoiseError:
    if reasons := "; ".join(notes.reasons()):
        return PoiseError(
            f"{path}: no rollout can be imported ({reasons}): name the folder of the whole run, or "
            "another run"
        )
    return PoiseError(f"{path}: the files of {title} are empty: no rollout is in them")


def _note_empty_files(files: Sequence[Path], notes: ImportNotes) -> None:
    """Name files of 0 bytes: an importer passes over them, and a step of the run is missing."""
    empty = [file for file in files if file.is_file() and not file.stat().st_size]
    if not empty:
        return
    names = ", ".join(f"{file.parent.name}/{file.name}" for file in empty[:NAMED_FILES])
    further = f" and {len(empty) - NAMED_FILES} more" if len(empty) > NAMED_FILES else ""
    count = format_count(len(empty), "file")
    notes.add(f"left out because nothing is in them: {count} ({names}{further})")


def _summarise(trainer: str, lines: list[dict[str, Any]], notes: list[str]) -> ImportSummary:
    rollouts, groups, tokens = (
        sum(line[name] for line in lines) for name in ("rollouts", "groups", "rollout_tokens")
    )
    return ImportSummary(trainer, len(lines), rollouts, groups, tokens, tuple(notes))


class StepWriter:
    """Writes the files of each step as it comes, and the logs of all steps in the end."""

    def __init__(self, folder: Path, source_title: str, notes: ImportNotes) -> None:
        self.folder, self.source_title, self.notes = folder, source_title, notes
        self.unsorted_plans = folder / "scratch" / "plans.jsonl"
        self.metrics: list[dict[str, Any]] = []
        self.plan_spans: list[tuple[int, int, int]] = []  # iteration, start and end in the file
        self.rollouts = 0
        self.wrote_token_tables = False
        # It wrote some responses as texts only: --tokenizer encodes those again.
        self.source_lacks_tokens = False

    def write(self, step: ImportedStep) -> None:
        records = record_schedule(step, self.source_title)
        file = self.folder / step_file_name("rollouts", step.number)
        with file.open("w", encoding="utf-8") as lines:
            for rollout in step.rollouts:
                record = _rollout_line(rollout, has_plan=records.plan is not None)
                line = json.dumps(record, ensure_ascii=False)
                lines.write(plain_text(line) + "\n")
        if records.plan is not None:
            self.notes.count("plans show the trainer's own batches in {}", "iteration")
            self._append_plan(records.plan)
        if records.has_computed_advantages:
            self.notes.count(
                "where the trainer wrote no advantages, plans show GRPO's, computed from the "
                "rewards: {}",
                "iteration",
            )
        if records.tokens is not None:
            self.wrote_token_tables = True
            (self.folder / "tokens").mkdir(exist_ok=True)
            pq.write_table(
                records.tokens,
                self.folder / step_file_name("tokens", step.number),
                use_dictionary=False,
            )
        self.rollouts += len(step.rollouts)
        self.metrics.append(_metrics_line(step) | records.metrics)

    def _append_plan(self, plan: dict[str, Any]) -> None:
        # Plans of a long run are large: they go to the disk at once.
        with self.unsorted_plans.open("ab") as lines:
            start = lines.tell()
            lines.write(json.dumps(plan).encode() + b"\n")
            self.plan_spans.append((plan["iteration"], start, lines.tell()))

    def write_logs(self) -> None:
        """Write the logs sorted by iteration: a source may give its steps in another order."""
        self.metrics.sort(key=lambda record: record["iteration"])
        with (self.folder / "metrics.jsonl").open("w", encoding="utf-8") as lines:
            for record in self.metrics:
                steps = {"steps": record.get("steps", 0)} if self.plan_spans else {}
                lines.write(json.dumps(record | steps) + "\n")
        if not self.plan_spans:
            return
        with (
            self.unsorted_plans.open("rb") as unsorted_lines,
            (self.folder / "plans.jsonl").open("wb") as plan_lines,
        ):
            for _, start, end in sorted(self.plan_spans):
                unsorted_lines.seek(start)
                plan_lines.write(unsorted_lines.read(end - start))


def _metrics_line(step: ImportedStep) -> dict[str, Any]:
    """The step's line of metrics.jsonl, with what rollouts alone give."""
    # Success is reward > 0, as in runs of our own.
    rewards_PG: dict[str, list[float]] = {}
    for rollout in step.rollouts:
        rewards_PG.setdefault(rollout.group, []).append(rollout.reward)
    mixed_group_share = np.mean([np.ptp(rewards_G) > 0 for rewards_G in rewards_PG.values()])
    tokens = sum(rollout.length for rollout in step.rollouts)
    endings = [rollout.finished for rollout in step.rollouts if rollout.finished is not None]
    truncated_share = {"truncated_share": 1 - sum(endings) / len(endings)} if endings else {}
    return {
        "schema": SCHEMA,
        "iteration": step.number,
        "success": float(np.mean([rollout.reward > 0 for rollout in step.rollouts])),
        "reward": float(np.mean([rollout.reward for rollout in step.rollouts])),
        "mixed_groups": float(mixed_group_share),
        "rollouts": len(step.rollouts),
        "groups": len(rewards_PG),
        "rollout_tokens": tokens,
        "response_length": tokens / len(step.rollouts),
        **truncated_share,
    }


def _rollout_line(rollout: ImportedRollout, *, has_plan: bool) -> dict[str, Any]:
    """A line of rollouts/; fields that the source did not write are left out.

    The advantage is the plan's where there is one: a second number could differ from it.
    """
    has_own_advantage = not has_plan and has_advantage(rollout)
    texts = {"prompt": rollout.prompt, "response": rollout.response, "answer": rollout.answer}
    known_fields = {
        "advantage": rollout.advantage if has_own_advantage else None,
        "finished": rollout.finished,
        "turns": turns_to_records(rollout.turns) or None,
        "num_tokens": rollout.num_tokens,
        "prompt_tokens": rollout.prompt_tokens,
        "response_tokens": rollout.response_tokens,
        "sampled_logprobs": rollout.sampled_logprobs,
    }
    return {
        "schema": SCHEMA,
        "group": plain_text(rollout.group),
        "prompt_id": plain_text(rollout.prompt_id),
        "reward": rollout.reward,
        **{name: plain_text(text) for name, text in texts.items() if text is not None},
        **rollout.further_fields,
        **{name: value for name, value in known_fields.items() if value is not None},
    }
