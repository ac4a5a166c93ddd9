"""Describe each study, its figure and the paper's claim, without importing it.

A study's file imports torch, the lab and its charts, which takes seconds; a list needs only two
strings. Both are read from the source text of `STUDY = Study(...)`, where they are literals.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from counterpoise.variants import STUDIES


@dataclass(frozen=True, slots=True)
class StudyDescription:
    """Example: StudyDescription(shows="Fig. 10", claim="The proxy follows the displacement.")"""

    shows: str
    claim: str


def describe_study(name: str) -> StudyDescription:
    """The description of the study with this name."""
    module, _, attribute = STUDIES[name].partition(":")
    # find_spec imports the parent packages only, which are empty and cheap.
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    for node in ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body:
        match node:
            case ast.Assign(
                targets=[ast.Name(id=assigned_name)], value=ast.Call(keywords=keywords)
            ):
                if assigned_name == attribute:
                    value_nodes = {keyword.arg: keyword.value for keyword in keywords}
                    return StudyDescription(
                        *(
                            ast.literal_eval(value_nodes[field_name])
                            for field_name in ("shows", "claim")
                        )
                    )
    raise AssertionError(f"{module} has no {attribute} = Study(shows=..., claim=...)")


def list_studies() -> None:
    """Print a table of all studies."""
    from rich.table import Table

    from counterpoise.terminal import TerminalConsole

    table = Table("study", "shows", "what the paper says", box=None, header_style="bold")
    for study_name in STUDIES:
        description = describe_study(study_name)
        table.add_row(study_name, description.shows, description.claim)
    TerminalConsole().print(table)
