"""Files of other trainers with fields of other types: one line or an import, never a traceback.

Guided fuzzing (tests/torture/guided.py) found each of these.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hosts.importing.foreign import prime_record, write_lines
from hosts.importing.foreign_dumps import write_rollout_dump
from hosts.importing.foreign_tinker import summary_record, turn, write_summaries
from hosts.importing.foreign_traces import (
    episode_record,
    ship_update,
    trace_record,
    trainer_update,
    write_stream,
)
from hosts.test_wandb_tables import TRL_COLUMNS, trl_rows, write_table

from counterpoise.errors import PoiseError
from counterpoise.hosts.importing.write_folder import import_run

Record = dict[str, Any]


def change_update(change: Callable[[Record, Record], object]) -> Callable[[Path], object]:
    """A stream of two traces; `change` gets an annotation of each producer."""

    def write(folder: Path) -> None:
        episodes = [
            episode_record(trace_record(name, score), group="g")
            for name, score in (("a", 1.0), ("b", 0.0))
        ]
        shipped = [ship_update(name, 1, 0.5) for name in "ab"]
        trained = [trainer_update(name) for name in "ab"]
        change(shipped[0], trained[0])
        write_stream(folder, episodes, shipped, trained)

    return write


def change_episode(change: Callable[[Record, Record], object]) -> Callable[[Path], object]:
    """A stream of one episode; `change` gets it and its trace."""

    def write(folder: Path) -> None:
        trace = trace_record("a", 1.0)
        episode = episode_record(trace, group="g")
        change(episode, trace)
        write_stream(folder, [episode], [ship_update("a", 1, 0.5)])

    return write


def change_export(**changes: Any) -> Callable[[Path], object]:
    record = prime_record((1, 2), (3, 4), 1.0) | changes
    file = Path("token_exports", "step_0", "rank_0.jsonl")
    return lambda folder: write_lines(folder / file, [record])


def change_table(row: int, column: int, value: object) -> Callable[[Path], object]:
    def write(folder: Path) -> None:
        rows = trl_rows(3)
        rows[row][column] = value
        write_table(folder / "run-1", "completions_1_aa", TRL_COLUMNS, rows)

    return write


def plain_table(step: object) -> Callable[[Path], object]:
    columns = ["global_step", "question", "response", "score"]
    rows = [[step, "How many?", "3", 1.0]]
    return lambda folder: write_table(folder / "run-1", "samples_1_aa", columns, rows)


def change_summary(**changes: Any) -> Callable[[Path], object]:
    return lambda folder: write_summaries(folder, [summary_record(0, 0, 1.0, **changes)])


def damage_dump(folder: Path) -> None:
    """A name in the archive's table of contents is no UTF-8."""
    file = write_rollout_dump(folder)
    content = file.read_bytes()
    last = content.rindex(b"0/data.pkl")
    file.write_bytes(content[:last] + b"\xbd" + content[last + 1 :])


IMPORTED = {  # a field of another type counts as absent
    "branches": change_update(lambda ship, train: train.update(branches=3)),
    "info": change_update(lambda ship, train: train.update(info=[1])),
    "time": change_update(lambda ship, train: ship["info"]["ship"].update(time="index")),
    "huge time": change_update(lambda ship, train: ship["info"]["ship"].update(time=10**400)),
    "huge step": change_update(lambda ship, train: ship["info"]["ship"].update(step=10**400)),
    "advantage": change_episode(lambda episode, trace: trace["info"].update(advantage=10**400)),
    "run": change_episode(lambda episode, trace: episode.update(run=1)),
    "group": change_episode(lambda episode, trace: episode.update(group="x")),
    "task": change_episode(lambda episode, trace: trace.update(task=[1])),
    "agent": change_episode(lambda episode, trace: trace.update(agent=1)),
    "calls": change_episode(lambda episode, trace: trace.update(calls=1)),
    "parents": change_episode(lambda episode, trace: trace["nodes"][0].update(parent=[0])),
    "summary: metrics": change_summary(steps=[turn(3) | {"metrics": "x"}]),
    "summary: logs": change_summary(steps=[turn(3) | {"logs": {"guess": "\ud800"}}]),
    "summary: tags": change_summary(tags=10**400),
}
REFUSED = {
    "no nodes": (change_episode(lambda episode, trace: trace.pop("nodes")), "no rollout is in"),
    "mask": (change_export(loss_mask=[False, False, [1], True]), "loss_mask must be true or false"),
    "table of TRL: advantage": (change_table(0, 5, [1]), "values that TRL's columns do not have"),
    "table of TRL: completion": (change_table(1, 2, {"a": 1}), "values that TRL's columns do not"),
    "table of TRL: step": (change_table(0, 0, "x"), "values that TRL's columns do not have"),
    "step without an end": (plain_table(1e999), "is not a whole number from 0 to 2147483647"),
    "huge step": (plain_table(10**400), "is not a whole number from 0 to 2147483647"),
    "summary: steps": (change_summary(steps=[[3]]), "needs ob_len and ac_len"),
    "summary: huge iteration": (change_summary(iteration=10**400), "is not a whole number from 0"),
    "archive": (damage_dump, "no rollouts"),
}


@pytest.mark.parametrize("write", IMPORTED.values(), ids=IMPORTED)
def test_a_field_of_another_type_counts_as_absent(
    write: Callable[[Path], object], tmp_path: Path
) -> None:
    write(tmp_path / "theirs")
    summary = import_run(tmp_path / "theirs", tmp_path / "out", tokenizer="embedded")
    assert summary.rollouts >= 1


@pytest.mark.parametrize(("write", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_imported_is_one_line(
    write: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    write(tmp_path / "theirs")
    with pytest.raises(PoiseError, match=message) as refused:
        import_run(tmp_path / "theirs", tmp_path / "out", tokenizer="embedded")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "out").exists()
