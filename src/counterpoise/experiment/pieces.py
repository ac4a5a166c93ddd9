"""Curves of an experiment in one small table: DIR/curves.parquet.

An experiment may be made in pieces, at different times and on different machines. A piece is the
curves.parquet of another folder, put into DIR/pieces/ under any name; what it holds is not trained
again. Pieces of another experiment file are refused, and those from other starting weights unless
the file allows it (`one_start = false`: then only runs with the same start are paired).

A row is an iteration of a run (curves.py). Counts and keys keep their type, measurements are
float32, so a hundred iterations of a run take about 5 KB.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from counterpoise.errors import PoiseError
from counterpoise.experiment.curves import Runs, by_run
from counterpoise.experiment.file import Experiment
from counterpoise.store.atomic import replacing

SCHEMA = 1
NAME = "curves.parquet"
EXACT = {"arm": pa.string(), "rate": pa.float64(), "seed": pa.int64(), "start": pa.string()}
COUNTS = ("iteration", "updates", "rollouts", "dropped", "batch_rows", "rows_without_signal")


def write_piece(path: Path, runs: Runs, experiment: Experiment) -> None:
    rows = [{**key._asdict(), **r} for key, curve in runs.items() for r in curve]
    names = [*EXACT, *dict.fromkeys(name for r in rows for name in r if name not in EXACT)]
    kinds = EXACT | {name: pa.int32() for name in COUNTS}
    table = pa.table(
        {n: pa.array([r.get(n) for r in rows], kinds.get(n, pa.float32())) for n in names}
    )
    meta = {
        "counterpoise_schema": str(SCHEMA),
        "experiment": experiment.name,
        "digest": experiment.digest,
    }
    with replacing(path) as temporary:
        pq.write_table(table.replace_schema_metadata(meta), temporary, compression="zstd")


def read_piece(path: Path, experiment: Experiment) -> Runs:
    try:
        table = pq.read_table(path)
        meta = {k.decode(): v.decode() for k, v in (table.schema.metadata or {}).items()}
        digest = meta["digest"]
    except (pa.ArrowException, OSError, KeyError) as fault:
        raise PoiseError(f"{path} is no piece of an experiment: {fault}; remove it") from fault
    if digest != experiment.digest:
        raise PoiseError(
            f"{path} was made by another experiment file ({meta.get('experiment', '?')} {digest}, "
            f"this one is {experiment.name} {experiment.digest}): choose another --out, or remove "
            "it"
        )
    return by_run(table.to_pylist())


def read_pieces(out: Path, experiment: Experiment) -> Runs:
    """Everything that is known in `out`: its own table and its pieces."""
    own = [out / NAME] if (out / NAME).is_file() else []
    runs: Runs = {}
    for path in [*own, *sorted((out / "pieces").glob("*.parquet"))]:
        found = read_piece(path, experiment)
        check_starts(starts(runs) | starts(found), experiment, str(path))
        runs |= {key: curve for key, curve in found.items() if key not in runs}
    return in_order(runs, experiment)


def starts(runs: Runs) -> set[str]:
    return {curve[0]["start"] for curve in runs.values()}


def check_starts(found: set[str], experiment: Experiment, where: str) -> None:
    if experiment.options.one_start and len(found) > 1:
        raise PoiseError(
            f"{where} begins with other weights than the runs before it: choose another --out, or "
            "the model that they began with"
        )


def in_order(runs: Runs, experiment: Experiment) -> Runs:
    """As the experiment lists them; a run it does not list is left out."""
    return {key: runs[key] for key in experiment.design.runs() if key in runs}
