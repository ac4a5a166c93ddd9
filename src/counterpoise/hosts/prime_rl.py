"""prime-rl: token exports, OUTPUT_DIR/token_exports/step_N/rank_R.jsonl, a line a sequence:

    {"schema_version": 1, "step": 7, "export_step": 7, "rank": 0, "env_name": "maths",
     "token_ids": [...], "loss_mask": [...], "rewards": [...], "inference_logprobs": [...], ...}

Lists run over prompt and response together; `loss_mask` marks the trained tokens, and the prompt is
what stands before the first of them. `rewards` repeats the rollout's reward. No group is named:
sequences of a step with the same environment and prompt tokens are one. The trained tokens become
`response_tokens`: in rollouts of several turns what the environment said in between is left out.
Sequences without a trained token are not exported. A step that was written whole has a file STABLE
in newer versions. Read in prime-rl at 004274ec and d2f82fa6 (the latter without export_step),
src/prime_rl/trainer/rl/token_export.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from counterpoise.errors import PoiseError, counted
from counterpoise.hosts.importing.formats import (
    Sample,
    Source,
    Step,
    Tell,
    check_reward,
    name_of,
)
from counterpoise.hosts.importing.json_lines import check_step, objects

SCHEMA = 1
LISTS = ("token_ids", "loss_mask", "rewards", "inference_logprobs")
NEEDED = ("schema_version", "step", *LISTS)


def find(path: Path) -> list[Path]:
    """At the trainer's output folder, its token_exports, one step of them, or one rank's file."""
    if path.is_file():
        files = [path] if path.match("rank_*.jsonl") else []
    else:
        places = ("rank_*.jsonl", "step_*/rank_*.jsonl", "token_exports/step_*/rank_*.jsonl")
        files = [file for place in places for file in path.glob(place)]
    return sorted(files, key=lambda f: (_number(f.parent.name), f.parent, _number(f.stem)))


def _number(name: str) -> int:
    """Of step_12 or rank_12; -1 when there is none."""
    end = name.rpartition("_")[2]
    return int(end) if end.isdecimal() else -1


def read(files: Sequence[Path], reward: str, tell: Tell) -> Iterator[Step]:
    if reward:
        raise PoiseError("--reward names columns of TRL's files; prime-rl writes one reward")
    folders = {folder: list(mine) for folder, mine in groupby(files, key=lambda f: f.parent)}
    stable = [folder for folder in folders if (folder / "STABLE").exists()]
    if stable and len(stable) < len(folders):
        tell(
            f"not written to their end and left out: {counted(len(folders) - len(stable), 'step')}"
        )
    for folder in stable or folders:
        samples: list[Sample] = []
        number: int | None = None
        for file in folders[folder]:
            for where, record in objects(file, NEEDED):
                step = check_step(record.get("export_step", record["step"]), where)
                if number not in (None, step):
                    raise PoiseError(f"{where}: step {step} in a folder of step {number}")
                number = step
                samples.append(_sample(record, step, where))
        if number is not None:
            yield Step(number, tuple(samples))
    tell("no group is named: sequences with equal prompts in a step are taken as a group")


def _sample(record: dict[str, Any], step: int, where: str) -> Sample:
    if record["schema_version"] != SCHEMA:
        found = record["schema_version"]
        raise PoiseError(f"{where}: schema_version {found!r} is not known: this reads {SCHEMA}")
    if not all(isinstance(record[name], list) for name in LISTS):
        raise PoiseError(f"{where}: {', '.join(LISTS)} must be lists: written by another tool")
    lengths = {len(record[name]) for name in LISTS}
    tokens, mask = record["token_ids"], record["loss_mask"]
    if len(lengths) != 1 or not any(mask):
        raise PoiseError(
            f"{where}: {', '.join(LISTS)} differ in length, or no token was trained: remove it"
        )
    if not all(type(token) is int and 0 <= token < 2**31 for token in tokens):
        raise PoiseError(f"{where}: token_ids holds what is no token id: written by another tool")
    trained = [i for i, kept in enumerate(mask) if kept]
    rewards, logprobs = ([record[n][i] for i in trained] for n in ("rewards", "inference_logprobs"))
    value = rewards[0]
    if any(other != value for other in rewards):
        raise PoiseError(f"{where}: rewards differ within the sequence: one for each is needed")
    if not all(x is None or isinstance(x, int | float) for x in logprobs):
        raise PoiseError(f"{where}: inference_logprobs must be numbers: written by another tool")
    if value is None:
        raise PoiseError(f"{where}: no reward was exported: train with a task that gives one")
    prompt = tokens[: trained[0]]
    prompt_id = f"{record.get('env_name') or 'prime-rl'}/{name_of(' '.join(map(str, prompt)))}"
    return Sample(
        group=f"{step}:{prompt_id}",
        prompt_id=prompt_id,
        reward=check_reward(value, where),
        prompt_tokens=prompt,
        response_tokens=[tokens[i] for i in trained],
        sampled_logprobs=None if None in logprobs else logprobs,  # null: it was not finite
        several_turns=trained[-1] - trained[0] + 1 != len(trained),
    )


SOURCE = Source(
    "prime-rl", "token_exports/step_N/rank_R.jsonl (enable_token_export)", find, read, True
)
