"""`poise import`: a foreign run -> rollouts/step_00012.jsonl, metrics.jsonl and imported.json.

There is no config.toml: what the other trainer was told is not known, nor which rollouts shared an
optimizer step. Fields a source does not give are left out of the lines. The folder appears when all
of it is written, or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from counterpoise.errors import PoiseError, counted
from counterpoise.files import replacing
from counterpoise.hosts.importing.formats import Sample, Source, Step, recognise
from counterpoise.hosts.importing.tokens import complete, load_tokenizer, whole
from counterpoise.store.folder import IMPORTED, SCHEMA, RunFolder, is_imported


@dataclass(frozen=True, slots=True)
class Imported:
    """What was brought in.

    Example:
        Imported("TRL", steps=2, rollouts=16, groups=4, tokens=233, notes=("reward = correct",))
    """

    source: str
    steps: int
    rollouts: int
    groups: int
    tokens: int
    notes: tuple[str, ...]

    def told(self, out: Path) -> str:
        """For the terminal: a line that counts, and one for each note."""
        made = (
            f"{counted(self.steps, 'step')}, {counted(self.rollouts, 'rollout')} of "
            f"{counted(self.groups, 'group')}, {counted(self.tokens, 'token')}"
        )
        return "\n  ".join((f"{self.source}: {made} -> {out}", *self.notes))


def import_run(
    path: Path, out: Path, name: str | None = None, tokenizer: str = "", reward: str = ""
) -> Imported:
    """Read the rollouts at `path` and write them to the new folder `out`."""
    if is_imported(out):
        raise PoiseError(f"{out} already holds imported rollouts: choose another --out")
    RunFolder.check_free(out)
    source, files = recognise(path, name)
    if not source.has_tokens and not tokenizer:
        raise PoiseError(
            f"{source.title} wrote texts without token counts: name the tokenizer of the model "
            "that was trained, as --tokenizer Qwen/Qwen3-0.6B"
        )
    notes: list[str] = []
    steps = source.read(files, reward, notes.append)
    loaded = load_tokenizer(tokenizer) if tokenizer else None
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with replacing(out) as temporary:
            (temporary / "rollouts").mkdir(parents=True)
            lines = [_write(complete(step, loaded), temporary) for step in _distinct(steps, path)]
            made = _summary(source, lines, notes, path)
            lines.sort(key=lambda line: line["iteration"])
            text = "".join(json.dumps(line) + "\n" for line in lines)
            (temporary / "metrics.jsonl").write_text(text, encoding="utf-8")
            known = {
                "schema": SCHEMA,
                "source": made.source,
                "tokenizer": tokenizer or None,
                "notes": notes,
            }
            (temporary / IMPORTED).write_text(json.dumps(known, indent=1), encoding="utf-8")
    except OSError as fault:
        raise PoiseError(f"{out} cannot be written: {fault.strerror}") from fault
    return made


def _distinct(steps: Iterator[Step], path: Path) -> Iterator[Step]:
    seen: set[int] = set()
    for step in steps:
        if step.number in seen:
            raise PoiseError(f"{path} holds step {step.number} twice: import each run by itself")
        seen.add(step.number)
        yield step


def _summary(source: Source, lines: list[dict[str, Any]], notes: list[str], path: Path) -> Imported:
    if not lines:
        raise PoiseError(f"{path}: the files of {source.title} are empty: no rollout is in them")
    rollouts, groups, tokens = (
        sum(line[name] for line in lines) for name in ("rollouts", "groups", "rollout_tokens")
    )
    return Imported(source.title, len(lines), rollouts, groups, tokens, tuple(notes))


def _write(step: Step, folder: Path) -> dict[str, Any]:
    """Write the step's rollouts; its line of metrics.jsonl, as far as rollouts alone tell it."""
    text = "".join(
        json.dumps(_record(sample), ensure_ascii=False) + "\n" for sample in step.samples
    )
    file = folder / "rollouts" / f"step_{step.number:05d}.jsonl"
    file.write_text(text, encoding="utf-8")
    rewards_PG: dict[str, list[float]] = {}
    for sample in step.samples:
        rewards_PG.setdefault(sample.group, []).append(sample.reward)
    tokens = sum(len(sample.response_tokens or ()) for sample in step.samples)
    return {
        "schema": SCHEMA,
        "iteration": step.number,
        "success": float(np.mean([sample.reward > 0 for sample in step.samples])),
        "reward": float(np.mean([sample.reward for sample in step.samples])),
        "mixed_groups": float(np.mean([np.ptp(r) > 0 for r in rewards_PG.values()])),
        "rollouts": len(step.samples),
        "groups": len(rewards_PG),
        "rollout_tokens": tokens,
        "response_length": tokens / len(step.samples),
    }


def _record(sample: Sample) -> dict[str, Any]:
    """A line of rollouts/; what is not known is left out, `finished` always.

    prompt_tokens stand where prompt and response are what the model saw: studies rely on it.
    """
    texts = {"prompt": sample.prompt, "response": sample.response, "answer": sample.answer}
    lists = {
        "prompt_tokens": None if sample.several_turns else sample.prompt_tokens,
        "response_tokens": sample.response_tokens,
        "sampled_logprobs": sample.sampled_logprobs,
    }
    return {
        "schema": SCHEMA,
        "group": whole(sample.group),
        "prompt_id": whole(sample.prompt_id),
        "reward": sample.reward,
        **{name: whole(text) for name, text in texts.items() if text is not None},
        **{name: values for name, values in lists.items() if values is not None},
    }
