"""Tables of curves: the same after a round trip, put together, refused when they do not belong."""

from __future__ import annotations

from pathlib import Path

import pytest

from counterpoise.errors import PoiseError
from counterpoise.experiment.compare import differences
from counterpoise.experiment.curves import Runs, by_run
from counterpoise.experiment.file import Experiment, read_experiment
from counterpoise.experiment.pieces import read_piece, read_pieces, starts, write_piece
from experiment.made_up import run
from experiment.small_experiment import EXPERIMENT, write

TABLE = EXPERIMENT.partition("[experiment]")[2]


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    return read_experiment(write(tmp_path))


def runs_of(arm: str, seed: int, start: str = "start") -> Runs:
    curve = run(arm, seed, [0.375, 0.5, 0.625], 4)
    return by_run([{**r, "start": start} for r in curve])


def test_a_round_trip(tmp_path: Path, experiment: Experiment) -> None:
    runs = runs_of("QB", 0)
    write_piece(tmp_path / "a.parquet", runs, experiment)
    found = read_piece(tmp_path / "a.parquet", experiment)
    assert starts(found) == {"start"}
    ((key, curve),) = found.items()
    assert (key.arm, key.rate, key.seed) == ("QB", 1e-4, 0)
    assert [r["heldout"] for r in curve] == [0.375, 0.5, 0.625]
    assert [r["updates"] for r in curve] == [0, 4, 8]
    assert curve[0]["success"] is None
    assert curve[1]["entropy"] == pytest.approx(0.2)


def test_pieces_are_put_together(tmp_path: Path, experiment: Experiment) -> None:
    """In the order of the experiment; a run that two pieces have counts once."""
    (tmp_path / "pieces").mkdir()
    one = runs_of("shuffled", 0) | runs_of("QB", 0)
    two = runs_of("QB", 0) | runs_of("QB", 1) | runs_of("QB", 7)  # 7 is not in the experiment
    write_piece(tmp_path / "pieces" / "one.parquet", one, experiment)
    write_piece(tmp_path / "pieces" / "two.parquet", two, experiment)
    runs = read_pieces(tmp_path, experiment)
    assert [(key.arm, key.seed) for key in runs] == [("shuffled", 0), ("QB", 0), ("QB", 1)]
    assert read_pieces(tmp_path / "nowhere", experiment) == {}


def test_what_does_not_belong_is_refused(tmp_path: Path, experiment: Experiment) -> None:
    folder = tmp_path / "pieces"
    folder.mkdir()
    write_piece(folder / "a.parquet", runs_of("QB", 0), experiment)
    other = read_experiment(write(tmp_path, EXPERIMENT.replace("seeds = 2", "seeds = 3")))
    with pytest.raises(PoiseError, match=r"a\.parquet was made by another experiment file"):
        read_pieces(tmp_path, other)
    write_piece(folder / "b.parquet", runs_of("QB", 1, "another start"), experiment)
    with pytest.raises(PoiseError, match="begins with other weights"):
        read_pieces(tmp_path, experiment)
    (folder / "b.parquet").write_bytes(b"PAR1 not at all")
    with pytest.raises(PoiseError, match="no piece of an experiment"):
        read_pieces(tmp_path, experiment)


def test_only_runs_of_one_start_are_paired(tmp_path: Path) -> None:
    """Seed 0 was warmed up here, seed 1 elsewhere, and half of seed 1 once more."""
    experiment = read_experiment(write(tmp_path, "\n[experiment]\none_start = false" + TABLE))
    (tmp_path / "pieces").mkdir()
    here = runs_of("shuffled", 0, "here") | runs_of("QB", 0, "here") | runs_of("QB", 1, "here")
    there = runs_of("shuffled", 1, "there")
    write_piece(tmp_path / "pieces" / "here.parquet", here, experiment)
    write_piece(tmp_path / "pieces" / "there.parquet", there, experiment)
    runs = read_pieces(tmp_path, experiment)
    assert len(runs) == 4
    assert differences(runs, "QB", "shuffled", 1e-4, "rollouts") == [0.0]
