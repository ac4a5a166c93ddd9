"""A pilot of two arms at three rates, made up, and an experiment file that takes its rates."""

from __future__ import annotations

from pathlib import Path

from lab.experiments.made_up import run
from lab.experiments.small_experiment import RUN

from counterpoise.lab.experiments.curves import Runs, group_by_run
from counterpoise.lab.experiments.dry_run import describe_plan
from counterpoise.lab.experiments.experiment_file import Experiment, read_experiment
from counterpoise.lab.experiments.pieces import Piece, write_piece

ARMS = """
[experiment.arms]
shuffled = ["batch.composer=shuffled"]
QB = ["batch.composer=grouped"]
"""
PILOT = (
    """
[experiment]
rule = "the best rate of every arm"
pilot = true
rates = [1e-4, 3e-4, 1e-3]
seeds = 2
"""
    + ARMS
)
MAIN = """
[experiment]
rule = "each at its best rate"
baseline = "shuffled"
rates = [1e-4]
rates_from = "{pilot}"
first_seed = 10
seeds = 3
hypotheses = ["QB > shuffled"]
"""
# Mean final success by arm and rate.
FINALS = {
    ("shuffled", 1e-4): 0.5, ("shuffled", 3e-4): 0.6, ("shuffled", 1e-3): 0.6,
    ("QB", 1e-4): 0.5, ("QB", 3e-4): 0.6, ("QB", 1e-3): 0.7,
}  # fmt: skip


def write_files(folder: Path, arms: str = ARMS, run_text: str = RUN) -> tuple[Experiment, Path]:
    """The pilot, and the file that takes its rates."""
    pilot_file, main_file = folder / "pilot.toml", folder / "main.toml"
    pilot_file.write_text(run_text + PILOT)
    main_file.write_text(run_text + MAIN.format(pilot=pilot_file) + arms)
    return read_experiment(pilot_file), main_file


def pilot_runs(start: str = "embedded") -> Runs:
    records = []
    for (arm, rate), final in FINALS.items():
        for seed in range(2):
            curve = run(arm, seed, [0.4, final + 0.02 * seed], updates=4, rate=rate)
            records += [{**record, "start": start} for record in curve]
    return group_by_run(records)


def put_pilot(out: Path, pilot: Experiment, piece: Piece) -> None:
    (out / "pieces").mkdir(parents=True)
    write_piece(out / "pieces" / "pilot.parquet", piece, pilot)


def read_pieces_of(file: Path, folder: Path) -> None:
    experiment = read_experiment(file)
    describe_plan(experiment, experiment.design.run_keys(), folder, jobs=1)
