"""Store the curves of an experiment in curves.parquet, and merge pieces from other folders.

An experiment may be trained in pieces, at different times and on different machines. A piece is the
curves.parquet of another folder, put into DIR/pieces/ under any name; its runs are not trained
again. Pieces of another experiment file are refused unless this one shares its runs
(reused_runs.py), and those from other starting weights unless the file allows it (`one_start =
false`: then only runs with the same start are paired).

Pieces may overlap. A run in several pieces counts once; which copy is taken never depends on its
result: one with the starting weights that most runs of its seed have, so that pairs stay complete;
if there are several, that of the folder's own table, or else of the first piece by name.

A row is an iteration of a run (curves.py). Counts and keys keep their type, measurements are
float32, so a hundred iterations of a run take 3 to 5 KB. Failed runs have no rows; their names and
reasons are in the table's metadata. A run that failed in one piece and finished in another is
finished.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from counterpoise.errors import PoiseError
from counterpoise.files import atomic_write
from counterpoise.lab.experiments.curves import Runs, group_by_run
from counterpoise.lab.experiments.design import RunKey
from counterpoise.lab.experiments.experiment_file import Experiment
from counterpoise.lab.experiments.failures import Failures
from counterpoise.lab.experiments.pilot_rates import (
    RATE_COLUMN,
    PilotRuns,
    check_trained_rates,
    find_pilot,
)
from counterpoise.lab.experiments.reused_runs import (
    ORIGIN_COLUMN,
    find_shared_experiment,
    matching_runs,
)
from counterpoise.statistics.finding import Record
from counterpoise.store.parquet_errors import PARQUET_ERRORS

SCHEMA = 1
CURVES_FILE = "curves.parquet"
PROBLEMS_COLUMN = "problems"  # a digest of the file of problems; none where the task makes its own
KEY_COLUMNS = {"arm": pa.string(), "rate": pa.float64(), "seed": pa.int64(), "start": pa.string()}
COUNT_COLUMNS = ("iteration", "updates", "rollouts", "dropped", "batch_rows", "rows_without_signal")


class Piece(NamedTuple):
    """The finished and failed runs of an experiment that are known.

    Example:
        Piece({RunKey("QB", 1e-5, 3): [...]}, {RunKey("QB", 1e-5, 4): "out of memory: ..."})
    """

    runs: Runs  # finished
    failures: Failures


class KnownRuns(NamedTuple):
    """What the folder of an experiment and its pieces/ have."""

    runs: Runs  # finished
    failures: Failures
    pilot: PilotRuns | None  # where a pilot chooses the rates


@dataclass(frozen=True, slots=True)
class PieceTable:
    """One table as it was written, by whichever experiment."""

    path: Path
    experiment: str  # the name of its file
    digest: str
    piece: Piece


def write_piece(path: Path, piece: Piece, experiment: Experiment) -> None:
    """Write all curves as one table, with the experiment's digest in its metadata."""
    table_rows = [
        {**run_key._asdict(), **record} for run_key, curve in piece.runs.items() for record in curve
    ]
    # Runs may have different columns (other evaluation settings): take all of them.
    columns = [
        *KEY_COLUMNS,
        *dict.fromkeys(
            column for record in table_rows for column in record if column not in KEY_COLUMNS
        ),
    ]
    column_types = (
        KEY_COLUMNS
        | {column: pa.int32() for column in COUNT_COLUMNS}
        | {ORIGIN_COLUMN: pa.string(), PROBLEMS_COLUMN: pa.string(), RATE_COLUMN: pa.float64()}
    )
    table = pa.table(
        {
            column: pa.array(
                [record.get(column) for record in table_rows],
                column_types.get(column, pa.float32()),
            )
            for column in columns
        }
    )
    metadata = {
        "counterpoise_schema": str(SCHEMA),
        "experiment": experiment.name,
        "digest": experiment.digest,
        "failures": json.dumps([[*run_key, reason] for run_key, reason in piece.failures.items()]),
    }
    with atomic_write(path) as temporary:
        pq.write_table(table.replace_schema_metadata(metadata), temporary, compression="zstd")


def open_table(path: Path) -> PieceTable:
    """Read one table, which says itself what experiment it is of."""
    try:
        table = pq.read_table(path)
        metadata = {
            metadata_key.decode(): metadata_value.decode()
            for metadata_key, metadata_value in (table.schema.metadata or {}).items()
        }
        digest = metadata["digest"]
    except PARQUET_ERRORS as fault:
        raise PoiseError(f"{path} is not a piece of an experiment: {fault}; remove it") from fault
    failures = {
        RunKey(*run_key): reason for *run_key, reason in json.loads(metadata.get("failures", "[]"))
    }
    piece = Piece(group_by_run(table.to_pylist()), failures)
    return PieceTable(path, metadata.get("experiment", "?"), digest, piece)


def read_piece(path: Path, experiment: Experiment) -> Piece:
    """Read one table; another experiment's table gives the runs that both experiments have."""
    return select_runs(open_table(path), experiment, find_pilot(experiment))


def select_runs(table: PieceTable, experiment: Experiment, pilot: Experiment | None) -> Piece:
    """What a table has of the experiment: nothing if it is of the pilot, which is not judged."""
    if pilot and table.digest == pilot.digest:
        return Piece({}, {})
    if table.digest == experiment.digest:
        return table.piece
    # A piece of another experiment contributes runs, but no failures: they are not of this one.
    if other_experiment := find_shared_experiment(experiment, table.digest):
        return Piece(matching_runs(table.piece.runs, other_experiment, experiment), {})
    if pilot and table.experiment == pilot.name:
        raise PoiseError(
            f"{table.path} was made by another {pilot.name} than the one that chooses the rates "
            f"({table.digest}, now {pilot.digest}): the pilot's file has changed since; restore it"
        )
    raise PoiseError(
        f"{table.path} was made by another experiment file ({table.experiment} {table.digest}, "
        f"this one is {experiment.name} {experiment.digest}): remove it, choose another --out, or "
        "name that file in experiment.shares to take the runs that both have"
    )


def read_pieces(out: Path, experiment: Experiment) -> KnownRuns:
    """Everything that is known in `out`: its own table and all pieces."""
    pilot_experiment = find_pilot(experiment)
    own_table = [out / CURVES_FILE] if (out / CURVES_FILE).is_file() else []
    paths = [*own_table, *sorted((out / "pieces").glob("*.parquet"))]
    tables = [open_table(path) for path in paths]
    pilot = _select_pilot(tables, pilot_experiment) if pilot_experiment else None
    arm_rates = pilot.choice.rates if pilot else {}
    experiment = replace(experiment, design=replace(experiment.design, arm_rates=arm_rates))
    pieces: list[Piece] = []
    for table in tables:
        pieces.append(select_runs(table, experiment, pilot_experiment))
        known_starts = set().union(*(start_digests(piece.runs) for piece in pieces))
        check_starts(known_starts, experiment, str(table.path))
        known_problems = set().union(*(problem_digests(piece.runs) for piece in pieces))
        check_problems(known_problems, str(table.path))
    known = order_runs(_merge_pieces(pieces), experiment)
    check_trained_rates(known.runs, arm_rates)
    return KnownRuns(known.runs, known.failures, pilot)


def _select_pilot(tables: Sequence[PieceTable], pilot: Experiment) -> PilotRuns:
    merged = _merge_pieces([table.piece for table in tables if table.digest == pilot.digest])
    return PilotRuns(pilot, merged.runs, merged.failures)


def _merge_pieces(pieces: Sequence[Piece]) -> Piece:
    """Every run and failure once; of several reasons for a failure that of the first piece."""
    failures = {
        run_key: reason for piece in reversed(pieces) for run_key, reason in piece.failures.items()
    }
    return Piece(_merge_runs([piece.runs for piece in pieces]), failures)


def _merge_runs(pieces_runs: list[Runs]) -> Runs:
    """Every run once: with the start that most runs of its seed have, else the first."""
    curves_by_start: dict[RunKey, dict[str, list[Record]]] = {}
    for runs in pieces_runs:
        for run_key, curve in runs.items():
            curves_by_start.setdefault(run_key, {}).setdefault(curve[0]["start"], curve)
    start_counts = Counter(
        (run_key.seed, start_digest)
        for run_key, curve_by_start in curves_by_start.items()
        for start_digest in curve_by_start
    )
    return {
        run_key: curve_by_start[
            max(curve_by_start, key=lambda start_digest: start_counts[run_key.seed, start_digest])
        ]
        for run_key, curve_by_start in curves_by_start.items()
    }


def start_digests(runs: Runs) -> set[str]:
    """The starting weights of all runs, by their digests."""
    return {curve[0]["start"] for curve in runs.values()}


def problem_digests(runs: Runs) -> set[str]:
    """The files of problems of all runs, by their digests; runs without one are left out."""
    digests = {curve[0].get(PROBLEMS_COLUMN) for curve in runs.values()}
    return {digest for digest in digests if digest}


def check_problems(digests: set[str], where: str) -> None:
    """Raise an error if runs were trained on different files of problems."""
    if len(digests) > 1:
        raise PoiseError(
            f"{where} belongs to another file of problems than the earlier runs: give the file "
            "that they were trained on (--data), or another --out"
        )


def check_pilot_start(pilot: PilotRuns, start: str, model: str) -> None:
    """Raise an error if the pilot began with other weights than `start`, those of `model`."""
    if start_digests(pilot.runs) - {start}:
        raise PoiseError(
            f"the pilot {pilot.experiment.name} in pieces/ started from other weights than "
            f"{model}: run a pilot with this model"
        )


def check_starts(start_weights: set[str], experiment: Experiment, where: str) -> None:
    """Raise an error if runs have different starting weights and the file does not allow it."""
    if experiment.options.one_start and len(start_weights) > 1:
        raise PoiseError(
            f"{where} starts from other weights than the earlier runs: use the model that they "
            "started from, or another --out"
        )


def order_runs(piece: Piece, experiment: Experiment) -> Piece:
    """Sort runs as the experiment lists them, and drop unlisted ones and outdated failures."""
    listed_keys = experiment.design.run_keys()
    runs = {run_key: piece.runs[run_key] for run_key in listed_keys if run_key in piece.runs}
    failures = {
        run_key: piece.failures[run_key]
        for run_key in listed_keys
        if run_key in piece.failures and run_key not in runs
    }
    return Piece(runs, failures)
