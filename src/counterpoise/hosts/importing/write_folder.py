"""`poise import`: a foreign run -> rollouts/step_00012.jsonl, metrics.jsonl and imported.json.

There is no config.toml: neither the other trainer's options nor which rollouts shared an optimizer
step are known. Fields that a source does not write are left out of the lines. The folder appears
when it is complete, or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from counterpoise.errors import PoiseError, format_count
from counterpoise.files import atomic_write, cannot_write
from counterpoise.hosts.importing.formats import (
    ImportedRollout,
    ImportedStep,
    RolloutSource,
    recognise_source,
)
from counterpoise.hosts.importing.tokens import (
    complete_step,
    load_tokenizer,
    replace_lone_surrogates,
)
from counterpoise.store.folder import IMPORTED, SCHEMA, RunFolder, is_imported


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
    path: Path, out: Path, name: str | None = None, tokenizer: str = "", reward: str = ""
) -> ImportSummary:
    """Read the rollouts at `path` and write them to the new folder `out`."""
    if is_imported(out):
        raise PoiseError(f"{out} already holds imported rollouts: choose another --out")
    RunFolder.check_free(out)
    source, files = recognise_source(path, name)
    if not source.has_tokens and not tokenizer:
        raise PoiseError(
            f"{source.title} wrote texts without token counts: name the tokenizer of the model "
            "that was trained, as --tokenizer Qwen/Qwen3-0.6B"
        )
    notes: list[str] = []
    steps = source.read_steps(files, reward, notes.append)
    loaded = load_tokenizer(tokenizer) if tokenizer else None
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(out) as temporary:
            (temporary / "rollouts").mkdir(parents=True)
            lines = [
                _write_step(complete_step(step, loaded), temporary)
                for step in _reject_repeated_steps(steps, path)
            ]
            summary = _summarise(source, lines, notes, path)
            # Sources list files in their own order, readers expect iterations in theirs.
            lines.sort(key=lambda line: line["iteration"])
            text = "".join(json.dumps(line) + "\n" for line in lines)
            (temporary / "metrics.jsonl").write_text(text, encoding="utf-8")
            header = {
                "schema": SCHEMA,
                "source": summary.source,
                "tokenizer": tokenizer or None,
                "notes": notes,
            }
            (temporary / IMPORTED).write_text(json.dumps(header, indent=1), encoding="utf-8")
    except OSError as fault:
        raise cannot_write(out, fault) from fault
    return summary


def _reject_repeated_steps(steps: Iterator[ImportedStep], path: Path) -> Iterator[ImportedStep]:
    numbers: set[int] = set()
    for step in steps:
        if step.number in numbers:
            raise PoiseError(f"{path} holds step {step.number} twice: import each run by itself")
        numbers.add(step.number)
        yield step


def _summarise(
    source: RolloutSource, lines: list[dict[str, Any]], notes: list[str], path: Path
) -> ImportSummary:
    if not lines:
        raise PoiseError(f"{path}: the files of {source.title} are empty: no rollout is in them")
    rollouts, groups, tokens = (
        sum(line[name] for line in lines) for name in ("rollouts", "groups", "rollout_tokens")
    )
    return ImportSummary(source.title, len(lines), rollouts, groups, tokens, tuple(notes))


def _write_step(step: ImportedStep, folder: Path) -> dict[str, Any]:
    """Write the step's rollouts; return its metrics line, with what rollouts alone give."""
    text = "".join(
        json.dumps(_rollout_line(rollout), ensure_ascii=False) + "\n" for rollout in step.rollouts
    )
    file = folder / "rollouts" / f"step_{step.number:05d}.jsonl"
    file.write_text(text, encoding="utf-8")
    # Success is reward > 0, as in runs of our own.
    rewards_PG: dict[str, list[float]] = {}
    for rollout in step.rollouts:
        rewards_PG.setdefault(rollout.group, []).append(rollout.reward)
    tokens = sum(len(rollout.response_tokens or ()) for rollout in step.rollouts)
    return {
        "schema": SCHEMA,
        "iteration": step.number,
        "success": float(np.mean([rollout.reward > 0 for rollout in step.rollouts])),
        "reward": float(np.mean([rollout.reward for rollout in step.rollouts])),
        "mixed_groups": float(
            np.mean([np.ptp(rewards_G) > 0 for rewards_G in rewards_PG.values()])
        ),
        "rollouts": len(step.rollouts),
        "groups": len(rewards_PG),
        "rollout_tokens": tokens,
        "response_length": tokens / len(step.rollouts),
    }


def _rollout_line(rollout: ImportedRollout) -> dict[str, Any]:
    """A line of rollouts/; unknown fields are left out, `finished` always.

    prompt_tokens are written only where prompt and response are all that the model saw: studies
    recompute hidden states from them.
    """
    texts = {"prompt": rollout.prompt, "response": rollout.response, "answer": rollout.answer}
    lists = {
        "prompt_tokens": None if rollout.several_turns else rollout.prompt_tokens,
        "response_tokens": rollout.response_tokens,
        "sampled_logprobs": rollout.sampled_logprobs,
    }
    return {
        "schema": SCHEMA,
        "group": replace_lone_surrogates(rollout.group),
        "prompt_id": replace_lone_surrogates(rollout.prompt_id),
        "reward": rollout.reward,
        **{name: replace_lone_surrogates(text) for name, text in texts.items() if text is not None},
        **{name: values for name, values in lists.items() if values is not None},
    }
