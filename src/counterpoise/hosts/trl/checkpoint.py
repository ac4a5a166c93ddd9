"""Add to TRL's checkpoints what they lack: rollouts that wait for RB's batch, and probes.

checkpoint-N holds weights, optimizer and random numbers. Two files are added:

    poise.safetensors   the tensors of each waiting rollout, as <row>/<name>, and of each probe
    poise.json          their plain values, the buffer's counts, and the number of generations

A resumed run continues with them. Without RB no row waits, and only the number of generations
matters: plans and recorded iterations are numbered by it. A checkpoint without these files starts
with an empty buffer. If a checkpoint is made in the middle of a generation, the untrained rest of
that generation is lost on resume: TRL generates again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from counterpoise.batch.buffer import BufferCounts
from counterpoise.files import atomic_write
from counterpoise.hosts.trl.padding import UnpaddedRollout
from counterpoise.hosts.trl.planner import RolloutKey
from counterpoise.run.probes import ProbeSet, probes_from_tensors, probes_to_tensors
from counterpoise.types import Row

VALUES_FILE, TENSORS_FILE = "poise.json", "poise.safetensors"
TOKEN_FIELD_PREFIX = "extra."  # part of the file format


@dataclass(frozen=True, slots=True, eq=False)
class CheckpointExtras:
    """What a resumed run needs besides TRL's own state: RB's buffer, probes, generations.

    Example:
        CheckpointExtras(generation=7, rows=[r0, r1], counts=BufferCounts(added=168, ...),
                         rollouts_by_key={("6:2", 0): s0, ("6:2", 3): s1})
    """

    generation: int  # how many generations have been sampled
    rows: Sequence[Row]
    counts: BufferCounts
    rollouts_by_key: Mapping[RolloutKey, UnpaddedRollout]  # of these rows
    probes: ProbeSet | None = None  # the held-out answers that are followed


def save_extras(folder: Path, extras: CheckpointExtras) -> None:
    """Write both files into the checkpoint `folder`."""
    tensors: dict[str, Tensor] = {}
    values_R: list[dict[str, Any]] = []
    for row_index, row in enumerate(extras.rows):
        sample = extras.rollouts_by_key[row.group, row.index]
        row_tensors = {
            "prompt_S": sample.prompt_S,
            "completion_T": sample.completion_T,
            "mask_T": sample.mask_T,
        }
        for name, values_T in sample.token_fields.items():
            row_tensors[TOKEN_FIELD_PREFIX + name] = values_T
        if row.weights_T is not None:
            row_tensors["weights_T"] = torch.from_numpy(row.weights_T)
        tensors |= {
            f"{row_index}/{name}": values.contiguous() for name, values in row_tensors.items()
        }
        values = {name: getattr(row, name) for name in ("group", "advantage", "num_tokens")}
        values |= {"index": row.index, "born": row.born, "trl_advantage": sample.trl_advantage}
        values["trajectory"] = row.trajectory
        values_R.append(values)
    probe_record, probe_tensors = probes_to_tensors(extras.probes)
    tensors |= probe_tensors
    header = {
        "schema": 1,
        "generation": extras.generation,
        "counts": asdict(extras.counts),
        "probes": probe_record,
    }
    # poise.json is written last: a reader that finds it also finds the tensors.
    with atomic_write(folder / TENSORS_FILE) as temporary:
        save_file(tensors, temporary)
    with atomic_write(folder / VALUES_FILE) as temporary:
        temporary.write_text(json.dumps({**header, "rows": values_R}), encoding="utf-8")


def load_extras(folder: Path) -> CheckpointExtras | None:
    """The inverse of `save_extras`; None where the checkpoint has no such files."""
    if not (folder / VALUES_FILE).exists():
        return None
    content = json.loads((folder / VALUES_FILE).read_text(encoding="utf-8"))
    tensors_R: list[dict[str, Tensor]] = [{} for _ in content["rows"]]
    tensors_by_key = load_file(folder / TENSORS_FILE)
    for key, tensor in tensors_by_key.items():
        row_index, _, name = key.partition("/")
        if row_index.isdigit():  # the others are the probes'
            tensors_R[int(row_index)][name] = tensor
    rows, rollouts_by_key = [], {}
    for values, tensors in zip(content["rows"], tensors_R, strict=True):
        token_fields = {
            name.removeprefix(TOKEN_FIELD_PREFIX): tensors[name]
            for name in tensors
            if name.startswith(TOKEN_FIELD_PREFIX)
        }
        sample = UnpaddedRollout(
            prompt_S=tensors["prompt_S"],
            completion_T=tensors["completion_T"],
            mask_T=tensors["mask_T"],
            token_fields=token_fields,
            trl_advantage=values.pop("trl_advantage"),
            trajectory=values.get("trajectory", ""),
        )
        weights_T = tensors["weights_T"].numpy() if "weights_T" in tensors else None
        rows.append(Row(**values, weights_T=weights_T))
        rollouts_by_key[rows[-1].name] = sample
    counts = BufferCounts(**content["counts"])
    # Checkpoints of older versions know no probes.
    probes = probes_from_tensors(content.get("probes"), tensors_by_key)
    return CheckpointExtras(content["generation"], rows, counts, rollouts_by_key, probes)
