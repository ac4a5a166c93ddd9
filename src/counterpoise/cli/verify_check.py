"""`poise verify-check`: how often the verifier is wrong on the references of benchmarks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from counterpoise.errors import PoiseError
from counterpoise.terminal import echo, echo_message, one_line

if TYPE_CHECKING:
    from rich.table import Table

COLUMN_TITLES = {
    "itself": "itself", "forms": "forms", "algebra": "algebra", "shuffled": "shuffled",
    "near misses": "misses", "parts": "parts", "echoes": "echoes", "asked": "asked",
    "unboxed": "unboxed",
}  # fmt: skip


def verify_check(
    files: Annotated[
        list[Path] | None, typer.Argument(help="JSON lines with id, problem and answer.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option("--data", help="A folder: the benchmarks it holds, by name.")
    ] = None,
    items: Annotated[
        int, typer.Option("--items", min=0, help="Problems of each that forms are made of; 0: all.")
    ] = 200,
    pairs: Annotated[
        int, typer.Option("--pairs", min=0, help="Shuffled pairs of each benchmark.")
    ] = 1000,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.1, help="Seconds for one answer.")
    ] = 5.0,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """Measure false rejects and false accepts of the math verifier on reference answers.

    Every reference must verify against itself and in other forms; other references, near misses,
    parts, echoes of the question and answers in no box must not.

    - `poise verify-check --data benchmarks/`
    - `poise verify-check mine.jsonl --items 0`
    """
    import json

    from counterpoise.lab.verifier_audit.measure import audit_verifier, tallies_to_data
    from counterpoise.task.jsonl import FieldNames, read_problems

    found: dict[str, dict[str, Any]] = {}
    fields = FieldNames(remedy="name it '{role}'")
    read_files = {
        path: read_problems(str(path), fields) for path in _reference_files(files or [], data)
    }
    for path, problems in read_files.items():
        if not as_json:
            echo_message(f"{path.stem}: {len(problems):,} references")
        found[path.stem] = {
            "references": len(problems),
            **tallies_to_data(audit_verifier(problems, items, pairs, timeout)),
        }
    if as_json:
        echo(json.dumps(found))
        return
    from counterpoise.terminal import TerminalConsole

    console = TerminalConsole()
    console.print(_audit_table(found))
    console.print("wrong verdicts of all; `itself`, `forms`, `algebra` must score 1, the rest 0")
    for name, one in found.items():
        for kind, tally in one["kinds"].items():
            for case in tally["wrong_cases"][:5]:
                shown = f"  {name} {kind}: {case['response'][-90:]!r} for {case['gold'][:60]!r}"
                console.print(shown, highlight=False, markup=False, soft_wrap=True)


def _reference_files(files: list[Path], data: Path | None) -> list[Path]:
    if files and data:
        raise PoiseError("name files or --data, not both")
    if data is None:
        if not files:
            raise PoiseError("nothing to check: name .jsonl files, or a folder of them by --data")
        return files
    from counterpoise.lab.evaluate.benchmarks import BENCHMARKS

    if not data.is_dir():
        raise PoiseError(f"{data}: no such folder; --data holds benchmarks as .jsonl files")
    known = [data / benchmark.file for benchmark in BENCHMARKS.values()]
    there = [path for path in known if path.is_file()]
    if not there:
        wanted = ", ".join(path.name for path in known)
        raise PoiseError(f"{data} holds none of {wanted}; name other files without --data")
    return there


def _audit_table(found: dict[str, dict[str, Any]]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False)
    table.add_column("benchmark", overflow="fold")
    for name in (*COLUMN_TITLES.values(), "ms", "slowest"):
        table.add_column(name, justify="right", overflow="fold")
    for name, one in found.items():
        row = []
        for kind in COLUMN_TITLES:
            tally = one["kinds"][kind]
            share = f"{tally['wrong']}/{tally['cases']}" if tally["cases"] else "-"
            row.append(Text(share, style="bold" if tally["wrong"] else ""))
        mean = 1000 * one["seconds"] / one["verified"]
        table.add_row(Text(one_line(name)), *row, f"{mean:.2f}", f"{one['slowest_seconds']:.2f} s")
    return table
