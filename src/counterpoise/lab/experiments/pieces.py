"""Curves of an experiment in one small table: DIR/curves.parquet.

An experiment may be made in pieces, at different times and on different machines. A piece is the
curves.parquet of another folder, put into DIR/pieces/ under any name; what it holds is not trained
again. Pieces of another experiment file are refused unless this one shares its runs
(reused_runs.py), and those from other starting weights unless the file allows it (`one_start =
false`: then only runs with the same start are paired).

Pieces may overlap. A run that several have counts once, and which one does is decided by what there
is, never by how it went: of the starts, the one that most runs of its seed have, so that pairs stay
whole; then the folder's own table before pieces, and pieces by name.

A row is an iteration of a run (curves.py). Counts and keys keep their type, measurements are
float32, so a hundred iterations of a run take 3 to 5 KB. Runs that failed have no rows; their names
and reasons are in the table's metadata. A run that failed in one piece and was made in another is
made.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from counterpoise.errors import PoiseError
from counterpoise.files import replacing
from counterpoise.lab.experiments.curves import Runs, group_by_run
from counterpoise.lab.experiments.design import RunKey
from counterpoise.lab.experiments.experiment_file import Experiment
from counterpoise.lab.experiments.failures import Failures
from counterpoise.lab.experiments.reused_runs import (
    ORIGIN_COLUMN,
    find_shared_experiment,
    matching_runs,
)
from counterpoise.statistics.finding import Record

SCHEMA = 1
CURVES_FILE = "curves.parquet"
KEY_COLUMNS = {"arm": pa.string(), "rate": pa.float64(), "seed": pa.int64(), "start": pa.string()}
COUNT_COLUMNS = ("iteration", "updates", "rollouts", "dropped", "batch_rows", "rows_without_signal")


class Piece(NamedTuple):
    """What is known of an experiment's runs.

    Example:
        Piece({Key("QB", 1e-5, 3): [...]}, {Key("QB", 1e-5, 4): "out of memory: ..."})
    """

    runs: Runs  # finished
    failures: Failures


def write_piece(path: Path, piece: Piece, experiment: Experiment) -> None:
    rows = [{**key._asdict(), **r} for key, curve in piece.runs.items() for r in curve]
    names = [
        *KEY_COLUMNS,
        *dict.fromkeys(name for r in rows for name in r if name not in KEY_COLUMNS),
    ]
    kinds = (
        KEY_COLUMNS | {name: pa.int32() for name in COUNT_COLUMNS} | {ORIGIN_COLUMN: pa.string()}
    )
    table = pa.table(
        {n: pa.array([r.get(n) for r in rows], kinds.get(n, pa.float32())) for n in names}
    )
    meta = {
        "counterpoise_schema": str(SCHEMA),
        "experiment": experiment.name,
        "digest": experiment.digest,
        "failures": json.dumps([[*key, said] for key, said in piece.failures.items()]),
    }
    with replacing(path) as temporary:
        pq.write_table(table.replace_schema_metadata(meta), temporary, compression="zstd")


def read_piece(path: Path, experiment: Experiment) -> Piece:
    try:
        table = pq.read_table(path)
        meta = {k.decode(): v.decode() for k, v in (table.schema.metadata or {}).items()}
        digest = meta["digest"]
    except (pa.ArrowException, OSError, KeyError) as fault:
        raise PoiseError(f"{path} is no piece of an experiment: {fault}; remove it") from fault
    runs = group_by_run(table.to_pylist())
    if digest == experiment.digest:
        failures = json.loads(meta.get("failures", "[]"))
        return Piece(runs, {RunKey(*key): said for *key, said in failures})
    if other := find_shared_experiment(experiment, digest):
        return Piece(matching_runs(runs, other, experiment), {})
    raise PoiseError(
        f"{path} was made by another experiment file ({meta.get('experiment', '?')} {digest}, this "
        f"one is {experiment.name} {experiment.digest}): remove it, choose another --out, or name "
        "that file in experiment.shares to take the runs that both have"
    )


def read_pieces(out: Path, experiment: Experiment) -> Piece:
    """Everything that is known in `out`: its own table and its pieces."""
    own = [out / CURVES_FILE] if (out / CURVES_FILE).is_file() else []
    pieces: list[Piece] = []
    for path in [*own, *sorted((out / "pieces").glob("*.parquet"))]:
        pieces.append(read_piece(path, experiment))
        known = set().union(*(start_digests(piece.runs) for piece in pieces))
        check_starts(known, experiment, str(path))
    failures = {key: said for piece in reversed(pieces) for key, said in piece.failures.items()}
    return order_runs(Piece(_once([piece.runs for piece in pieces]), failures), experiment)


def _once(found: list[Runs]) -> Runs:
    """Every run once: of the start that most runs of its seed have, else the first."""
    known: dict[RunKey, dict[str, list[Record]]] = {}
    for runs in found:
        for key, curve in runs.items():
            known.setdefault(key, {}).setdefault(curve[0]["start"], curve)
    common = Counter((key.seed, start) for key, starts in known.items() for start in starts)
    return {
        key: starts[max(starts, key=lambda start: common[key.seed, start])]
        for key, starts in known.items()
    }


def start_digests(runs: Runs) -> set[str]:
    return {curve[0]["start"] for curve in runs.values()}


def check_starts(found: set[str], experiment: Experiment, where: str) -> None:
    if experiment.options.one_start and len(found) > 1:
        raise PoiseError(
            f"{where} begins with other weights than the runs before it: take the model that they "
            "began with, or another --out"
        )


def order_runs(piece: Piece, experiment: Experiment) -> Piece:
    """As the experiment lists them; a run it does not list is left out, and one that was made has
    not failed."""
    listed = experiment.design.run_keys()
    runs = {key: piece.runs[key] for key in listed if key in piece.runs}
    failed = {k: piece.failures[k] for k in listed if k in piece.failures and k not in runs}
    return Piece(runs, failed)
