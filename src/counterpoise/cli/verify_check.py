"""`poise verify-check`: measure how often the verifier is wrong on reference answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from counterpoise.errors import PoiseError
from counterpoise.terminal import echo, echo_message, one_line

if TYPE_CHECKING:
    from rich.table import Table

# Kind of case -> title of its column, short enough for a table 80 characters wide.
COLUMN_TITLES = {
    "itself": "itself", "forms": "forms", "algebra": "algebra", "shuffled": "shuffled",
    "near misses": "misses", "parts": "parts", "echoes": "echoes", "asked": "asked",
    "unboxed": "unboxed",
}  # fmt: skip


def verify_check(
    files: Annotated[
        list[Path] | None, typer.Argument(help="JSON Lines files with id, problem and answer.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", help="A folder of benchmark files; those with known names are used."
        ),
    ] = None,
    items: Annotated[
        int,
        typer.Option(
            "--items", min=0, help="Problems per benchmark with rewritten answers; 0: all."
        ),
    ] = 200,
    pairs: Annotated[
        int, typer.Option("--pairs", min=0, help="Pairs of different references per benchmark.")
    ] = 1000,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.1, help="Seconds allowed for one comparison.")
    ] = 5.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Measure false rejects and false accepts of the math verifier on reference answers.

    Every reference answer must be accepted as it is (column `itself`) and in other forms (`forms`,
    `algebra`). The verifier must reject references of other problems (`shuffled`), near misses
    (`misses`), lists with too few or too many answers (`parts`), the reference as an unevaluated
    computation (`echoes`), formulas of the question (`asked`) and answers without a box
    (`unboxed`).

    - `poise verify-check --data data/`
    - `poise verify-check mine.jsonl --items 0`
    """
    import json

    from counterpoise.lab.verifier_audit.measure import audit_verifier, tallies_to_data
    from counterpoise.task.columns import FieldOptions
    from counterpoise.task.contamination.items import name_benchmarks
    from counterpoise.task.files_task import read_problems

    results: dict[str, dict[str, Any]] = {}
    fields = FieldOptions(remedy="name it '{role}'")
    paths = _reference_files(files or [], data)
    # Read all files before auditing any: a mistake in the last must not cost an hour of work.
    problems_by_name = {
        name: read_problems(str(path), fields)
        for name, path in zip(name_benchmarks(paths), paths, strict=True)
    }
    for name, problems in problems_by_name.items():
        if not as_json:
            echo_message(f"{name}: {len(problems):,} references")
        results[name] = {
            "references": len(problems),
            **tallies_to_data(audit_verifier(problems, items, pairs, timeout)),
        }
    if as_json:
        echo(json.dumps(results))
        return
    _print_results(results)


def _reference_files(files: list[Path], data: Path | None) -> list[Path]:
    if files and data:
        raise PoiseError("name files or --data, not both")
    if data is None:
        if not files:
            raise PoiseError(
                "nothing to check: name .jsonl files, or give a folder of them with --data"
            )
        return files
    from counterpoise.task.benchmarks import BENCHMARKS

    if not data.is_dir():
        raise PoiseError(f"{data}: no such folder; --data is a folder of .jsonl files")
    candidates = [data / benchmark.file for benchmark in BENCHMARKS.values()]
    existing = [path for path in candidates if path.is_file()]
    if not existing:
        names = ", ".join(path.name for path in candidates)
        raise PoiseError(f"{data} holds none of {names}; name other files without --data")
    return existing


def _print_results(results: dict[str, dict[str, Any]]) -> None:
    """The table, then the time of each benchmark and examples of its wrong verdicts."""
    from counterpoise.terminal import TerminalConsole

    console = TerminalConsole()
    console.print(_audit_table(results))
    console.print(
        "wrong verdicts / cases; `itself`, `forms`, `algebra` must be accepted, the others rejected"
    )
    for benchmark_name, result in results.items():
        line = (
            f"  {benchmark_name}: {1000 * result['seconds'] / result['verified']:.2f} ms a "
            f"verdict, {result['slowest_seconds']:.2f} s the slowest"
        )
        console.print(line, highlight=False, markup=False, soft_wrap=True)
        if result["timeouts"] or result["crashes"]:
            line = (
                f"  {benchmark_name}: {result['timeouts']} cases took longer than --timeout, "
                f"{result['crashes']} crashed the verifier"
            )
            console.print(line, highlight=False, markup=False, soft_wrap=True)
        for kind, tally in result["kinds"].items():
            for case in tally["wrong_cases"][:5]:
                # The end of a response holds its answer.
                line = (
                    f"  {benchmark_name} {kind}: {case['response'][-90:]!r} for "
                    f"{case['gold'][:60]!r}"
                )
                console.print(line, highlight=False, markup=False, soft_wrap=True)


def _audit_table(results: dict[str, dict[str, Any]]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, padding=0)  # the box has a space between columns
    table.add_column("benchmark", overflow="fold")
    for title in COLUMN_TITLES.values():
        table.add_column(title, justify="right", overflow="fold")
    for benchmark_name, result in results.items():
        row = []
        for kind in COLUMN_TITLES:
            tally = result["kinds"][kind]
            wrong_share = f"{tally['wrong']}/{tally['cases']}" if tally["cases"] else "-"
            row.append(Text(wrong_share, style="bold" if tally["wrong"] else ""))
        table.add_row(Text(one_line(benchmark_name)), *row)
    return table
