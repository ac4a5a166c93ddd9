"""imported.json: what is known of another trainer's run, in place of config.toml."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from counterpoise.config import RunConfig
from counterpoise.errors import PoiseError, first_line
from counterpoise.store.folder import ENCODED_TOKENS, IMPORTED

OptionTables = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class ImportOrigin:
    """Who trained an imported run, and what the import or the recorder noted.

    Example:
        ImportOrigin("TRL", ("prompts have no ids: ...",), tokenizer="Qwen/Qwen3-0.6B")
    """

    source: str  # the trainer
    notes: tuple[str, ...] = ()
    # By section of RunConfig: the few options that a recorder knows. An import knows none.
    options: OptionTables = field(default_factory=dict)
    tokenizer: str | None = None
    has_encoded_tokens: bool = False  # tokens are those of the texts, encoded again


def read_origin(folder: Path) -> ImportOrigin:
    """The origin of a folder for which `is_imported` holds; a damaged file is a PoiseError."""
    record = read_origin_record(folder)
    sections = {section.name for section in fields(RunConfig)}
    try:
        return ImportOrigin(
            source=str(record["source"]),
            notes=tuple(str(note) for note in record.get("notes", ())),
            options={
                name: dict(table)
                for name, table in record.get("options", {}).items()
                if name in sections
            },
            tokenizer=str(record["tokenizer"]) if record.get("tokenizer") else None,
            has_encoded_tokens=bool(record.get(ENCODED_TOKENS, False)),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as fault:
        raise damaged_origin(folder, fault) from fault


def read_origin_record(folder: Path) -> dict[str, Any]:
    """All fields of imported.json, as trackers show them."""
    try:
        record = json.loads((folder / IMPORTED).read_text(encoding="utf-8"))
        if not isinstance(record, dict):
            raise TypeError("not a JSON object")
    except (OSError, ValueError, TypeError, RecursionError) as fault:
        raise damaged_origin(folder, fault) from fault
    return record


def damaged_origin(folder: Path, fault: Exception) -> PoiseError:
    return PoiseError(f"{folder / IMPORTED} is damaged: {first_line(fault)}; import the run again")
