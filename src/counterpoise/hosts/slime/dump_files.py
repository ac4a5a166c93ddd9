"""Read .pt files of slime and miles without running anything that is in them.

torch.load(weights_only=True) builds tensors, numbers, texts, lists and dicts only; arrays of
numpy are allowed besides. Whatever else a file holds is refused by name, with how to convert it.
Tensors stay on the disk until they are used (mmap).

What a file is can be told from the first keys of its pickle, which are read without building
anything:

    {"format_version": 2, "rollout_id", "rank", "samples", "dp_shards", ...}     training, slime
    {"rollout_id", "rank", "rollout_data", ...}                                  training, one rank
    {"rollout_id", ["metadata",] "samples"}                                      sampling
"""

from __future__ import annotations

import pickle
import pickletools
import re
import struct
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from counterpoise.errors import PoiseError, first_line

HEAD_BYTES = 4096  # of the pickle, read to recognise it
TAIL_BYTES = 512
NEWEST_FORMAT = 2
# What zipfile raises for a damaged archive: undecodable names, unknown compression or encryption,
# offsets outside the file.
ZIP_ERRORS = (
    OSError, zipfile.BadZipFile, ValueError, NotImplementedError, RuntimeError, EOFError,
    struct.error, zlib.error, OverflowError,
)  # fmt: skip
REFUSED_CLASS = re.compile(r"GLOBAL (\S+) was not an allowed global")  # torch's message
KNOWN_VERSIONS = "dumps of slime at 624b824a (format_version 2) and miles at 31f1ca96 can be read"


@dataclass(frozen=True, slots=True)
class DumpHead:
    """What the first keys of a dump say.

    Example:
        DumpHead(kind="ranks", rollout_id=7, rank=3, is_miles=True)
    """

    kind: str  # "train": all ranks in one file; "ranks": one rank; "rollouts": sampling only
    rollout_id: int
    rank: int
    is_miles: bool
    format_version: int = 0


def peek_head(file: Path) -> DumpHead | None:
    """What kind of dump a file is; None for other files."""
    try:
        with zipfile.ZipFile(file) as archive:
            name = next(n for n in archive.namelist() if n.endswith("/data.pkl"))
            with archive.open(name) as stream:
                head = stream.read(HEAD_BYTES)
                size = archive.getinfo(name).file_size
                stream.seek(max(0, size - TAIL_BYTES))
                tail = stream.read()
    except (StopIteration, *ZIP_ERRORS):
        return None
    keys: list[str] = []
    numbers: dict[str, int] = {}
    try:
        for opcode, argument, _ in pickletools.genops(head):
            if isinstance(argument, str) and opcode.name.endswith("UNICODE"):
                keys.append(argument)
            elif keys and opcode.name in ("BININT", "BININT1", "BININT2", "INT", "LONG1"):
                numbers.setdefault(keys[-1], int(argument or 0))
            if {"samples", "rollout_data"} & set(keys):
                break
    except (ValueError, IndexError, UnicodeDecodeError):  # the head ends within an opcode
        pass
    if "rollout_id" not in numbers or not {"samples", "rollout_data"} & set(keys):
        return None
    kind = "ranks" if "rollout_data" in keys else "train" if "rank" in numbers else "rollouts"
    is_miles = "metadata" in keys or (kind == "ranks" and b"qkv_format" in head + tail)
    return DumpHead(
        kind,
        numbers["rollout_id"],
        numbers.get("rank", 0),
        is_miles,
        numbers.get("format_version", 0),
    )


def load_dump(file: Path) -> dict[str, Any]:
    """The content of a dump, with tensors and arrays as they are."""
    import torch

    reconstruct = np.empty(0).__reduce__()[0]
    scalar = np.float64(0).__reduce__()[0]
    dtypes = {
        type(np.dtype(kind)) for kind in ("i1", "i2", "i4", "i8", "u1", "f2", "f4", "f8", "?")
    }
    allowed: list[Any] = [reconstruct, scalar, np.ndarray, np.dtype, *dtypes]
    try:
        with torch.serialization.safe_globals(allowed):
            content = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as fault:
        refused = REFUSED_CLASS.search(str(fault))
        cause = f"holds {refused[1]}" if refused else f"holds an unknown kind ({first_line(fault)})"
        raise PoiseError(
            f"{file} {cause}, which is not read because it could run code: in the trainer's own "
            "environment load it with torch.load(FILE, weights_only=False), delete the fields of "
            "that kind (multimodal inputs, adapters), and save it again with torch.save"
        ) from fault
    except Exception as fault:  # torch's unpickler raises errors of any type
        raise PoiseError(
            f"{file} is not a complete .pt file ({first_line(fault)}): copy it again, or remove it"
        ) from fault
    if not isinstance(content, dict):
        raise PoiseError(f"{file} holds no dict of rollouts: {KNOWN_VERSIONS}")
    return content


def to_list(values: Any) -> list[Any] | None:
    """Tensors, arrays and tuples as lists; None for what is no sequence."""
    if hasattr(values, "tolist"):
        values = values.tolist()
    if isinstance(values, tuple):
        values = list(values)
    return values if isinstance(values, list) else None
