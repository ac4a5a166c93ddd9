"""Token weights that `poise credit` computed for a run: RUN/credit/step_00012.parquet.

A row is one rollout (`group`, `index`); every other column is a weighting, a list with a weight for
each token of the response, or null for a rollout without signal. A later call adds its columns, or
replaces those of the same name. `poise serve` colours tokens by them.

They are derived from the run, so they have no checksums; a resumed run removes those of iterations
that it repeats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from counterpoise.errors import PoiseError, first_line
from counterpoise.files import atomic_write, explain_write_errors
from counterpoise.store.parquet_errors import PARQUET_ERRORS
from counterpoise.store.schema import step_file_name
from counterpoise.types import Floats, RowName

CREDIT = "credit"  # the folder of the tables
KEYS = ("group", "index")


def credit_file(run: Path, iteration: int) -> Path:
    return run / step_file_name(CREDIT, iteration)


def write_weights(
    run: Path, iteration: int, names: Sequence[RowName], weightings: Mapping[str, list[Floats]]
) -> Path:
    """Add weightings of one iteration; `names` are the rollouts, in the order of the weights."""
    path = credit_file(run, iteration)
    columns: dict[str, Mapping[RowName, Sequence[float] | Floats]] = {
        **_stored_columns(path),
        **{label: dict(zip(names, weights, strict=True)) for label, weights in weightings.items()},
    }
    rollouts = sorted({name for weights in columns.values() for name in weights})
    table = pa.table(
        {
            "group": pa.array([group for group, _ in rollouts], pa.string()),
            "index": pa.array([index for _, index in rollouts], pa.int32()),
            **{
                label: pa.array([weights.get(name) for name in rollouts], pa.list_(pa.float32()))
                for label, weights in columns.items()
            },
        }
    )
    with explain_write_errors(path, run, "run poise credit again"):
        path.parent.mkdir(exist_ok=True)
        with atomic_write(path, durable=False) as temporary:
            pq.write_table(table, temporary)
    return path


def read_weights(path: Path, name: RowName) -> dict[str, Floats]:
    """The weights [T] of one rollout by weighting; a damaged file is a PoiseError."""
    try:
        table = pq.read_table(path, use_threads=False)
        rollouts = _rollout_names(table)
        if name not in rollouts:
            return {}
        row = rollouts.index(name)
        cells = {label: table[label][row] for label in _weighting_labels(table)}
        return {
            label: np.asarray(cell.values, np.float32)
            for label, cell in cells.items()
            if cell.is_valid
        }
    except PARQUET_ERRORS as fault:
        raise PoiseError(
            f"{path.parent.name}/{path.name} is damaged: {first_line(fault)}"
        ) from fault


def _stored_columns(path: Path) -> dict[str, dict[RowName, list[float]]]:
    """Of every stored weighting: the weights of each rollout. A damaged table counts as none."""
    try:
        table = pq.read_table(path)
        rollouts = _rollout_names(table)
        return {
            label: {
                rollout: weights
                for rollout, weights in zip(rollouts, table[label].to_pylist(), strict=True)
                if weights is not None
            }
            for label in _weighting_labels(table)
        }
    except PARQUET_ERRORS:
        return {}


def _rollout_names(table: pa.Table) -> list[RowName]:
    return list(zip(*(table[key].to_pylist() for key in KEYS), strict=True))


def _weighting_labels(table: pa.Table) -> list[str]:
    return [
        label
        for label in table.column_names
        if label not in KEYS and pa.types.is_list(table.schema.field(label).type)
    ]
