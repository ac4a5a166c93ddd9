"""verl: `trainer.rollout_data_dir` holds STEP.jsonl, a line a rollout:

    {"input": prompt, "output": response, "gts": reference, "score": reward, "step": 7, "uid": ...}

Texts are decoded without special tokens; token ids, log-probabilities and whether a response was
cut off are not written. The V1 trainer's `uid` is UUID_ROLLOUT_OUTPUT, and rollouts with the same
UUID are a group. The V0 trainer writes no uid: there, equal inputs of a step are a group. Read in
verl 0.9.1, trainer/ppo/v1/trainer_base.py and trainer/ppo/ray_trainer.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
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

NEEDED = ("input", "output", "score", "step")


def find(path: Path) -> list[Path]:
    files = [path] if path.is_file() else path.glob("*.jsonl")
    mine = [file for file in files if file.suffix == ".jsonl" and file.stem.isdecimal()]
    return sorted(mine, key=lambda file: int(file.stem))


def read(files: Sequence[Path], reward: str, tell: Tell) -> Iterator[Step]:
    if reward:
        raise PoiseError("--reward names columns of TRL's files; verl writes one score")
    by_input = 0
    for file in files:
        samples, steps, uids = [], [], 0
        for where, record in objects(file, NEEDED):
            steps.append(check_step(record["step"], where))
            if steps[-1] != steps[0]:
                raise PoiseError(f"{where}: step {steps[-1]} in a file of step {steps[0]}")
            uids += "uid" in record
            samples.append(_sample(record, where))
        if 0 < uids < len(samples):
            raise PoiseError(f"{file}: only {uids} of {len(samples)} lines have a uid")
        by_input += bool(samples) and not uids
        if samples:
            yield Step(steps[0], tuple(samples))
    if by_input:
        tell(f"no uid in {counted(by_input, 'step')}: equal prompts of a step are taken as a group")


def _sample(record: dict[str, Any], where: str) -> Sample:
    for name in ("input", "output"):
        if not isinstance(record[name], str):
            raise PoiseError(f"{where}: '{name}' is not a text: written by another tool")
    prompt, answer = record["input"], record.get("gts")
    prompt_id = f"verl/{name_of(prompt)}"
    uid = str(record["uid"]) if "uid" in record else prompt_id
    parts = uid.rsplit("_", 2)
    group = parts[0] if len(parts) == 3 and parts[1].isdecimal() and parts[2].isdecimal() else uid
    return Sample(
        group=f"{record['step']}:{group}",
        prompt_id=prompt_id,
        reward=check_reward(record["score"], where),
        prompt=prompt,
        response=record["output"],
        answer="" if answer is None else answer if isinstance(answer, str) else json.dumps(answer),
    )


SOURCE = Source(
    "verl", "STEP.jsonl, written to trainer.rollout_data_dir", find, read, has_tokens=False
)
