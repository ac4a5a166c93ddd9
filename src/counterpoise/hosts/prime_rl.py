"""Import prime-rl's token exports, OUTPUT_DIR/token_exports/step_N/rank_R.jsonl.

Each line is a sequence:

    {"schema_version": 1, "step": 7, "export_step": 7, "rank": 0, "env_name": "maths",
     "token_ids": [...], "loss_mask": [...], "rewards": [...], "inference_logprobs": [...], ...}

The lists cover prompt and response together; `loss_mask` marks the trained tokens, and the prompt
is everything before the first of them. `rewards` repeats the rollout's reward. Groups are not
exported: sequences of a step with the same environment and prompt tokens are taken as one. The
trained tokens become `response_tokens`: in rollouts of several turns the environment's messages in
between are left out. Sequences without a trained token are not exported. In newer versions a step
that is complete has a file STABLE.

Read in prime-rl at 004274ec and d2f82fa6 (the latter without export_step),
src/prime_rl/trainer/rl/token_export.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from counterpoise.errors import PoiseError, format_count
from counterpoise.hosts.importing.formats import (
    AddNote,
    ImportedRollout,
    ImportedStep,
    RolloutSource,
    check_reward,
    hash_prompt,
)
from counterpoise.hosts.importing.json_lines import check_step, read_objects

EXPORT_SCHEMA = 1
TOKEN_LISTS = ("token_ids", "loss_mask", "rewards", "inference_logprobs")
REQUIRED_FIELDS = ("schema_version", "step", *TOKEN_LISTS)


def find_files(path: Path) -> list[Path]:
    """Look in the output folder, token_exports, one step's folder, or at one rank's file."""
    if path.is_file():
        files = [path] if path.match("rank_*.jsonl") else []
    else:
        patterns = ("rank_*.jsonl", "step_*/rank_*.jsonl", "token_exports/step_*/rank_*.jsonl")
        files = [file for pattern in patterns for file in path.glob(pattern)]
    return sorted(
        files, key=lambda f: (_trailing_number(f.parent.name), f.parent, _trailing_number(f.stem))
    )


def _trailing_number(name: str) -> int:
    """12 for step_12 or rank_12; -1 when there is no number."""
    digits = name.rpartition("_")[2]
    return int(digits) if digits.isdecimal() else -1


def read_steps(files: Sequence[Path], reward: str, add_note: AddNote) -> Iterator[ImportedStep]:
    if reward:
        raise PoiseError("--reward names columns of TRL's files; prime-rl writes one reward")
    folders = {folder: list(group) for folder, group in groupby(files, key=lambda f: f.parent)}
    # Older versions write no STABLE at all: then every folder counts.
    stable = [folder for folder in folders if (folder / "STABLE").exists()]
    if stable and len(stable) < len(folders):
        incomplete = len(folders) - len(stable)
        add_note(f"left out because they are incomplete: {format_count(incomplete, 'step')}")
    for folder in stable or folders:
        rollouts: list[ImportedRollout] = []
        number: int | None = None
        for file in folders[folder]:
            for where, record in read_objects(file, REQUIRED_FIELDS):
                step = check_step(record.get("export_step", record["step"]), where)
                if number not in (None, step):
                    raise PoiseError(f"{where}: step {step} in a folder of step {number}")
                number = step
                rollouts.append(_parse_rollout(record, step, where))
        if number is not None:
            yield ImportedStep(number, tuple(rollouts))
    add_note("groups are not exported: sequences of a step with equal prompts are taken as one")


def _parse_rollout(record: dict[str, Any], step: int, where: str) -> ImportedRollout:
    if record["schema_version"] != EXPORT_SCHEMA:
        version = record["schema_version"]
        raise PoiseError(
            f"{where}: schema_version {version!r} is not known: this reads {EXPORT_SCHEMA}"
        )
    if not all(isinstance(record[name], list) for name in TOKEN_LISTS):
        raise PoiseError(
            f"{where}: {', '.join(TOKEN_LISTS)} must be lists: written by another tool"
        )
    lengths = {len(record[name]) for name in TOKEN_LISTS}
    tokens, mask = record["token_ids"], record["loss_mask"]
    if len(lengths) != 1 or not any(mask):
        raise PoiseError(
            f"{where}: {', '.join(TOKEN_LISTS)} differ in length, or no token was trained: "
            "remove the line"
        )
    if not all(type(token) is int and 0 <= token < 2**31 for token in tokens):
        raise PoiseError(
            f"{where}: token_ids holds something else than token ids: written by another tool"
        )
    trained = [i for i, is_trained in enumerate(mask) if is_trained]
    rewards, logprobs = ([record[n][i] for i in trained] for n in ("rewards", "inference_logprobs"))
    sequence_reward = rewards[0]
    if any(reward != sequence_reward for reward in rewards):
        raise PoiseError(
            f"{where}: rewards differ within the sequence: only one reward a sequence can be read"
        )
    if not all(value is None or isinstance(value, int | float) for value in logprobs):
        raise PoiseError(f"{where}: inference_logprobs must be numbers: written by another tool")
    if sequence_reward is None:
        raise PoiseError(f"{where}: no reward was exported: train with a task that gives one")
    prompt = tokens[: trained[0]]
    prompt_id = f"{record.get('env_name') or 'prime-rl'}/{hash_prompt(' '.join(map(str, prompt)))}"
    return ImportedRollout(
        group=f"{step}:{prompt_id}",
        prompt_id=prompt_id,
        reward=check_reward(sequence_reward, where),
        prompt_tokens=prompt,
        response_tokens=[tokens[i] for i in trained],
        sampled_logprobs=None if None in logprobs else logprobs,  # null where one was not finite
        # A gap in the mask is an environment's message between two turns.
        several_turns=trained[-1] - trained[0] + 1 != len(trained),
    )


SOURCE = RolloutSource(
    "prime-rl",
    "token_exports/step_N/rank_R.jsonl (enable_token_export)",
    find_files,
    read_steps,
    True,
)
