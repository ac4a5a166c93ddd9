"""Make and merge the parquet files of an index.

Rollouts of several iterations share a segment of about 16,000 rows, so that a search reads tens of
files and not thousands. While a run trains, each iteration first becomes a small segment of its
own; when there are a dozen small ones they are merged.

Texts are stored folded (`str.casefold`), the form in which they are searched; what a page shows is
read from the run's own file, at the offset in the segment.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from counterpoise.files import atomic_write
from counterpoise.serve.index.manifest import Segment, Signature
from counterpoise.store.stored_rollouts import DamagedLines, RolloutLine, iterate_rollouts

FULL_ROWS = 16_384
FULL_TEXT_BYTES = 24 << 20
MOST_SMALL_SEGMENTS = 12
# Of one text: a response of 10 MB is searchable in its first part, and memory stays bounded.
SEARCHABLE_CHARACTERS = 200_000
ROW_GROUP_ROWS = 8_192
ROLLOUT_SCHEMA = pa.schema(
    [
        ("iteration", pa.int32()),
        ("row", pa.int32()),  # in the order of the file
        ("group_name", pa.string()),  # null: "ITERATION:PROMPT_ID"
        ("index", pa.int32()),
        ("prompt_id", pa.string()),
        ("reward", pa.float64()),  # null: not scored
        ("length", pa.int32()),
        ("finished", pa.bool_()),
        ("timed_out", pa.bool_()),  # the verifier stopped its comparison
        ("no_spread", pa.bool_()),  # all rewards of the group are equal
        ("anchor", pa.bool_()),  # sampled from the prompt's generic text (sample.anchors)
        ("advantage", pa.float64()),  # of an import whose plans are not known; else null
        ("offset", pa.int64()),
        ("size", pa.int32()),
        ("prompt_text", pa.string()),
        ("response_text", pa.string()),
    ]
)


@dataclass(slots=True)
class SegmentDraft:
    """Rollouts of whole iterations, not yet written."""

    columns: dict[str, list[Any]] = field(
        default_factory=lambda: {name: [] for name in ROLLOUT_SCHEMA.names}
    )
    iterations: dict[int, Signature] = field(default_factory=dict)
    damaged: dict[int, str] = field(default_factory=dict)
    text_bytes: int = 0

    @property
    def rows(self) -> int:
        return len(self.columns["row"])

    @property
    def is_full(self) -> bool:
        return self.rows >= FULL_ROWS or self.text_bytes >= FULL_TEXT_BYTES

    def add(self, iteration: int, path: Path, signature: Signature) -> None:
        """Add the rollouts of one iteration; an OSError leaves the draft as it was before."""
        damaged_lines = DamagedLines()
        rows_before, text_bytes_before = self.rows, self.text_bytes
        try:
            rollouts = self._add_rows(iteration, iterate_rollouts(path, damaged_lines))
        except OSError:
            for column in self.columns.values():
                del column[rows_before:]
            self.text_bytes = text_bytes_before
            raise
        self.columns["no_spread"] += groups_without_spread(rollouts)
        if damaged_lines.count:
            self.damaged[iteration] = (
                f"{path.parent.name}/{path.name}: {damaged_lines.count} damaged, "
                f"first line {damaged_lines.first_line}"
            )
        self.iterations[iteration] = signature

    def _add_rows(self, iteration: int, rollouts: Iterable[RolloutLine]) -> list[tuple[str, float]]:
        """Add the columns of one file; returns (group, reward) of each row."""
        columns, rewards = self.columns, []
        for row, rollout in enumerate(rollouts):
            is_usual = rollout.group == f"{iteration}:{rollout.prompt_id}"
            reward = rollout.reward if math.isfinite(rollout.reward) else None
            prompt, response = fold(rollout.prompt), fold(rollout.response)
            columns["iteration"].append(iteration)
            columns["row"].append(row)
            columns["group_name"].append(None if is_usual else rollout.group)
            columns["index"].append(rollout.index)
            columns["prompt_id"].append(rollout.prompt_id)
            columns["reward"].append(reward)
            columns["length"].append(rollout.num_tokens or 0)
            columns["finished"].append(rollout.finished is not False)
            columns["timed_out"].append(rollout.timed_out)
            columns["anchor"].append(rollout.anchor)
            columns["advantage"].append(rollout.advantage)
            columns["offset"].append(rollout.offset)
            columns["size"].append(rollout.size)
            columns["prompt_text"].append(prompt)
            columns["response_text"].append(response)
            self.text_bytes += len(prompt) + len(response)
            rewards.append((rollout.group, rollout.reward))
        return rewards

    def write(self, folder: Path, file: str) -> Segment:
        table = pa.table(self.columns, schema=ROLLOUT_SCHEMA)
        _write_table(folder / file, table)
        return Segment(file, self.iterations, self.rows, self.text_bytes, self.damaged)


def fold(text: str) -> str:
    """The form in which texts are compared: without case, cut to what is searchable."""
    return text[:SEARCHABLE_CHARACTERS].casefold()


def groups_without_spread(rewards: Sequence[tuple[str, float]]) -> list[bool]:
    """For each row, whether all rewards of its group are equal; (group, reward) of every row.

    Example:
        >>> groups_without_spread([("a", 1.0), ("b", 0.0), ("a", 1.0), ("b", 1.0)])
        [True, False, True, False]
    """
    distinct_rewards: dict[str, set[float]] = defaultdict(set)
    for group, reward in rewards:
        # NaN is unequal to itself: an unscored rollout is no reward to compare.
        if reward == reward:
            distinct_rewards[group].add(reward)
    return [len(distinct_rewards[group]) <= 1 for group, _ in rewards]


def choose_merge(segments: Sequence[Segment]) -> list[Segment]:
    """Small segments to merge into one; empty where there are too few of them."""
    small = [
        segment
        for segment in segments
        if segment.rows < FULL_ROWS and segment.text_bytes < FULL_TEXT_BYTES
    ]
    if len(small) < MOST_SMALL_SEGMENTS:
        return []
    chosen: list[Segment] = []
    rows = text_bytes = 0
    for segment in sorted(small, key=lambda segment: segment.rows):
        rows += segment.rows
        text_bytes += segment.text_bytes
        if chosen and (rows > 2 * FULL_ROWS or text_bytes > 2 * FULL_TEXT_BYTES):
            break
        chosen.append(segment)
    return chosen if len(chosen) > 1 else []


def merge(folder: Path, file: str, segments: Sequence[Segment]) -> Segment:
    """One segment with the rows of several."""
    tables = [pq.read_table(folder / segment.file) for segment in segments]
    _write_table(folder / file, pa.concat_tables(tables))
    return Segment(
        file,
        {key: value for segment in segments for key, value in segment.iterations.items()},
        sum(segment.rows for segment in segments),
        sum(segment.text_bytes for segment in segments),
        {key: value for segment in segments for key, value in segment.damaged.items()},
    )


def without_iterations(folder: Path, file: str, segment: Segment, gone: set[int]) -> Segment | None:
    """The segment without iterations whose files have changed; None if nothing is left."""
    kept = {key: value for key, value in segment.iterations.items() if key not in gone}
    if not kept:
        return None
    table = pq.read_table(folder / segment.file)
    table = table.filter(pc.is_in(table["iteration"], pa.array(sorted(kept), pa.int32())))
    _write_table(folder / file, table)
    text_bytes = segment.text_bytes * table.num_rows // max(1, segment.rows)
    damaged = {key: text for key, text in segment.damaged.items() if key in kept}
    return Segment(file, kept, table.num_rows, text_bytes, damaged)


def _write_table(path: Path, table: pa.Table) -> None:
    with atomic_write(path, durable=False) as temporary:
        # Prompts repeat within groups and epochs; no other column is worth a dictionary. Responses
        # are stored as they are: packed by LZ4 they take half the space, but a search takes 2.6
        # times as long.
        pq.write_table(
            table,
            temporary,
            compression={
                name: "none" if name == "response_text" else "lz4" for name in table.column_names
            },
            use_dictionary=["prompt_text", "prompt_id", "group_name"],
            row_group_size=ROW_GROUP_ROWS,
        )
