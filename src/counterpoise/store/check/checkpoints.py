"""Check the checkpoints of a run: digests, and that they belong to this run and iteration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from counterpoise.config import RunConfig
from counterpoise.errors import PoiseError, first_line
from counterpoise.store import checkpoint
from counterpoise.store.check.findings import CheckReport, describe_fault
from counterpoise.store.folder import CHECKPOINTS, CONFIG
from counterpoise.store.resume import config_from_checkpoint, forbidden_differences
from counterpoise.store.row_records import ARRAY_TYPES

UNREADABLE = (OSError, ValueError, KeyError, TypeError, RecursionError, AttributeError)


def check_checkpoints(run: Path, config: RunConfig | None, report: CheckReport) -> dict[str, Any]:
    """Add the intact checkpoints to the report; return the state of the newest one."""
    newest_state: dict[str, Any] = {}
    for path in checkpoint.list_checkpoints(run / CHECKPOINTS):
        iteration = checkpoint.iteration_of(path)
        name = f"{CHECKPOINTS}/{path.name}"
        if damage := checkpoint.find_damage(path) or _find_disagreement(path, iteration, config):
            report.add(name, damage, iteration)
            continue
        report.intact_checkpoints.append(iteration)
        newest_state = json.loads((path / "state.json").read_text(encoding="utf-8"))
    return newest_state


def _find_disagreement(path: Path, iteration: int, config: RunConfig | None) -> str:
    """What a checkpoint with the right digests contradicts; "" if nothing."""
    listed_files = json.loads((path / "manifest.json").read_text())["sha256"].keys()
    if strangers := sorted(
        {file.name for file in path.iterdir()} - {*listed_files, "manifest.json"}
    ):
        return f"holds {strangers[0]}, which manifest.json does not list"
    try:
        state = json.loads((path / "state.json").read_text(encoding="utf-8"))
        if state["iteration"] != iteration:
            return f"is of iteration {state['iteration']}"
        if damage := _compare_buffer(path, state):
            return damage
        with safe_open(path / checkpoint.MODEL_FILE, framework="np") as tensors:
            if not tensors.keys():
                return f"has no weights in {checkpoint.MODEL_FILE}"
        return _compare_options(path / checkpoint.OPTIONS_FILE, config)
    except SafetensorError as fault:
        return f"cannot be read: {first_line(fault)}"
    except UNREADABLE as fault:
        return describe_fault(fault)


def _compare_buffer(path: Path, state: dict[str, Any]) -> str:
    """The waiting rows of state.json and the arrays of buffer.safetensors have the same lengths."""
    with safe_open(path / "buffer.safetensors", framework="np") as tensors:
        for array_name in ARRAY_TYPES:
            if array_name not in tensors.keys():  # older checkpoints lack some  # noqa: SIM118
                continue
            lengths = [row["lengths"].get(array_name) or 0 for row in state["rows"]]
            (stored_length,) = tensors.get_slice(array_name).get_shape()
            if sum(lengths) != stored_length:
                return f"has {stored_length} {array_name}, but state.json says {sum(lengths)}"
    return ""


def _compare_options(options_file: Path, config: RunConfig | None) -> str:
    if config is None or not options_file.is_file():
        return ""
    config_file = options_file.parents[2] / CONFIG
    if options_file.read_bytes() == config_file.read_bytes():
        return ""  # the usual case, and reading TOML is slow
    try:
        options_text = options_file.read_text(encoding="utf-8")
        saved_config = config_from_checkpoint(options_text, options_file)
    except PoiseError as fault:
        return describe_fault(fault)
    for option, saved_value, current_value in forbidden_differences(saved_config, config):
        return f"was made with {option}={saved_value!r}, but config.toml says {current_value!r}"
    return ""
