"""`poise contamination`: find training prompts that are benchmark problems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from counterpoise.cli.flags import takes_flags
from counterpoise.errors import PoiseError
from counterpoise.terminal import echo, echo_message, one_line

if TYPE_CHECKING:
    from rich.table import Table

    from counterpoise.task.contamination.search import OverlapReport


@dataclass(frozen=True)
class ContaminationFlags:
    train: Annotated[
        Path,
        typer.Option("--train", "-t", help="The training file: JSON lines, JSON or parquet."),
    ]
    bench: Annotated[
        list[str] | None,
        typer.Option(
            "--bench",
            "-b",
            help="Benchmarks, one or more: files of the same formats, or names in --data.",
        ),
    ] = None
    # --bench takes one value: of `--bench data/*.jsonl`, which a shell expands, all files but the
    # first end up here.
    more_benchmarks: Annotated[list[str] | None, typer.Argument(hidden=True)] = None
    clean: Annotated[
        Path | None,
        typer.Option("--write-clean", help="Write the training file without the copies."),
    ] = None
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="HTML file that shows the pairs side by side."),
    ] = None
    field: Annotated[
        str,
        typer.Option(
            "--problem-field", help="The training file's field that holds the problem text."
        ),
    ] = "problem"
    data: Annotated[
        Path | None, typer.Option("--data", help="The folder of the benchmarks named by --bench.")
    ] = None
    fields: Annotated[
        str,
        typer.Option(
            "--fields", help="The benchmarks' field with the problem text, as problem=FIELD."
        ),
    ] = ""
    evals: Annotated[list[str] | None, typer.Option("--eval", "-e", hidden=True)] = None
    eval_field: Annotated[str, typer.Option("--eval-field", hidden=True)] = ""
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with the texts.")] = False


@takes_flags
def contamination(flags: ContaminationFlags) -> None:
    """Find training prompts that are benchmark problems: copied, reworded or translated.

    - `poise contamination --train dapo.jsonl --bench amc23.jsonl math500.jsonl --out pairs.html`
    - `poise contamination --train dapo.jsonl --bench amc23,math500 --data data`
    - `poise contamination --train dapo.jsonl --bench data/a*.jsonl --write-clean clean.jsonl`
    """
    import json

    from counterpoise.task.contamination.clean import write_clean
    from counterpoise.task.contamination.items import read_benchmarks, read_items
    from counterpoise.task.contamination.search import find_overlap, overlap_to_data

    benchmark_field = flags.eval_field or benchmark_problem_field(flags.fields)
    files = benchmark_files(
        [*(flags.bench or []), *(flags.evals or []), *(flags.more_benchmarks or [])], flags.data
    )
    if flags.clean is not None:
        check_not_an_input(flags.clean, [flags.train, *files])
    items = read_items(flags.train, flags.field)
    overlap = find_overlap(items, read_benchmarks(files, benchmark_field))
    written_files = []
    if flags.clean is not None:
        num_clean = write_clean(items, overlap.train_copies(), flags.clean)
        written_files.append(f"clean  {flags.clean}: {num_clean:,} of {len(items):,} prompts")
    if flags.out is not None:
        from counterpoise.report.pages.contamination import write_contamination_page

        page = write_contamination_page(overlap_to_data(overlap), flags.train.stem, flags.out)
        written_files.append(f"page   {page}")
    # Files are written with --json too; only the printed summary differs.
    if flags.as_json:
        echo(json.dumps(overlap_to_data(overlap)))
    else:
        _print_overlap(overlap, written_files)
    # Printed last: if the command fails, the error stays a single line.
    if flags.evals:
        echo_message("poise: --eval is now --bench, as in poise eval")
    if flags.eval_field:
        echo_message(
            f"poise: --eval-field is now --fields problem={flags.eval_field}, as in poise eval"
        )


def benchmark_files(names: Sequence[str], data: Path | None) -> list[Path]:
    """The files that --bench names: files themselves, or benchmarks in the folder --data."""
    from counterpoise.task.benchmarks import BENCHMARKS, find_file

    if not names:
        raise PoiseError(
            "--bench is missing: the benchmark files to compare the training file with"
        )
    if data is None:
        return [Path(name) for name in names]
    files = []
    for name in (piece for text in names for piece in text.split(",") if piece):
        benchmark = BENCHMARKS.get(name)
        expected = data / (benchmark.file if benchmark else f"{name}.jsonl")
        path = find_file(expected.stem, data)
        files.append(path or (Path(name) if Path(name).is_file() else expected))
    return files


def check_not_an_input(clean: Path, inputs: Sequence[Path]) -> None:
    """Refuse a --write-clean that would replace one of the files that are read."""
    for path in inputs:
        if clean.exists() and path.exists() and clean.samefile(path):
            raise PoiseError(
                f"--write-clean {clean} would replace a file that this command reads: choose "
                "another name"
            )


def benchmark_problem_field(fields: str) -> str:
    """The benchmarks' field for the problem text, from `--fields problem=question`."""
    from counterpoise.cli.evaluate import parse_pairs

    # Other roles are ignored, so that the value given to `poise eval` can be used unchanged.
    return parse_pairs("--fields", fields).get("problem", "problem")


def _print_overlap(overlap: OverlapReport, written_files: Sequence[str]) -> None:
    from counterpoise.terminal import TerminalConsole

    console = TerminalConsole()
    console.print(_overlap_table(overlap))
    console.print(
        f"{len(overlap.train_copies()):,} of {overlap.num_prompts:,} training prompts are copies "
        f"({overlap.seconds:.1f} s)",
        highlight=False,
    )
    for line in written_files:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _overlap_table(overlap: OverlapReport) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from counterpoise.task.contamination.copy_rules import KINDS

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False)
    table.add_column("benchmark", overflow="fold")
    for name in ("problems", "copied", *KINDS):
        table.add_column(name, justify="right", style="dim" if name == "related" else "")
    for name, size in overlap.benchmarks.items():
        counts = [str(count or "-") for count in overlap.counts_by_kind(name).values()]
        copied = Text(str(overlap.count_copied(name)), style="bold")
        table.add_row(Text(one_line(name)), f"{size:,}", copied, *counts)
    return table
