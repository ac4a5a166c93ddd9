"""Tables of curves: the same after a round trip, put together, refused when they do not belong."""

from __future__ import annotations

from pathlib import Path

import pytest
from lab.experiments.made_up import run
from lab.experiments.small_experiment import EXPERIMENT, RUN, write

from counterpoise.errors import PoiseError
from counterpoise.lab.experiments.compare import differences
from counterpoise.lab.experiments.curves import Runs, group_by_run
from counterpoise.lab.experiments.design import RunKey
from counterpoise.lab.experiments.dry_run import describe_plan
from counterpoise.lab.experiments.experiment_file import Experiment, read_experiment
from counterpoise.lab.experiments.header import markdown_heading
from counterpoise.lab.experiments.pieces import (
    CURVES_FILE,
    Piece,
    read_piece,
    read_pieces,
    start_digests,
    write_piece,
)
from counterpoise.lab.experiments.reused_runs import describe_reused_runs, run_origins
from counterpoise.lab.experiments.run import ExperimentRunner
from counterpoise.lab.experiments.verdicts import judge_experiment

TABLE = EXPERIMENT.partition("[experiment]")[2]


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    return read_experiment(write(tmp_path))


def runs_of(arm: str, seed: int, start: str = "start") -> Runs:
    curve = run(arm, seed, [0.375, 0.5, 0.625], 4)
    return group_by_run([{**r, "start": start} for r in curve])


def test_a_round_trip(tmp_path: Path, experiment: Experiment) -> None:
    runs = runs_of("QB", 0)
    write_piece(tmp_path / "a.parquet", Piece(runs, {}), experiment)
    found, failures = read_piece(tmp_path / "a.parquet", experiment)
    assert failures == {}
    assert start_digests(found) == {"start"}
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
    write_piece(tmp_path / "pieces" / "one.parquet", Piece(one, {}), experiment)
    write_piece(tmp_path / "pieces" / "two.parquet", Piece(two, {}), experiment)
    runs = read_pieces(tmp_path, experiment).runs
    assert [(key.arm, key.seed) for key in runs] == [("shuffled", 0), ("QB", 0), ("QB", 1)]
    assert read_pieces(tmp_path / "nowhere", experiment) == ({}, {}, None)


def test_what_does_not_belong_is_refused(tmp_path: Path, experiment: Experiment) -> None:
    folder = tmp_path / "pieces"
    folder.mkdir()
    write_piece(folder / "a.parquet", Piece(runs_of("QB", 0), {}), experiment)
    other = read_experiment(write(tmp_path, EXPERIMENT.replace("seeds = 2", "seeds = 3")))
    said = r"a\.parquet was made by another experiment file .* or name that file in experiment\.sha"
    with pytest.raises(PoiseError, match=said):
        read_pieces(tmp_path, other)
    write_piece(folder / "b.parquet", Piece(runs_of("QB", 1, "another"), {}), experiment)
    with pytest.raises(PoiseError, match="starts from other weights"):
        read_pieces(tmp_path, experiment)
    (folder / "b.parquet").write_bytes(b"PAR1 not at all")
    with pytest.raises(PoiseError, match="not a piece of an experiment"):
        read_pieces(tmp_path, experiment)


def test_only_runs_of_one_start_are_paired(tmp_path: Path) -> None:
    """Seed 0 was warmed up here, seed 1 elsewhere, and half of seed 1 once more."""
    experiment = read_experiment(write(tmp_path, "\n[experiment]\none_start = false" + TABLE))
    (tmp_path / "pieces").mkdir()
    here = runs_of("shuffled", 0, "here") | runs_of("QB", 0, "here") | runs_of("QB", 1, "here")
    there = runs_of("shuffled", 1, "there")
    write_piece(tmp_path / "pieces" / "here.parquet", Piece(here, {}), experiment)
    write_piece(tmp_path / "pieces" / "there.parquet", Piece(there, {}), experiment)
    runs = read_pieces(tmp_path, experiment).runs
    assert len(runs) == 4
    assert differences(runs, "QB", "shuffled", 1e-4, "rollouts") == [0.0]


def test_of_overlapping_pieces_the_runs_that_pair_are_taken(tmp_path: Path) -> None:
    """The folder's own shuffled of seed 0 has another start than what a piece has of that seed; of
    seed 1 either start has one run, and the folder's own comes first."""
    experiment = read_experiment(write(tmp_path, "\n[experiment]\none_start = false" + TABLE))
    (tmp_path / "pieces").mkdir()
    own = runs_of("shuffled", 0, "here") | runs_of("QB", 1, "here")
    piece = runs_of("shuffled", 0, "there") | runs_of("QB", 0, "there") | runs_of("QB", 1, "there")
    write_piece(tmp_path / CURVES_FILE, Piece(own, {}), experiment)
    write_piece(tmp_path / "pieces" / "there.parquet", Piece(piece, {}), experiment)
    runs = read_pieces(tmp_path, experiment).runs
    taken = {(key.arm, key.seed): curve[0]["start"] for key, curve in runs.items()}
    assert taken == {("shuffled", 0): "there", ("QB", 0): "there", ("QB", 1): "here"}
    assert differences(runs, "QB", "shuffled", 1e-4, "rollouts") == [0.0]


def test_failures_travel_and_a_run_that_was_made_has_not_failed(
    tmp_path: Path, experiment: Experiment
) -> None:
    (tmp_path / "pieces").mkdir()
    zero, one, other = (RunKey("QB", 1e-4, seed) for seed in (0, 1, 7))  # 7: not in the experiment
    write_piece(tmp_path / CURVES_FILE, Piece({}, {zero: "first", one: "no disk"}), experiment)
    made = Piece(runs_of("QB", 0), {one: "later", other: "never asked for"})
    write_piece(tmp_path / "pieces" / "a.parquet", made, experiment)
    found = read_pieces(tmp_path, experiment)
    assert list(found.runs) == [zero]
    assert found.failures == {one: "no disk"}


def test_runs_of_another_experiment_count_where_all_options_are_the_same(tmp_path: Path) -> None:
    """Its QB is `whole` here; its shuffled has another number of steps, and seed 2 is not here."""
    theirs = write(tmp_path, EXPERIMENT.replace("seeds = 2", "seeds = 3")).rename(
        tmp_path / "theirs.toml"
    )
    mine = EXPERIMENT.replace("QB = [", "whole = [").replace("QB", "whole")
    mine = mine.replace('"batch.composer=shuffled"', '"batch.composer=shuffled", "batch.steps=1"')
    experiment = read_experiment(
        write(tmp_path, mine.replace("[experiment]", f'[experiment]\nshares = ["{theirs}"]', 1))
    )
    (tmp_path / "pieces").mkdir()
    runs = runs_of("shuffled", 0) | runs_of("QB", 0) | runs_of("QB", 2)
    other = read_experiment(theirs)
    write_piece(tmp_path / "pieces" / "a.parquet", Piece(runs, {}), other)
    taken = read_pieces(tmp_path, experiment)
    assert list(taken.runs) == [RunKey("whole", 1e-4, 0)]
    write_piece(tmp_path / CURVES_FILE, taken, experiment)  # and from now on they are this one's
    kept = read_piece(tmp_path / CURVES_FILE, experiment).runs
    assert list(kept) == [RunKey("whole", 1e-4, 0)]
    assert "lr" not in kept[RunKey("whole", 1e-4, 0)][0]  # no pilot has chosen it
    assert run_origins(taken.runs) == run_origins(kept) == {f"theirs {other.digest}": {"whole": 1}}
    said = f"1 run reused from another experiment, theirs {other.digest}: whole 1."
    assert describe_reused_runs(kept) == [said]
    assert said in judge_experiment(kept, experiment).notes
    assert said in markdown_heading(experiment, kept)
    told = describe_plan(experiment, experiment.design.run_keys(), tmp_path, 1)
    assert f"1 of 4 are finished in {tmp_path}, 3 left\n  {said}\n" in told


def test_runs_of_another_engine_are_not_reused(tmp_path: Path) -> None:
    theirs = write(tmp_path).rename(tmp_path / "theirs.toml")
    head = f'[experiment]\nshares = ["{theirs}"]\nengines = ["QB=trl"]'
    experiment = read_experiment(write(tmp_path, EXPERIMENT.replace("[experiment]", head, 1)))
    (tmp_path / "pieces").mkdir()
    piece = Piece(runs_of("shuffled", 0) | runs_of("QB", 0), {})
    write_piece(tmp_path / "pieces" / "a.parquet", piece, read_experiment(theirs))
    assert list(read_pieces(tmp_path, experiment).runs) == [RunKey("shuffled", 1e-4, 0)]


def test_runs_are_reused_wherever_the_problems_lie(tmp_path: Path) -> None:
    """`--data` names the file of this machine; the problems themselves have a digest."""
    problems = tmp_path / "here.jsonl"
    problems.write_text(
        "".join(f'{{"problem": "{n} + 1?", "answer": {n + 1}}}\n' for n in range(64))
    )
    paths = 'path = "there.jsonl"\nheldout_path = "{}.jsonl"\n'
    run = RUN.replace("[task]\n", f'[task]\nname = "files"\n{paths.format("here")}')
    theirs = write(tmp_path, run=run.replace("here.jsonl", "there.jsonl"))
    theirs = theirs.rename(tmp_path / "theirs.toml")
    mine = EXPERIMENT.replace("[experiment]", f'[experiment]\nshares = ["{theirs}"]', 1)
    experiment = read_experiment(write(tmp_path, mine, run), data=str(problems))
    (tmp_path / "pieces").mkdir()
    piece = tmp_path / "pieces" / "a.parquet"
    write_piece(piece, Piece(runs_of("QB", 0), {}), read_experiment(theirs))
    assert list(read_pieces(tmp_path, experiment).runs) == [RunKey("QB", 1e-4, 0)]


def test_runs_are_reused_wherever_the_functions_of_arms_lie(tmp_path: Path) -> None:
    """A folder of results has a copy of the file: equal content is an equal function."""
    arms = EXPERIMENT.replace(
        '"batch.composer=grouped"',
        "\"credit.weights=mine.py:weights\", \"verify.also=['overlong', 'mine.py:bonus=0.5']\"",
    )
    run = RUN.replace("[verify]\n", '[verify]\nname = "mine.py:score"\n')
    function = "def score(completion, answer):\n    return 1.0\nweights = bonus = score\n"
    file, old = write(tmp_path, arms, run), tmp_path / "old"
    (tmp_path / "mine.py").write_text(function)
    experiment = read_experiment(file)
    ExperimentRunner.open(experiment, file, old)
    runs = runs_of("QB", 0) | runs_of("shuffled", 1)
    write_piece(old / CURVES_FILE, Piece(runs, {}), experiment)
    more = f'[experiment]\nshares = ["{old / file.name}"]'
    write(tmp_path, arms.replace("seeds = 2", "seeds = 3").replace("[experiment]", more, 1), run)
    (tmp_path / "pieces").mkdir()
    (tmp_path / "pieces" / "old.parquet").write_bytes((old / CURVES_FILE).read_bytes())
    assert list(read_pieces(tmp_path, read_experiment(file)).runs) == list(runs)
    # Another function is another arm, for both arms as they all use its file.
    (tmp_path / "mine.py").write_text(function.replace("1.0", "0.5"))
    assert not read_pieces(tmp_path, read_experiment(file)).runs


def test_more_seeds_take_the_runs_that_are_there(tmp_path: Path) -> None:
    """As the refusal of the old folder says: shares = [its copy of the file], its table a piece."""
    file, old, new = write(tmp_path), tmp_path / "old", tmp_path / "new"
    experiment = read_experiment(file)
    ExperimentRunner.open(experiment, file, old)
    write_piece(old / CURVES_FILE, Piece(runs_of("QB", 0) | runs_of("shuffled", 1), {}), experiment)
    more = f'[experiment]\nshares = ["{old / file.name}"]'
    file = write(
        tmp_path, EXPERIMENT.replace("seeds = 2", "seeds = 3").replace("[experiment]", more, 1)
    )
    with pytest.raises(PoiseError) as fault:
        ExperimentRunner.open(read_experiment(file), file, old)
    assert str(fault.value) == (
        f"{old} holds the experiment of another small.toml: choose another --out; to keep its runs "
        f'(more seeds, say) write shares = ["{old}/small.toml"] into the file and put '
        f"{old}/curves.parquet into pieces/ of the new folder"
    )
    (new / "pieces").mkdir(parents=True)
    (new / "pieces" / "old.parquet").write_bytes((old / CURVES_FILE).read_bytes())
    found = ExperimentRunner.open(read_experiment(file), file, new).runs
    assert list(found) == [RunKey("QB", 1e-4, 0), RunKey("shuffled", 1e-4, 1)]
