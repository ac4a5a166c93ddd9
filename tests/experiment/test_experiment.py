"""`poise experiment` from end to end, on the CPU."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from counterpoise.cli import app
from counterpoise.errors import PoiseError
from counterpoise.experiment.command import Part
from counterpoise.experiment.curves import by_run
from counterpoise.experiment.file import read_experiment
from counterpoise.experiment.pieces import write_piece
from counterpoise.experiment.run import Bench
from counterpoise.experiment.runs import Fleet
from experiment.made_up import run
from experiment.small_experiment import EXPERIMENT, write


def command(*words: object) -> str:
    done = CliRunner().invoke(app, ["experiment", *map(str, words)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.slow
def test_in_two_pieces(tmp_path: Path) -> None:
    """Seed 0 in one folder, seed 1 in another; put together there without its runs."""
    file, one, two = write(tmp_path), tmp_path / "one", tmp_path / "two"
    said = command(file, "--out", one, "--jobs", 2, "--seeds", "0:1")
    assert "2 of 2 runs are finished" in said
    runs = sorted(p.name for p in (one / "runs").iterdir() if p.is_dir())
    assert runs == ["QB-lr0.0001-seed0", "shuffled-lr0.0001-seed0"]
    left = {p.name for p in (one / "runs" / runs[0]).iterdir()}
    assert left == {
        "config.toml", "metrics.jsonl", "plans.jsonl", "evaluations.jsonl", "finished.json",
    }  # fmt: skip

    shutil.rmtree(one / "runs")  # curves.parquet is all that is needed
    assert "2 runs, 2 known" in command(file, "--out", one, "--seeds", "0:1")

    (two / "pieces").mkdir(parents=True)
    shutil.copy(one / "curves.parquet", two / "pieces" / "first.parquet")
    said = command(file, "--out", two, "--jobs", 2)
    assert "4 runs, 2 known" in said
    assert "4 of 4 runs are finished" in said
    trained = sorted(p.name for p in (two / "runs").iterdir() if p.is_dir())
    assert trained == ["QB-lr0.0001-seed1", "shuffled-lr0.0001-seed1"]
    for name in ("report.html", "results.md", "small.json", "small-curves.png", "small.toml"):
        assert (two / name).stat().st_size > 0, name
    bench = Bench.open(read_experiment(file), file, two)
    heldout = [r["heldout@0.6/0.95"] for c in bench.runs.values() for r in c]
    assert sum(h is not None for h in heldout) == 8  # before and after, for four runs
    starts = {tuple(c[0]["heldout"] for k, c in bench.runs.items() if k.seed == s) for s in (0, 1)}
    assert all(len(set(pair)) == 1 for pair in starts)  # both arms of a seed start alike


def test_a_stopped_experiment_judges_what_there_is_and_says_130(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Fleet, "train", stopped)
    words = ["experiment", str(write(tmp_path)), "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 130
    assert "stopped; the same command goes on" in done.output
    assert "0 of 4 runs are finished" in done.output


@pytest.mark.slow
def test_a_machine_without_charts_still_trains_and_judges(tmp_path: Path) -> None:
    """altair is hidden; the table travels to where it is not."""
    file, out = write(tmp_path), tmp_path / "out"
    experiment = read_experiment(file)
    (out / "pieces").mkdir(parents=True)
    made = [
        {**r, "start": "embedded"}
        for arm in ("shuffled", "QB")
        for seed in (0, 1)
        for r in run(arm, seed, [0.4, 0.5, 0.6], 4)
    ]
    write_piece(out / "pieces" / "a.parquet", by_run(made), experiment)
    hidden = "import sys; sys.modules['altair'] = None; from counterpoise.cli import main; main()"
    words = [sys.executable, "-c", hidden, "experiment", str(file), "--out", str(out)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert "no figures: altair is not installed here" in done.stdout
    assert (out / "results.md").is_file()
    assert not (out / "report.html").exists()


def test_a_folder_of_another_experiment_is_refused(tmp_path: Path) -> None:
    file, out = write(tmp_path), tmp_path / "out"
    Bench.open(read_experiment(file), file, out)
    other = write(tmp_path, EXPERIMENT.replace("seeds = 2", "seeds = 3"))
    with pytest.raises(PoiseError, match=r"another small\.toml"):
        Bench.open(read_experiment(other), other, out)


def test_other_weights_are_refused(tmp_path: Path) -> None:
    file, out = write(tmp_path), tmp_path / "out"
    experiment = read_experiment(file)
    (out / "pieces").mkdir(parents=True)
    piece = [{**r, "start": "other weights"} for r in run("QB", 0, [0.4, 0.5, 0.6], 4)]
    write_piece(out / "pieces" / "a.parquet", by_run(piece), experiment)
    bench = Bench.open(experiment, file, out)
    with pytest.raises(PoiseError, match="embedded begins with other weights"):
        bench.train(experiment.design.runs(), 1, lambda standing: None)


def test_a_dry_run_says_what_the_seeds_can_show(tmp_path: Path) -> None:
    said = command(write(tmp_path), "--dry-run")
    assert "2 arms x 1 rates x 2 seeds = 4 runs" in said
    assert "4 times in 5" in said
    assert "replicated when it is" in said


@pytest.mark.parametrize(
    ("part", "names"),
    [
        (Part(), 4),
        (Part(seeds="0:1"), 2),
        (Part(seeds="1:"), 2),
        (Part(arms="QB"), 2),
        (Part(rates="1e-4", arms="QB,shuffled", seeds=":1"), 2),
    ],
)
def test_a_part_of_an_experiment(tmp_path: Path, part: Part, names: int) -> None:
    assert len(part.of(read_experiment(write(tmp_path)))) == names


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (Part(seeds="4"), "write A:B"),
        (Part(seeds="5:9"), "none of the experiment's 2 seeds"),
        (Part(arms="QD"), "unknown arm 'QD'"),
        (Part(rates="1"), "not a rate of the experiment: 0.0001"),
        (Part(rates="x"), "not a rate"),
    ],
)
def test_a_part_that_is_not_there(tmp_path: Path, part: Part, said: str) -> None:
    with pytest.raises(PoiseError, match=said):
        part.of(read_experiment(write(tmp_path)))
