"""`poise experiment` from end to end, on the CPU."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from lab.experiments.made_up import run
from lab.experiments.small_experiment import EXPERIMENT, RUN, write
from small_run import write_model
from typer.testing import CliRunner

from counterpoise.cli import app
from counterpoise.config.load import load_config
from counterpoise.errors import PoiseError
from counterpoise.hosts.trl import host as trl_host
from counterpoise.lab.experiments.arm_plugins import display_option, pin_arms
from counterpoise.lab.experiments.comparable_options import TrainedArm, comparable_options
from counterpoise.lab.experiments.curves import Runs, group_by_run, run_seconds
from counterpoise.lab.experiments.design import RunKey
from counterpoise.lab.experiments.dry_run import describe_plan
from counterpoise.lab.experiments.experiment_file import read_experiment
from counterpoise.lab.experiments.pieces import Piece, read_pieces, write_piece
from counterpoise.lab.experiments.processes import FIXED_OPTIONS, Fleet
from counterpoise.lab.experiments.run import ExperimentRunner
from counterpoise.lab.experiments.terminal import RunSelection
from counterpoise.store.finished import mark_finished
from counterpoise.store.folder import RunFolder


def command(*words: object) -> str:
    done = CliRunner().invoke(app, ["experiment", *map(str, words)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.slow
@pytest.mark.usefixtures("forked_runs")
def test_in_two_pieces(tmp_path: Path) -> None:
    """Seed 0 in one folder, seed 1 in another; put together there without its runs."""
    write_model(tmp_path / "model")  # of one layer; its iterations take milliseconds
    run = f'{RUN}[model]\nname = "{tmp_path / "model"}"\n'
    file, one, two = write(tmp_path, run=run), tmp_path / "one", tmp_path / "two"
    said = command(file, "--out", one, "--jobs", 2, "--seeds", "0:1")
    assert "2 of 2 runs are finished" in said
    runs = sorted(p.name for p in (one / "runs").iterdir() if p.is_dir())
    assert runs == ["QB-lr0.0001-seed0", "shuffled-lr0.0001-seed0"]
    left = {p.name for p in (one / "runs" / runs[0]).iterdir()}
    assert left == {
        "config.toml", "metrics.jsonl", "plans.jsonl", "evaluations.jsonl", "finished.json",
        "checksums.jsonl",
    }  # fmt: skip

    shutil.rmtree(one / "runs")  # curves.parquet is all that is needed
    assert "2 runs, 2 finished already" in command(file, "--out", one, "--seeds", "0:1")

    (two / "pieces").mkdir(parents=True)
    shutil.copy(one / "curves.parquet", two / "pieces" / "first.parquet")
    said = command(file, "--out", two, "--jobs", 2)
    assert "4 runs, 2 finished already" in said
    assert "4 of 4 runs are finished" in said
    trained = sorted(p.name for p in (two / "runs").iterdir() if p.is_dir())
    assert trained == ["QB-lr0.0001-seed1", "shuffled-lr0.0001-seed1"]
    for name in ("report.html", "results.md", "small.json", "small-curves.png", "small.toml"):
        assert (two / name).stat().st_size > 0, name
    bench = ExperimentRunner.open(read_experiment(file), file, two)
    heldout = [r["heldout@0.6/0.95"] for c in bench.runs.values() for r in c]
    assert sum(h is not None for h in heldout) == 8  # before and after, for four runs
    starts = {tuple(c[0]["heldout"] for k, c in bench.runs.items() if k.seed == s) for s in (0, 1)}
    assert all(len(set(pair)) == 1 for pair in starts)  # both arms of a seed start alike


def test_a_function_beside_the_file_is_found_when_the_folder_is_opened_again(
    tmp_path: Path,
) -> None:
    """The folder's copy of the file has no such neighbour."""
    (tmp_path / "mine.py").write_text("def score(responses, answers):\n    return []\n")
    file = write(tmp_path, run=RUN.replace("workers = 1", 'name = "mine.py:score"'))
    for _ in range(2):
        assert ExperimentRunner.open(read_experiment(file), file, tmp_path / "out").runs == {}
    assert (tmp_path / "out" / "small.toml").read_bytes() == file.read_bytes()


@pytest.mark.usefixtures("blank_pictures")
def test_a_stopped_experiment_judges_what_there_is_and_says_130(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Fleet, "train", stopped)
    words = ["experiment", str(write(tmp_path)), "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 130
    assert "stopped; run the same command again to continue" in done.output
    assert "0 of 4 runs are finished" in done.output


@pytest.mark.usefixtures("blank_pictures")
@pytest.mark.parametrize(("stopped", "code"), [(False, 2), (True, 130)])
def test_a_failed_run_is_told_now_and_by_later_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped: bool, code: int
) -> None:
    """One run of four fails, the others are in a piece."""
    file, out = write(tmp_path), tmp_path / "out"
    experiment = read_experiment(file)
    runs = experiment.design.run_keys()
    (out / "pieces").mkdir(parents=True)
    made = [
        {**r, "start": "embedded"}
        for key in runs[:3]
        for r in run(key.arm, key.seed, [0.4, 0.5, 0.6], 4)
    ]
    write_piece(out / "pieces" / "a.parquet", Piece(group_by_run(made), {}), experiment)

    def fails(fleet: Fleet, *_: object) -> None:
        assert list(fleet.options) == [runs[3].name]
        fleet.failures[runs[3].name] = "5 optimizer steps in a row"
        if stopped:
            raise KeyboardInterrupt

    monkeypatch.setattr(Fleet, "train", fails)
    words = ["experiment", str(file), "--out", str(out)]
    done = CliRunner().invoke(app, words)
    assert f"{runs[3].name} failed: 5 optimizer steps in a row" in done.output
    if stopped:
        assert done.exit_code == code
    else:
        assert str(done.exception) == "1 run failed; the same command tries again"
    told = (
        "QB at lr 0.0001: 1 of 2 runs failed, seed 1 (5 optimizer steps in a row). It is compared"
    )
    assert told in (out / "results.md").read_text()
    notes = json.loads((out / "small.json").read_text())["notes"]
    assert [note.startswith(told) for note in notes[-2:]] == [True, False]

    later = ExperimentRunner.open(experiment, file, out)  # and one that trains nothing
    assert later.failures == {runs[3]: "5 optimizer steps in a row"}
    command(file, "--out", out, "--seeds", "0:1")
    assert told in (out / "results.md").read_text()


@pytest.mark.usefixtures("blank_pictures")
def test_where_the_first_runs_fail_the_others_are_not_tried_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(fleet: Fleet, *_: object) -> None:
        fleet.failures.update(dict.fromkeys(list(fleet.options)[:3], "no model 'out/warm'"))

    monkeypatch.setattr(Fleet, "train", fails)
    out = tmp_path / "out"
    done = CliRunner().invoke(app, ["experiment", str(write(tmp_path)), "--out", str(out)])
    said = "3 runs failed before any finished, 1 not tried; the same command tries again"
    assert str(done.exception) == said
    page = (out / "results.md").read_text()
    assert "shuffled at lr 0.0001: 2 of 2 runs failed, seeds 0, 1 (no model 'out/warm'). No" in page
    assert "0 of 4 runs are finished, 3 failed." in page


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
    write_piece(out / "pieces" / "a.parquet", Piece(group_by_run(made), {}), experiment)
    hidden = "import sys; sys.modules['altair'] = None; from counterpoise.cli import main; main()"
    words = [sys.executable, "-c", hidden, "experiment", str(file), "--out", str(out)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    said = "no figures: charts need altair, which is not installed: pip install altair, or use "
    assert f"{said}{out / 'curves.parquet'} as a piece on a machine that has it\n" in done.stdout
    assert (out / "results.md").is_file()
    assert not (out / "report.html").exists()


def test_a_folder_of_another_experiment_is_refused(tmp_path: Path) -> None:
    file, out = write(tmp_path), tmp_path / "out"
    ExperimentRunner.open(read_experiment(file), file, out)
    other = write(tmp_path, EXPERIMENT.replace("seeds = 2", "seeds = 3"))
    with pytest.raises(PoiseError, match=r"another small\.toml"):
        ExperimentRunner.open(read_experiment(other), other, out)


@pytest.mark.usefixtures("blank_pictures")
def test_other_weights_are_refused(tmp_path: Path) -> None:
    file, out = write(tmp_path), tmp_path / "out"
    experiment = read_experiment(file)
    (out / "pieces").mkdir(parents=True)
    piece = [{**r, "start": "other weights"} for r in run("QB", 0, [0.4, 0.5, 0.6], 4)]
    write_piece(out / "pieces" / "a.parquet", Piece(group_by_run(piece), {}), experiment)
    bench = ExperimentRunner.open(experiment, file, out)
    with pytest.raises(PoiseError, match="embedded starts from other weights"):
        bench.train(experiment.design.run_keys(), 1, lambda standing: None)
    said = command(file, "--out", out, "--minutes", 0)  # where pieces are put together
    assert "1 of 4 runs are finished" in said
    assert not (out / "runs").exists()


def test_a_dry_run_says_what_the_seeds_can_show(tmp_path: Path) -> None:
    said = command(write(tmp_path), "--dry-run")
    assert "2 arms x 1 rate x 2 seeds = 4 runs, 4 of them now" in said
    assert "4 times in 5" in said
    assert "(std over seeds; one comparison)" in said
    assert "replicated when it is" in said


def test_an_arm_names_a_function_beside_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the command is started, and when the results are drawn from the copy."""
    (tmp_path / "lab").mkdir()
    mine = "def steps(rows, num_steps, seed):\n    return [[0, 1], list(range(2, len(rows)))]\n"
    (tmp_path / "lab" / "mine.py").write_text(mine)
    (tmp_path / "mine.py").write_text("another file of that name")
    file = write(tmp_path / "lab", EXPERIMENT.replace("composer=grouped", "composer=mine.py:steps"))
    monkeypatch.chdir(tmp_path)
    assert "  QB               batch.composer=mine.py:steps\n" in command(file, "--dry-run")
    experiment = read_experiment(file)
    key = RunKey("QB", 1e-4, 0)
    composer = load_config(file, list(experiment.design.overrides(key))).batch.composer
    assert composer.startswith(f"{tmp_path}/lab/mine.py:steps@")

    ExperimentRunner.open(experiment, file, tmp_path / "out")
    assert (tmp_path / "out" / "mine.py").read_text() == mine
    trained_arm = TrainedArm("QB", 1e-4, None)
    options = comparable_options(experiment.design, trained_arm)
    shutil.rmtree(tmp_path / "lab")
    copy = read_experiment(tmp_path / "out" / "small.toml")
    assert copy.digest == experiment.digest
    assert copy.design.arms["QB"] != experiment.design.arms["QB"]  # the paths differ
    assert comparable_options(copy.design, trained_arm) == options
    (tmp_path / "out" / "mine.py").write_text(mine + "# another content")
    changed = read_experiment(tmp_path / "out" / "small.toml").design
    assert comparable_options(changed, trained_arm) != options


def test_functions_below_the_folder_of_the_file_are_kept_with_the_results(tmp_path: Path) -> None:
    """And a function outside it is not, nor written beside the results."""
    mine = "def steps(rows, num_steps, seed):\n    return [[0, 1], list(range(2, len(rows)))]\n"
    for name in ("lab/plugins/mine.py", "mine.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(mine)
    arms = EXPERIMENT.replace("composer=grouped", "composer=plugins/mine.py:steps")
    arms = arms.replace("composer=shuffled", "composer=../mine.py:steps")
    file, out = write(tmp_path / "lab", arms), tmp_path / "results" / "out"
    experiment = read_experiment(file)
    ExperimentRunner.open(experiment, file, out)
    assert (out / "plugins" / "mine.py").read_text() == mine
    assert sorted(path.name for path in out.parent.rglob("*.py")) == ["mine.py"]
    shutil.rmtree(tmp_path / "lab")
    shutil.copy(tmp_path / "mine.py", out.parent)
    assert read_experiment(out / "small.toml").digest == experiment.digest


def test_an_engine_that_is_not_installed_is_said_before_anything_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trl_host, "installed_version", lambda: None)
    engines = EXPERIMENT.replace("[experiment]", '[experiment]\nengines = ["QB=trl"]', 1)
    file, out = write(tmp_path, engines, RUN + "[balance]\ntau = 0.0\n"), tmp_path / "out"
    said = "QB: TRL is not installed: pip install 'trl==1.16.*'"
    assert f"  missing here   {said}\n" in command(file, "--dry-run")
    result = CliRunner().invoke(app, ["experiment", str(file), "--out", str(out)])
    assert str(result.exception) == said
    assert not (out / "runs").exists()


def test_options_of_arms_are_shown_as_people_write_them(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def score(completion, answer):\n    return 1.0\n")
    written = (
        'verify.also=["mine.py:score=0.5", "style"]',
        "verify.name=mine.py:score",
        "update.kl=1e-3",
        'evaluate.data="hub: none"',
        'model.name="shape:smollm2-135m"',
        'task.path="https://example.org/problems.jsonl"',
    )
    arms = pin_arms({"mine": written}, tmp_path / "arms.toml")
    assert str(tmp_path) in arms["mine"][0]
    assert tuple(map(display_option, arms["mine"])) == written
    # What is no text is left to the reading of the run's options, which refuses it in its place.
    wrong = ("credit.weights=3", "verify.also=[1]", "batch.steps")
    assert pin_arms({"wrong": wrong}, tmp_path / "arms.toml")["wrong"] == wrong


def test_a_dry_run_calls_the_functions_of_all_runs_and_of_single_arms(tmp_path: Path) -> None:
    score = "def score(responses, answers):\n    return [float(r != '') for r in responses]\n"
    compose = "def steps(rows, num_steps, seed):\n    return [[0, 1], list(range(2, len(rows)))]\n"
    (tmp_path / "mine.py").write_text(score + compose)
    run = RUN.replace("workers = 1", 'name = "mine.py:score"')
    arms = EXPERIMENT.replace("composer=grouped", f"composer={tmp_path}/mine.py:steps")
    file = write(tmp_path, arms, run)
    said = command(file, "--dry-run")
    assert said.count("  own reward     mine.py:score: 1 for the answer in a box, 0 for an e") == 1
    assert said.count("  own composer   mine.py:steps: steps of 2, 30 rows\n") == 1

    (tmp_path / "mine.py").write_text(score + compose.replace("range(2,", "range(3,"))
    with pytest.raises(PoiseError, match=r"^\[experiment\.arms\] QB: ") as fault:
        describe_plan(read_experiment(file), [], None, 1)
    assert "\n" not in str(fault.value)
    (tmp_path / "mine.py").write_text(score.replace("return", "return [0.0] +") + compose)
    with pytest.raises(PoiseError, match=r"mine\.py:score returned 5 numbers for 4 responses"):
        describe_plan(read_experiment(file), [], None, 1)


@pytest.mark.usefixtures("blank_pictures")
def test_the_evaluation_at_the_end_names_models_that_are_here(tmp_path: Path) -> None:
    """Of four finished runs three came in a piece, without their models."""
    benchmarks = EXPERIMENT.replace("seeds = 2", 'seeds = 2\nbenchmarks = ["gsm8k"]')
    file = write(tmp_path, benchmarks, RUN.replace("model = false", "model = true"))
    out, experiment = tmp_path / "out", read_experiment(file)
    (out / "pieces").mkdir(parents=True)
    keys = experiment.design.run_keys()
    write_piece(out / "pieces" / "a.parquet", Piece(made(keys, 90.0), {}), experiment)
    assert "next" not in command(file, "--out", out, "--minutes", 0)
    RunFolder.create(out / "runs" / keys[0].name, experiment.run_config)
    said = command(file, "--out", out, "--minutes", 0)
    model = out / "runs" / keys[0].name
    assert f"next (3 runs left out, not in this folder): poise eval {model} --bench gsm8k" in said


def made(keys: list[RunKey], seconds: float) -> Runs:
    return group_by_run(
        [
            {**r, "start": "embedded", "iteration_seconds": seconds / 4, "evaluate_seconds": None}
            | ({"evaluate_seconds": seconds / 2} if r["iteration"] == 2 else {})
            for key in keys
            for r in run(key.arm, key.seed, [0.4, 0.5, 0.6], 4)
            if r["iteration"]
        ]
    )


def test_a_dry_run_says_what_is_done_and_how_long_the_rest_takes(tmp_path: Path) -> None:
    """Of four runs one is finished here, one in a piece, one was begun, one failed."""
    file, out = write(tmp_path), tmp_path / "out"
    experiment = read_experiment(file)
    one, two, three, four = experiment.design.run_keys()
    said = command(file, "--dry-run")
    assert "done: not known: name the folder of the experiment with --out\n" in said
    assert (
        "known once one run has finished; start with --seeds 0:1 --rates 0.0001 --arms shuff"
        in said
    )
    assert "4 runs, 3 at a time (--jobs)" in command(file, "--dry-run", "--jobs", 3)

    assert "done: 0 of 4 are finished in" in command(file, "--dry-run", "--out", out)
    assert not out.exists()

    (out / "pieces").mkdir(parents=True)
    write_piece(out / "curves.parquet", Piece(made([one], 90.0), {four: "no disk"}), experiment)
    write_piece(out / "pieces" / "a.parquet", Piece(made([two], 110.0), {}), experiment)
    RunFolder.create(out / "runs" / three.name, experiment.run_config)
    before = sorted(out.rglob("*"))
    said = command(file, "--dry-run", "--out", out, "--jobs", 1)
    assert f"done: 2 of 4 are finished in {out}, 2 left (1 started, 1 failed, to be tri" in said
    each = "1.7 min each after loading, as in the 2 runs that finished"
    assert f"time: 2 runs, 1 at a time (--jobs), {each}: about 3.3 min\n" in said
    said = command(file, "--dry-run", "--out", out, "--jobs", 1, "--minutes", 2)
    assert "about 3.3 min; about 1 of them finish within --minutes 2\n" in said
    said = command(file, "--dry-run", "--out", out, "--seeds", "0:1")
    assert "2 of 2 are finished" in said
    assert "time: nothing left to train" in said
    assert "task           word_problems: 16 problems to train on" in said
    assert "memory         training" in said
    assert sorted(out.rglob("*")) == before


@pytest.mark.usefixtures("blank_pictures")
def test_runs_that_finished_after_the_table_was_written_are_compared(tmp_path: Path) -> None:
    """As when the command is killed and its runs are not; an arm may have its own length."""
    longer = EXPERIMENT.replace('composer=grouped"', 'composer=grouped", "loop.iterations=3"')
    file, out = write(tmp_path, longer), tmp_path / "out"
    experiment = read_experiment(file)
    for key in experiment.design.run_keys()[:2]:
        config = load_config(file, [*FIXED_OPTIONS, *experiment.design.overrides(key)])
        folder = RunFolder.create(out / "runs" / key.name, config)
        for iteration in range(config.loop.iterations + 1):
            mean = {"temperature": 1.0, "top_p": 1.0, "mean": 0.1 * iteration}
            folder.append("evaluations", {"iteration": iteration, **mean})
            if iteration:
                folder.append("metrics", {"iteration": iteration, "steps": 2, "rollouts": 32})
        mark_finished(folder, config)
    said = command(file, "--dry-run", "--out", out)
    assert f"done: 2 of 4 are finished in {out}, 2 left\n" in said
    assert "2 of 4 runs are finished" in command(file, "--out", out, "--minutes", 0)
    known = read_pieces(out, experiment).runs
    assert [curve[-1]["heldout"] for curve in known.values()] == pytest.approx([0.2, 0.3])


def test_what_a_run_took_is_its_iterations_and_evaluations() -> None:
    ((_, curve),) = made([RunKey("QB", 1e-4, 0)], 100.0).items()
    assert run_seconds(curve) == pytest.approx(100.0)


@pytest.mark.parametrize(
    ("part", "names"),
    [
        (RunSelection(), 4),
        (RunSelection(seeds="0:1"), 2),
        (RunSelection(seeds="1:"), 2),
        (RunSelection(arms="QB"), 2),
        (RunSelection(rates="1e-4", arms="QB,shuffled", seeds=":1"), 2),
    ],
)
def test_a_part_of_an_experiment(tmp_path: Path, part: RunSelection, names: int) -> None:
    assert len(part.select(read_experiment(write(tmp_path)))) == names


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (RunSelection(seeds="4"), "write A:B"),
        (RunSelection(seeds="5:9"), "none of the experiment's 2 seeds"),
        (RunSelection(arms="QD"), "unknown arm 'QD'"),
        (RunSelection(rates="1"), "not a rate of the experiment: 0.0001"),
        (RunSelection(rates="x"), "not a rate"),
    ],
)
def test_a_part_that_is_not_there(tmp_path: Path, part: RunSelection, said: str) -> None:
    with pytest.raises(PoiseError, match=said):
        part.select(read_experiment(write(tmp_path)))
