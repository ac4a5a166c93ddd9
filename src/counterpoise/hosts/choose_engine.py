"""Which engine a run has: the one asked for, or the one whose folder is taken up again."""

from __future__ import annotations

import json
from pathlib import Path

from counterpoise.errors import PoiseError, first_line, unknown
from counterpoise.variants import ENGINES

NAME = "engine.json"  # in the run folder of any engine but the native one
REMEDY = 'write {"engine": "trl"} or "verl" there, or remove it if the native engine made the run'


def choose(asked: str | None, out: Path | None, *, resume: bool) -> str:
    if asked is not None and asked not in ENGINES:
        raise unknown("engine", asked, ENGINES)
    if not resume or out is None:
        return asked or "native"
    stored = stored_engine(out)
    if asked not in (None, stored):
        raise PoiseError(f"{out} was made by --engine {stored}: resume with that, or start anew")
    return stored


def stored_engine(out: Path) -> str:
    path = out / NAME
    if not path.is_file():
        return "native"
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as fault:
        raise PoiseError(f"{path} cannot be read: {first_line(fault)}; {REMEDY}") from fault
    engine = told.get("engine") if isinstance(told, dict) else None
    if engine not in ENGINES:
        raise PoiseError(f"{path} names no engine; {REMEDY}")
    return str(engine)
