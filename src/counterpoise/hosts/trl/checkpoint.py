"""What TRL's checkpoints lack: the rollouts that wait for a balanced batch (RB).

checkpoint-N holds weights, optimizer and random numbers. Two files are put beside them:

    poise.safetensors   what each waiting rollout is made of, as <row>/<name>
    poise.json          its plain values, the buffer's counts, and how often was generated

A run that is resumed goes on with them; without RB no row waits, and only the count matters: plans
and the record's iterations are numbered by it. A checkpoint without the files starts with an empty
buffer. What is left of a generation in the middle of which a checkpoint is made is
trained by nobody after it: TRL generates anew.
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
from counterpoise.files import replacing
from counterpoise.hosts.trl.batch_rules import Key
from counterpoise.hosts.trl.samples import Sample
from counterpoise.types import Row

PLAIN, TENSORS = "poise.json", "poise.safetensors"
EXTRA = "extra."


@dataclass(frozen=True, slots=True, eq=False)
class Waiting:
    """What RB's buffer held.

    Example:
        Waiting(generation=7, rows=[r0, r1], counts=BufferCounts(added=168, ...),
                shelf={("6:2", 0): s0, ("6:2", 3): s1})
    """

    generation: int  # times that rollouts were sampled
    rows: Sequence[Row]
    counts: BufferCounts
    shelf: Mapping[Key, Sample]  # of these rows


def save(folder: Path, waiting: Waiting) -> None:
    tensors: dict[str, Tensor] = {}
    plain: list[dict[str, Any]] = []
    for i, row in enumerate(waiting.rows):
        sample = waiting.shelf[row.group, row.index]
        parts = {"prompt_S": sample.prompt_S, "completion_T": sample.completion_T}
        parts |= {"mask_T": sample.mask_T}
        parts |= {EXTRA + name: values for name, values in sample.extra.items()}
        if row.weights_T is not None:
            parts["weights_T"] = torch.from_numpy(row.weights_T)
        tensors |= {f"{i}/{name}": values.contiguous() for name, values in parts.items()}
        values = {name: getattr(row, name) for name in ("group", "advantage", "num_tokens")}
        values |= {"index": row.index, "born": row.born, "trl_advantage": sample.trl_advantage}
        plain.append(values)
    told = {"schema": 1, "generation": waiting.generation, "counts": asdict(waiting.counts)}
    with replacing(folder / TENSORS) as temporary:
        save_file(tensors, temporary)
    with replacing(folder / PLAIN) as temporary:
        temporary.write_text(json.dumps({**told, "rows": plain}), encoding="utf-8")


def load(folder: Path) -> Waiting | None:
    """None: the checkpoint has no such files."""
    if not (folder / PLAIN).exists():
        return None
    told = json.loads((folder / PLAIN).read_text(encoding="utf-8"))
    parts: list[dict[str, Tensor]] = [{} for _ in told["rows"]]
    for key, tensor in load_file(folder / TENSORS).items():
        i, _, name = key.partition("/")
        parts[int(i)][name] = tensor
    rows, shelf = [], {}
    for record, part in zip(told["rows"], parts, strict=True):
        extra = {name.removeprefix(EXTRA): part[name] for name in part if name.startswith(EXTRA)}
        of_sample = {name: part[name] for name in ("prompt_S", "completion_T", "mask_T")}
        sample = Sample(**of_sample, extra=extra, trl_advantage=record.pop("trl_advantage"))
        weights_T = part["weights_T"].numpy() if "weights_T" in part else None
        rows.append(Row(**record, weights_T=weights_T))
        shelf[rows[-1].name] = sample
    return Waiting(told["generation"], rows, BufferCounts(**told["counts"]), shelf)
