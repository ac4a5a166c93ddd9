"""Import verl's rollouts from STEP.jsonl in `trainer.rollout_data_dir`.

Each line is a rollout:

    {"input": prompt, "output": response, "gts": reference, "score": reward, "step": 7, "uid": ...}

Texts are decoded without special tokens; token ids, log-probabilities and whether a response was
truncated are not written. The V1 trainer's `uid` is UUID_ROLLOUT_OUTPUT, and rollouts with the same
UUID are a group. The V0 trainer writes no uid: there, equal inputs of a step are a group. Rows that
verl adds to fill up a batch (padUUID) are no rollouts and are left out. The format is that of verl
0.9.1, as written by trainer/ppo/v1/trainer_base.py, trainer/ppo/padding_utils.py and
trainer/ppo/ray_trainer.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from counterpoise.errors import PoiseError
from counterpoise.hosts.importing.formats import (
    ImportContext,
    ImportedRollout,
    ImportedStep,
    RolloutSource,
)
from counterpoise.hosts.importing.json_lines import check_step, peek_object, read_objects
from counterpoise.hosts.importing.text_rollouts import name_prompt, text_rollout

KNOWN_FORMAT = "verl 0.9.1"
REQUIRED_FIELDS = ("input", "output", "score", "step")
# Fields in prime-rl's chunks and in AReaL's tasks, whose files are named by a number too.
FOREIGN_FIELDS = {"traces", "sample_idx"}
FILLER_UID = re.compile(r"pad[0-9a-f]{32}_\d+_\d+")


def find_files(path: Path) -> list[Path]:
    """Files that are named by a step, or a file of any name with verl's fields."""
    if path.is_file():
        if path.suffix != ".jsonl":
            return []
        fields = peek_object(path).keys()
        named = path.stem.isdecimal() and not fields & {"prompt_id", *FOREIGN_FIELDS}
        return [path] if named or fields >= set(REQUIRED_FIELDS) else []
    step_files = [file for file in path.glob("*.jsonl") if file.stem.isdecimal()]
    if step_files:
        fields = peek_object(step_files[0]).keys()
        if fields & FOREIGN_FIELDS and not fields >= set(REQUIRED_FIELDS):
            return []
    return sorted(step_files, key=lambda file: int(file.stem))


def read_steps(files: Sequence[Path], context: ImportContext) -> Iterator[ImportedStep]:
    context.refuse_reward_option("writes one score")
    for file in files:
        rollouts, steps, lines_with_uid = [], [], 0
        for where, record in read_objects(file, REQUIRED_FIELDS, KNOWN_FORMAT):
            steps.append(check_step(record["step"], where))
            if steps[-1] != steps[0]:
                raise PoiseError(f"{where}: step {steps[-1]} in a file of step {steps[0]}")
            if FILLER_UID.fullmatch(str(record.get("uid"))):
                context.notes.count("left out because they fill up a batch: {}", "row")
                continue
            lines_with_uid += "uid" in record
            rollouts.append(_parse_rollout(record, where))
        if 0 < lines_with_uid < len(rollouts):
            raise PoiseError(f"{file}: only {lines_with_uid} of {len(rollouts)} lines have a uid")
        if rollouts and not lines_with_uid:
            context.notes.count(
                "no uid in {}: equal prompts of a step are taken as a group", "step"
            )
        if rollouts:
            yield ImportedStep(steps[0], tuple(rollouts))


def _parse_rollout(record: dict[str, Any], where: str) -> ImportedRollout:
    for field in ("input", "output"):
        if not isinstance(record[field], str):
            raise PoiseError(
                f"{where}: '{field}' is not a text: was the file written by another tool?"
            )
    prompt_id = name_prompt("verl", record["input"])
    uid = str(record["uid"]) if "uid" in record else prompt_id
    # The V1 trainer's uid is GROUP_ROLLOUT_OUTPUT; other uids name the group itself.
    uid_fields = uid.rsplit("_", 2)
    has_suffix = len(uid_fields) == 3 and uid_fields[1].isdecimal() and uid_fields[2].isdecimal()
    return text_rollout(
        prompt_id,
        f"{record['step']}:{uid_fields[0] if has_suffix else uid}",
        record["input"],
        record["output"],
        record["score"],
        where,
        record.get("gts"),
    )


SOURCE = RolloutSource(
    "verl",
    "STEP.jsonl, written to trainer.rollout_data_dir",
    find_files,
    read_steps,
    has_tokens=False,
)
