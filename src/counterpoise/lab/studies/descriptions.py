"""What a study shows and what the paper says of it, without importing it.

A study's file imports torch, the lab and its charts, which takes seconds; a list needs two
sentences. They are read off the file's text: both are plain strings in `STUDY = Study(...)`.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from counterpoise.variants import STUDIES


@dataclass(frozen=True, slots=True)
class StudyDescription:
    """Example: StudyDescription(shows="Fig. 10", claim="The proxy follows the measured displacement.")"""

    shows: str
    claim: str


def describe_study(name: str) -> StudyDescription:
    """Of the study with this name in the table."""
    module, _, attribute = STUDIES[name].partition(":")
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    for node in ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body:
        match node:
            case ast.Assign(targets=[ast.Name(id=found)], value=ast.Call(keywords=given)):
                if found == attribute:
                    said = {word.arg: word.value for word in given}
                    return StudyDescription(
                        *(ast.literal_eval(said[key]) for key in ("shows", "claim"))
                    )
    raise AssertionError(f"{module} has no {attribute} = Study(shows=..., claim=...)")


def list_studies() -> None:
    from rich.table import Table

    from counterpoise.terminal import TerminalConsole

    table = Table("study", "shows", "what the paper says", box=None, header_style="bold")
    for name in STUDIES:
        found = describe_study(name)
        table.add_row(name, found.shows, found.claim)
    TerminalConsole().print(table)
