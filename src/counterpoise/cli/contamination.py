"""`poise contamination`: training prompts that are in a benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from counterpoise.terminal import echo, one_line

if TYPE_CHECKING:
    from rich.table import Table

    from counterpoise.task.contamination.search import OverlapReport


def contamination(
    train: Annotated[Path, typer.Option("--train", "-t", help="JSON lines with a problem each.")],
    evals: Annotated[
        list[str],
        typer.Option("--eval", "-e", help="Benchmarks, JSON lines too: one or more files."),
    ],
    more: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    clean: Annotated[
        Path | None,
        typer.Option("--write-clean", help="Write the training file without the copies."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The pairs side by side: an HTML file."),
    ] = None,
    field: Annotated[
        str, typer.Option("--problem-field", help="Of the training file: a problem's text.")
    ] = "problem",
    eval_field: Annotated[
        str, typer.Option("--eval-field", help="Of the benchmarks: a problem's text.")
    ] = "problem",
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable, with texts.")] = False,
) -> None:
    """Find training prompts that are benchmark problems: copied, reworded or translated.

    - `poise contamination --train dapo.jsonl --eval amc23.jsonl math500.jsonl --out pairs.html`
    - `poise contamination --train dapo.jsonl --eval data/a*.jsonl --write-clean clean.jsonl`
    """
    import json

    from counterpoise.task.contamination.clean import write_clean
    from counterpoise.task.contamination.items import read_benchmarks, read_items
    from counterpoise.task.contamination.search import find_overlap, overlap_to_data

    items = read_items(train, field)
    files = [Path(name) for name in [*evals, *(more or [])]]
    found = find_overlap(items, read_benchmarks(files, eval_field))
    said = []
    if clean is not None:
        kept = write_clean(items, found.train_copies(), clean)
        said.append(f"clean  {clean}: {kept:,} of {len(items):,} prompts")
    if out is not None:
        from counterpoise.report.pages.contamination import write_contamination_page

        said.append(f"page   {write_contamination_page(overlap_to_data(found), train.stem, out)}")
    if as_json:
        echo(json.dumps(overlap_to_data(found)))
        return
    from counterpoise.terminal import TerminalConsole

    console = TerminalConsole()
    console.print(_overlap_table(found))
    console.print(
        f"{len(found.train_copies()):,} of {found.train:,} training prompts are copies "
        f"({found.seconds:.1f} s)",
        highlight=False,
    )
    for line in said:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _overlap_table(found: OverlapReport) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from counterpoise.task.contamination.copy_rules import KINDS

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False)
    table.add_column("benchmark", overflow="fold")
    for name in ("problems", "copied", *KINDS):
        table.add_column(name, justify="right", style="dim" if name == "related" else "")
    for name, size in found.benchmarks.items():
        counts = [str(count or "-") for count in found.counts_by_kind(name).values()]
        copied = Text(str(found.count_copied(name)), style="bold")
        table.add_row(Text(one_line(name)), f"{size:,}", copied, *counts)
    return table
