"""A pilot chooses the rate of every arm; the experiment trains at it and says so."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lab.experiments.made_up import run
from lab.experiments.made_up_pilot import (
    ARMS,
    MAIN,
    PILOT,
    pilot_runs,
    put_pilot,
    write_files,
)
from lab.experiments.small_experiment import RUN
from typer.testing import CliRunner

from counterpoise.cli import app
from counterpoise.errors import PoiseError
from counterpoise.lab.experiments import run as runner_module
from counterpoise.lab.experiments.curves import Runs, group_by_run
from counterpoise.lab.experiments.decision_rule import describe_rule
from counterpoise.lab.experiments.design import RunKey
from counterpoise.lab.experiments.dry_run import describe_plan
from counterpoise.lab.experiments.experiment_file import Experiment, read_experiment
from counterpoise.lab.experiments.header import markdown_heading
from counterpoise.lab.experiments.pieces import CURVES_FILE, Piece, read_pieces, write_piece
from counterpoise.lab.experiments.pilot import choose_rates, pilot_markdown
from counterpoise.lab.experiments.pilot_rates import arm_table, choose
from counterpoise.lab.experiments.run import ExperimentRunner


class FleetWithoutProcesses:
    """Takes the options of the runs, and trains nothing."""

    asked: dict[str, tuple[str, ...]]

    def __init__(self, options: dict[str, tuple[str, ...]], folder: Path, **_: Any) -> None:
        type(self).asked, self.folder, self.failures = options, folder, {}

    def finished(self, name: str) -> bool:
        return False

    def train(self, *_: Any) -> None:
        pass


def test_the_best_rate_of_every_arm(tmp_path):
    pilot, _ = write_files(tmp_path)
    runs = pilot_runs()
    # A tie: the smaller.
    assert choose(runs, {}, pilot).rates == {"shuffled": 3e-4, "QB": 1e-3}
    failed = RunKey("QB", 1e-3, 1)
    some_runs = {key: curve for key, curve in runs.items() if key != failed}
    assert choose(some_runs, {}, pilot).rates == {"shuffled": 3e-4}  # QB has a run to come
    assert choose(some_runs, {failed: "not finite"}, pilot).rates["QB"] == 3e-4


def test_means_that_differ_by_rounding_are_equal(tmp_path):
    """0.1 + 0.7 and 0.3 + 0.5 have other means in doubles than after float32, as in a table."""
    pilot, _ = write_files(tmp_path)
    finals = {1e-4: (0.1, 0.7), 3e-4: (0.3, 0.5), 1e-3: (0.0, 0.0)}
    for stored in (float, np.float32):
        runs = group_by_run(
            [
                record
                for arm in pilot.design.arms
                for rate, successes in finals.items()
                for seed, success in enumerate(successes)
                for record in run(arm, seed, [0.0, float(stored(success))], updates=4, rate=rate)
            ]
        )
        assert choose(runs, {}, pilot).rates == {"shuffled": 1e-4, "QB": 1e-4}


@pytest.mark.usefixtures("blank_pictures")
def test_a_pilot_that_changes_during_the_training_keeps_no_table_from_being_written(
    tmp_path, monkeypatch
):
    pilot, main_file = write_files(tmp_path)
    out, pilot_file = tmp_path / "out", tmp_path / "pilot.toml"
    put_pilot(out, pilot, Piece(pilot_runs(), {}))

    def train(fleet, *_):
        pilot_file.write_text(pilot_file.read_text().replace("grouped", "zigzag"))
        fleet.failures["QB-lr0.0001-seed10"] = "not finite"
        raise KeyboardInterrupt

    monkeypatch.setattr(runner_module, "Fleet", FleetWithoutProcesses)
    monkeypatch.setattr(FleetWithoutProcesses, "train", train)
    stopped = CliRunner().invoke(app, ["experiment", str(main_file), "--out", str(out)])
    assert stopped.exit_code == 130
    assert "stopped; run the same command again" in stopped.stdout
    assert "seed 10 (not finite)" in (out / "results.md").read_text()


def test_a_pilot_of_several_arms_has_a_row_per_rate_and_a_row_per_arm(tmp_path):
    """Cells of a row per rate would otherwise hold the numbers of all arms and seeds."""
    pilot, _ = write_files(tmp_path)
    runs = pilot_runs()
    assert pilot_markdown(choose_rates(runs, pilot), runs, {}, pilot) == (
        "The runs of all arms together, success in %:\n"
        "\n"
        "| rate | learn | fall | mean end | range of ends |\n"
        "|---|---|---|---|---|\n"
        "| 0.0001 | 4 of 4 | 0 of 4 | 51.0 | 50.0 to 52.0 |\n"
        "| 0.0003 | 4 of 4 | 0 of 4 | 61.0 | 60.0 to 62.0 |\n"
        "| 0.001 | 4 of 4 | 0 of 4 | 66.0 | 60.0 to 72.0 |\n"
        "\n"
        "By the rule: stable 0.001, no edge among the rates tried.\n"
        "\n"
        "Mean final held-out success over seeds, in %, by learning rate:\n"
        "\n"
        "| arm | 0.0001 | 0.0003 | 0.001 | best rate |\n"
        "| --- | --- | --- | --- | --- |\n"
        "| shuffled | 51.0 | 61.0 | 61.0 | 0.0003 |\n"
        "| QB | 51.0 | 61.0 | 71.0 | 0.001 |\n"
    )
    ExperimentRunner(pilot, tmp_path, runs, {}).conclude()
    assert "| QB | 51.0 | 61.0 | 71.0 | 0.001 |\n" in (tmp_path / "results.md").read_text()


def test_the_table_of_arms_says_which_runs_are_missing(tmp_path):
    pilot, _ = write_files(tmp_path)
    missing = RunKey("QB", 1e-3, 1)
    runs = {key: curve for key, curve in pilot_runs().items() if key != missing}
    assert arm_table(runs, {}, pilot)[-1] == (
        "| QB | 51.0 | 61.0 | 70.0 (1 of 2) | not all runs yet |"
    )
    assert arm_table(runs, {missing: "not finite"}, pilot)[-1] == (
        "| QB | 51.0 | 61.0 | 70.0 (1 of 2, 1 failed) | 0.0003 |"
    )
    failures = {key: "not finite" for key in pilot_runs() if key.arm == "QB"}
    runs_left = {key: curve for key, curve in runs.items() if key not in failures}
    failed = "(0 of 2, 2 failed)"
    assert arm_table(runs_left, failures, pilot)[-1] == (
        f"| QB | {failed} | {failed} | {failed} | none: a run failed at every rate |"
    )


def test_a_dry_run_of_a_pilot_promises_no_difference(tmp_path):
    pilot, main_file = write_files(tmp_path)
    pilot_plan = describe_plan(pilot, pilot.design.run_keys(), None, jobs=1)
    assert "difference" not in pilot_plan
    assert "against" not in pilot_plan
    experiment = read_experiment(main_file)
    plan = describe_plan(experiment, experiment.design.run_keys(), None, 1)
    assert "a difference of" in plan
    assert "; against shuffled\n" in plan


def test_every_arm_trains_at_its_rate(tmp_path, monkeypatch):
    pilot, main_file = write_files(tmp_path)
    put_pilot(tmp_path / "out", pilot, Piece(pilot_runs(), {}))
    experiment = read_experiment(main_file)
    plan = describe_plan(experiment, experiment.design.run_keys(), tmp_path / "out", jobs=1)
    assert "2 arms x 1 rate x 3 seeds = 6 runs" in plan
    assert "12 of 12 runs of pilot are in pieces/; rates: shuffled 0.0003, QB 0.001" in plan
    monkeypatch.setattr(runner_module, "Fleet", FleetWithoutProcesses)
    runner = ExperimentRunner.open(experiment, main_file, tmp_path / "out")
    assert runner.runs == {}  # the pilot is not judged
    runner.train(experiment.design.run_keys(), 1, lambda _: None)
    assert len(FleetWithoutProcesses.asked) == 6
    for name, options in FleetWithoutProcesses.asked.items():
        expected = "0.001" if name.startswith("QB") else "0.0003"
        assert f"update.lr={expected}" in options
    assert "Every arm trains at the rate that ended best in the pilot" in describe_rule(experiment)


def test_finished_runs_keep_their_rate(tmp_path):
    pilot, main_file = write_files(tmp_path)
    out = tmp_path / "out"
    put_pilot(out, pilot, Piece(pilot_runs(), {}))
    experiment = read_experiment(main_file)
    curve = run("QB", 10, [0.4, 0.5], updates=4)
    known = group_by_run([{**record, "start": "embedded", "lr": 1e-3} for record in curve])
    write_piece(out / CURVES_FILE, Piece(known, {}), experiment)
    runner = ExperimentRunner.open(experiment, main_file, out)
    assert "Learning rates by the pilot: QB 0.001." in markdown_heading(experiment, runner.runs)
    # Another pilot would choose another rate: its runs must not be put beside the known ones.
    other = {key: value for key, value in pilot_runs().items() if key != RunKey("QB", 1e-3, 1)}
    failures = {RunKey("QB", 1e-3, 1): "not finite"}
    write_piece(out / "pieces" / "pilot.parquet", Piece(other, failures), pilot)
    with pytest.raises(PoiseError, match=r"was trained at 0.001, and the pilot in pieces/ chooses"):
        ExperimentRunner.open(experiment, main_file, out)


def sharing_file(folder: Path, text: str, main_file: Path) -> Experiment:
    """Another file of the same arms with this text; `main_file` shares its runs from then on."""
    other_file = folder / "other.toml"
    other_file.write_text(RUN + text + ARMS)
    main_file.write_text(
        main_file.read_text().replace("[experiment]", f'[experiment]\nshares = ["{other_file}"]', 1)
    )
    return read_experiment(other_file)


def runs_at(arm: str, lr: float | None, seeds: Iterable[int], label: float = 1e-4) -> Runs:
    about = {"start": "embedded"} | ({} if lr is None else {"lr": lr})
    return group_by_run(
        [
            {**record, **about}
            for seed in seeds
            for record in run(arm, seed, [0.4, 0.5], updates=4, rate=label)
        ]
    )


def test_runs_of_an_arm_at_two_rates_are_refused_where_nothing_is_left_to_train(tmp_path):
    """Runs of another pilot, beside a reused one at the rate that today's pilot chooses."""
    pilot, main_file = write_files(tmp_path)
    fixed_text = MAIN.replace('rates_from = "{pilot}"\n', "").replace("[1e-4]", "[3e-4, 1e-3]")
    fixed = sharing_file(tmp_path, fixed_text, main_file)
    experiment, out = read_experiment(main_file), tmp_path / "out"
    put_pilot(out, pilot, Piece(pilot_runs(), {}))
    own = runs_at("QB", 3e-4, (10, 11)) | runs_at("shuffled", 3e-4, (10, 11, 12))
    write_piece(out / CURVES_FILE, Piece(own, {}), experiment)
    shared = runs_at("QB", None, [12], label=1e-3)
    write_piece(out / "pieces" / "fixed.parquet", Piece(shared, {}), fixed)
    said = r"QB-lr0\.0001-seed10 was trained at 0\.0003, and the pilot in pieces/ chooses 0\.001"
    with pytest.raises(PoiseError, match=said):
        ExperimentRunner.open(experiment, main_file, out)
    with pytest.raises(PoiseError, match=said):
        describe_plan(experiment, experiment.design.run_keys(), out, 1)

    # Two pieces of the experiment, and no pilot that would say which is right.
    for file in (out / "pieces").iterdir():
        file.unlink()
    both = own | runs_at("QB", 1e-3, [12])
    write_piece(out / "pieces" / "there.parquet", Piece(both, {}), experiment)
    said = (
        r"^QB was trained at several rates, QB-lr0\.0001-seed10 at 0\.0003 and "
        r"QB-lr0\.0001-seed12 at 0\.001: keep the runs of one pilot"
    )
    with pytest.raises(PoiseError, match=said):
        read_pieces(out, experiment)
    write_piece(out / "pieces" / "there.parquet", Piece(own, {}), experiment)
    assert len(read_pieces(out, experiment).runs) == 5


def test_of_runs_at_several_rates_those_at_the_chosen_one_are_reused(tmp_path):
    pilot, main_file = write_files(tmp_path)
    other = sharing_file(tmp_path, MAIN.format(pilot=tmp_path / "pilot.toml"), main_file)
    experiment, out = read_experiment(main_file), tmp_path / "out"
    put_pilot(out, pilot, Piece(pilot_runs(), {}))
    theirs = runs_at("QB", 1e-3, (10, 12)) | runs_at("QB", 3e-4, [11])
    theirs |= runs_at("shuffled", None, [10])  # at a rate that nobody knows
    write_piece(out / "pieces" / "theirs.parquet", Piece(theirs, {}), other)
    taken = read_pieces(out, experiment).runs
    assert list(taken) == [RunKey("QB", 1e-4, 10), RunKey("QB", 1e-4, 12)]
    assert {curve[0]["lr"] for curve in taken.values()} == {1e-3}


def test_a_run_at_a_chosen_rate_has_no_such_rate_where_the_file_fixes_it(tmp_path):
    _, main_file = write_files(tmp_path)
    theirs = read_experiment(main_file)
    fixed_file = tmp_path / "fixed.toml"
    fixed_text = MAIN.replace('rates_from = "{pilot}"', f'shares = ["{main_file}"]')
    fixed_file.write_text(RUN + fixed_text.replace("[1e-4]", "[1e-3]") + ARMS)
    (tmp_path / "out" / "pieces").mkdir(parents=True)
    piece = Piece(runs_at("QB", 1e-3, (10, 11)), {})
    write_piece(tmp_path / "out" / "pieces" / "theirs.parquet", piece, theirs)
    taken = read_pieces(tmp_path / "out", read_experiment(fixed_file)).runs
    assert list(taken) == [RunKey("QB", 1e-3, 10), RunKey("QB", 1e-3, 11)]
    assert not any("lr" in record for curve in taken.values() for record in curve)


@pytest.mark.usefixtures("blank_pictures")
def test_judging_without_a_pilot_says_what_is_missing(tmp_path):
    """Where pieces are put together, nothing is taken from other experiments before it is there."""
    pilot, main_file = write_files(tmp_path)
    out = tmp_path / "out"
    words = ["experiment", str(main_file), "--out", str(out), "--minutes", "0"]
    finished = CliRunner().invoke(app, words, catch_exceptions=False)
    assert finished.exit_code == 0
    assert finished.stdout.endswith(
        "0 of 6 runs are finished\nthe pilot has chosen no rate for shuffled, QB: finish `poise "
        f"experiment {tmp_path / 'pilot.toml'}` and put its curves.parquet into pieces/ of this "
        "experiment's folder\n"
    )
    write_piece(out / "pieces" / "pilot.parquet", Piece(pilot_runs(), {}), pilot)
    assert "no rate" not in CliRunner().invoke(app, words, catch_exceptions=False).stdout


def test_what_is_missing_is_said(tmp_path):
    pilot, main_file = write_files(tmp_path)
    experiment = read_experiment(main_file)
    runner = ExperimentRunner.open(experiment, main_file, tmp_path / "out")
    with pytest.raises(PoiseError, match="chosen no rate for shuffled, QB: finish `poise exper"):
        runner.train(experiment.design.run_keys(), 1, lambda _: None)
    write_piece(
        tmp_path / "out" / "pieces" / "p.parquet", Piece(pilot_runs("other weights"), {}), pilot
    )
    runner = ExperimentRunner.open(experiment, main_file, tmp_path / "out")
    with pytest.raises(PoiseError, match="started from other weights than embedded"):
        runner.train(experiment.design.run_keys(), 1, lambda _: None)


def test_an_arm_that_failed_at_every_rate_is_not_waited_for(tmp_path):
    pilot, main_file = write_files(tmp_path)
    runs = pilot_runs()
    failed = [key for key in runs if key.arm == "QB" and key.seed == 1]
    failures = dict.fromkeys(failed, "not finite")
    finished = {key: curve for key, curve in runs.items() if key not in failures}
    piece = tmp_path / "out" / "pieces" / "pilot.parquet"
    piece.parent.mkdir(parents=True)
    write_piece(piece, Piece(finished, failures), pilot)
    experiment = read_experiment(main_file)
    runner = ExperimentRunner.open(experiment, main_file, tmp_path / "out")
    with pytest.raises(PoiseError, match="a run of QB failed at every rate of the pilot: repeat"):
        runner.train(experiment.design.run_keys(), 1, lambda _: None)


def test_pieces_on_other_problems_are_refused(tmp_path):
    data = tmp_path / "problems.jsonl"
    data.write_text('{"problem": "1 + 1", "answer": "2"}\n' * 24)
    task = '[task]\nname = "files"\npath = "elsewhere.jsonl"\nheldout = 4\n'
    run_text = RUN.replace("[task]\n", task).replace("size = 16\n", "")
    pilot, _ = write_files(tmp_path, run_text=run_text)
    here = read_experiment(tmp_path / "pilot.toml", data=str(data))
    assert here.digest == pilot.digest
    assert pilot.problems_digest() == ""
    digest = here.problems_digest()
    assert len(digest) == 16
    (tmp_path / "out" / "pieces").mkdir(parents=True)
    for name, arm, problems in (("a", "QB", digest), ("b", "shuffled", "0" * 16)):
        curve = run(arm, 0, [0.4, 0.5], updates=4)
        runs = group_by_run([{**record, "start": "x", "problems": problems} for record in curve])
        write_piece(tmp_path / "out" / "pieces" / f"{name}.parquet", Piece(runs, {}), here)
        if name == "a":
            assert len(read_pieces(tmp_path / "out", here).runs) == 1
    with pytest.raises(PoiseError, match=r"b\.parquet belongs to another file of problems"):
        read_pieces(tmp_path / "out", here)


def test_the_weights_of_a_gguf_file_have_a_digest(tmp_path):
    pilot_file = tmp_path / "pilot.toml"
    pilot_file.write_text(RUN + PILOT)
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{folder}.gguf").write_bytes(b"weights")
    digests = {
        read_experiment(pilot_file, model=str(tmp_path / name / f"{name}.gguf")).start_digest()
        for name in ("a", "b")
    }
    assert len(digests) == 1
    assert len(digests.pop()) == 16


def other_runs(arm: str, lr: float, seeds: range, label: float = 2e-5) -> Runs:
    """Runs of another experiment that takes its rates from a pilot, and calls them 2e-5."""
    records = [
        {**record, "start": "embedded", "lr": lr}
        for seed in seeds
        for record in run(arm, seed, [0.4, 0.5], updates=4, rate=label)
    ]
    return group_by_run(records)


def test_runs_at_the_rate_that_the_pilot_chooses_are_reused(tmp_path: Path) -> None:
    """`plain` of another file is QB here. Its pilot chose 1e-3 for it, as does the one here."""
    pilot, main_file = write_files(tmp_path)
    other_arms = ARMS.replace("shuffled =", "mixed =").replace("QB =", "plain =")
    other_pilot_file, other_file = tmp_path / "other-pilot.toml", tmp_path / "other.toml"
    other_pilot_file.write_text(RUN + PILOT.replace(ARMS, other_arms))
    other_text = MAIN.format(pilot=other_pilot_file).replace("[1e-4]", "[2e-5]")
    other_text = other_text.replace("shuffled", "mixed").replace("QB", "plain")
    other_file.write_text(RUN + other_text + other_arms)
    other = read_experiment(other_file)
    main_text = main_file.read_text().replace(
        "[experiment]", f'[experiment]\nshares = ["{other_file}"]', 1
    )
    main_file.write_text(main_text)
    experiment = read_experiment(main_file)

    out = tmp_path / "out"
    put_pilot(out, pilot, Piece(pilot_runs(), {}))
    # Seed 13 is not in the experiment; shuffled's rate is 3e-4 here and was 1e-4 there.
    theirs = other_runs("plain", 1e-3, range(11, 14)) | other_runs("mixed", 1e-4, range(10, 13))
    write_piece(out / "pieces" / "theirs.parquet", Piece(theirs, {}), other)
    taken = read_pieces(out, experiment).runs
    assert list(taken) == [RunKey("QB", 1e-4, 11), RunKey("QB", 1e-4, 12)]
    assert {curve[0]["lr"] for curve in taken.values()} == {1e-3}
    write_piece(out / CURVES_FILE, Piece(taken, {}), experiment)
    assert list(read_pieces(out, experiment).runs) == list(taken)
    plan = describe_plan(experiment, experiment.design.run_keys(), out, 1)
    assert "2 runs reused from another experiment" in plan

    # At another rate they are other runs, and before the pilot has chosen none is known to be one.
    (out / CURVES_FILE).unlink()
    theirs = other_runs("plain", 3e-4, range(11, 14))
    write_piece(out / "pieces" / "theirs.parquet", Piece(theirs, {}), other)
    assert not read_pieces(out, experiment).runs
    theirs = other_runs("plain", 1e-4, range(11, 14), label=1e-4)
    write_piece(out / "pieces" / "theirs.parquet", Piece(theirs, {}), other)
    (out / "pieces" / "pilot.parquet").unlink()
    assert not read_pieces(out, experiment).runs


def test_runs_of_a_file_that_fixes_its_rates_are_reused_at_the_chosen_rate(tmp_path: Path) -> None:
    pilot, main_file = write_files(tmp_path)
    fixed = tmp_path / "fixed.toml"
    fixed.write_text(
        RUN + MAIN.replace('rates_from = "{pilot}"\n', "").replace("[1e-4]", "[3e-4, 1e-3]") + ARMS
    )
    main_text = main_file.read_text().replace(
        "[experiment]", f'[experiment]\nshares = ["{fixed}"]', 1
    )
    main_file.write_text(main_text)
    experiment, out = read_experiment(main_file), tmp_path / "out"
    put_pilot(out, pilot, Piece(pilot_runs(), {}))
    records = [
        {**record, "start": "embedded"}
        for arm in ("shuffled", "QB")
        for rate in (3e-4, 1e-3)
        for record in run(arm, 10, [0.4, 0.5 + rate], updates=4, rate=rate)
    ]
    piece = Piece(group_by_run(records), {})
    write_piece(out / "pieces" / "fixed.parquet", piece, read_experiment(fixed))
    taken = read_pieces(out, experiment).runs
    ends = {key.arm: curve[-1]["heldout"] for key, curve in taken.items()}
    assert ends == pytest.approx({"shuffled": 0.5003, "QB": 0.501})  # best: 3e-4 and 1e-3
    assert {key: curve[0]["lr"] for key, curve in taken.items()} == {
        RunKey("shuffled", 1e-4, 10): 3e-4, RunKey("QB", 1e-4, 10): 1e-3,
    }  # fmt: skip
