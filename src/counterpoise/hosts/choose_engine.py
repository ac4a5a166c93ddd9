"""Choose a run's engine: the requested one, or on resume the one that made the folder."""

from __future__ import annotations

import json
from pathlib import Path

from counterpoise.errors import PoiseError, first_line, unknown_name
from counterpoise.store.folder import ENGINE
from counterpoise.variants import ENGINES

REMEDY = 'write {"engine": "trl"} or "verl" there, or remove it if the native engine made the run'


def choose_engine(requested: str | None, out: Path | None, *, resume: bool) -> str:
    """The engine's name; a resumed run keeps the engine that started it."""
    if requested is not None and requested not in ENGINES:
        raise unknown_name("engine", requested, ENGINES)
    if not resume or out is None:
        return requested or "native"
    previous_engine = stored_engine(out)
    # Checkpoints and random numbers differ between engines: switching would not be a resume.
    if requested not in (None, previous_engine):
        raise PoiseError(
            f"{out} was made by --engine {previous_engine}: resume with that, or start a new run"
        )
    return previous_engine


def stored_engine(out: Path) -> str:
    """The engine that made the run folder `out`."""
    path = out / ENGINE
    if not path.is_file():
        return "native"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as fault:
        raise PoiseError(f"{path} cannot be read: {first_line(fault)}; {REMEDY}") from fault
    engine = content.get("engine") if isinstance(content, dict) else None
    if engine not in ENGINES:
        raise PoiseError(f"{path} names no engine; {REMEDY}")
    return str(engine)
