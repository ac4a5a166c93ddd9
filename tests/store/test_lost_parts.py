"""A run folder that has lost something: `poise train --resume` says what, and changes nothing."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from small_run import small_model

from counterpoise.cli import main
from counterpoise.config import RunConfig
from counterpoise.config.load import list_options, load_config, to_toml
from counterpoise.loop import train
from counterpoise.store import checkpoint
from counterpoise.store.folder import RunFolder
from counterpoise.store.missing_logs import find_missing_logs
from counterpoise.store.resume import check_restart, discard_run, find_config_damage

SETS = [
    "loop.iterations=5", "loop.checkpoint_every=2", "loop.keep_checkpoints=3", "loop.threads=1",
    "model.device=cpu", "task.levels=[1]", "task.size=24", "task.heldout=4",
    "sample.prompts=4", "sample.group_size=3",
    "sample.max_new_tokens=8", "balance.tau=0.25", "balance.target=6", "batch.steps=2",
    "evaluate.prompts=2", "evaluate.samples=1", "evaluate.every=2", "store.report=false",
    "monitor.every=0", "verify.reward_timeout_seconds=0",
]  # fmt: skip
Damage = Callable[[Path], object]
OPTIONS = len(list_options())


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The options of a run with the random model of small_run.py."""
    return [*SETS, *small_model(tmp_path_factory.mktemp("small"))]


@pytest.fixture(scope="module")
def finished(sets: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("lost") / "whole"
    train(load_config("demo", sets), out)
    return out


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """As if it had been killed after iteration 5 and before its last checkpoint."""
    out = shutil.copytree(finished, tmp_path / "run")
    shutil.rmtree(out / "checkpoints" / checkpoint.folder_name(5))
    shutil.rmtree(out / "model")
    (out / "finished.json").unlink()
    return out


@pytest.fixture
def poise(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """Run the command; its exit code and what it printed, in one line."""

    def command(*words: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["poise", *map(str, words)])
        with pytest.raises(SystemExit) as stopped:
            main()
        printed = capfd.readouterr()
        if stopped.value.code:
            assert printed.err.startswith("poise: ")
            assert printed.err.count("\n") == 1
        return int(stopped.value.code or 0), printed.out.replace("\n", " ") + printed.err

    return command


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def timeless(folder: Path, log: str) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in (folder / f"{log}.jsonl").read_text().splitlines()]
    return [{k: v for k, v in r.items() if not k.endswith(("seconds", "second"))} for r in lines]


def assert_same_run(out: Path, finished: Path) -> None:
    for log in ("metrics", "plans", "drops", "evaluations"):
        assert timeless(out, log) == timeless(finished, log)
    weights = f"checkpoints/{checkpoint.folder_name(5)}/model.safetensors"
    assert (out / weights).read_bytes() == (finished / weights).read_bytes()


def without(name: str, *iterations: int) -> Damage:
    """A log without its lines of some iterations."""

    def damage(out: Path) -> None:
        lines = (out / name).read_text().splitlines(keepends=True)
        kept = [line for line in lines if json.loads(line)["iteration"] not in iterations]
        assert len(kept) < len(lines)
        (out / name).write_text("".join(kept))

    return damage


def emptied(name: str) -> Damage:
    return lambda out: (out / name).write_bytes(b"")


def missing(name: str) -> Damage:
    return lambda out: (out / name).unlink()


# -- config.toml --------------------------------------------------------------------------------


def cut_before(text: str) -> Damage:
    def damage(out: Path) -> None:
        before, found, _ = (out / "config.toml").read_text().partition(text)
        assert found
        (out / "config.toml").write_text(before)

    return damage


def without_line(start: str) -> Damage:
    def damage(out: Path) -> None:
        lines = (out / "config.toml").read_text().splitlines(keepends=True)
        (out / "config.toml").write_text("".join(x for x in lines if not x.startswith(start)))

    return damage


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (emptied("config.toml"), "config.toml is empty: poise train "),
        (lambda out: (out / "config.toml").write_bytes(bytes(4096)), "config.toml is empty: "),
        (missing("config.toml"), "config.toml is missing: poise train "),
        (cut_before("au = 0.25"), "config.toml is torn, not a TOML file ("),
        (
            cut_before("[balance]"),
            f"of its {OPTIONS} options and lacks [balance], [batch], [update], [evaluate] and 4 "
            "more: ",
        ),
        (
            without_line("tau ="),
            f"holds {OPTIONS - 1} of its {OPTIONS} options and lacks balance.tau: ",
        ),
        (
            cut_before("\n[track]"),
            f"holds {OPTIONS - 1} of its {OPTIONS} options and lacks [track]: ",
        ),
    ],
    ids=["empty", "zeros", "missing", "torn", "sections", "option", "last section"],
)
def test_a_config_that_is_not_complete_is_refused_and_taken_from_the_checkpoint(
    sets: list[str],
    run: Path,
    finished: Path,
    damage: Damage,
    said: str,
    poise: Callable[..., tuple[int, str]],
) -> None:
    """A run of 4 x 3 with tau = 0.25 once went on as 16 x 8 without balance."""
    config = (run / "config.toml").read_text()
    damage(run)
    before = contents(run)
    code, told = poise("train", "--resume", "--out", run)
    assert code == 2
    assert said in told
    copy = run / "checkpoints" / checkpoint.folder_name(4) / "options.toml"
    assert f"poise train {copy} --resume --out {run}" in told
    others = [f"--set={s}" for s in sets if s != "evaluate.samples=1"]
    code, told = poise("train", "demo", *others, "--resume", "--out", run)
    assert code == 2
    assert "but checkpoint iteration_00004 was made with evaluate.samples=1: " in told
    assert contents(run) == before

    assert poise("train", copy, "--resume", "--out", run)[0] == 0
    assert (run / "config.toml").read_text() == config
    assert_same_run(run, finished)


def test_the_original_run_file_brings_a_config_back(
    sets: list[str], run: Path, finished: Path, poise: Callable[..., tuple[int, str]]
) -> None:
    config = (run / "config.toml").read_text()
    emptied("config.toml")(run)
    words = ("train", "demo", *(f"--set={s}" for s in sets), "--resume", "--out", run)
    before = contents(run)
    assert poise(*words, "--dry-run")[0] == 0
    assert contents(run) == before
    assert poise(*words)[0] == 0
    assert (run / "config.toml").read_text() == config
    assert_same_run(run, finished)


def test_an_edited_config_is_refused_by_name(
    run: Path, poise: Callable[..., tuple[int, str]]
) -> None:
    text = (run / "config.toml").read_text()
    (run / "config.toml").write_text(text.replace("tau = 0.25", "tau = 0.5"))
    before = contents(run)
    code, told = poise("train", "--resume", "--out", run)
    assert code == 2
    assert (
        "config.toml says balance.tau=0.5, but checkpoint iteration_00004 was made with "
        "balance.tau=0.25: give it that value again, or start a new --out"
    ) in told
    assert contents(run) == before
    (run / "config.toml").write_text(text.replace("iterations = 5", "iterations = 4"))
    assert poise("train", "--resume", "--out", run)[0] == 0  # may change


def as_of_0_1_0(out: Path) -> None:
    """No option_count, and no options in checkpoints."""
    without_line("option_count")(out)
    for path in checkpoint.list_checkpoints(out / "checkpoints"):
        (path / "options.toml").unlink()
        manifest = json.loads((path / "manifest.json").read_text())
        del manifest["sha256"]["options.toml"]
        (path / "manifest.json").write_text(json.dumps(manifest))


def test_a_folder_of_version_0_1_0_resumes(
    run: Path, finished: Path, poise: Callable[..., tuple[int, str]]
) -> None:
    as_of_0_1_0(run)
    assert poise("train", "--resume", "--out", run)[0] == 0
    assert_same_run(run, finished)


def test_a_folder_of_version_0_1_0_with_a_torn_config_does_not(
    sets: list[str], run: Path, poise: Callable[..., tuple[int, str]]
) -> None:
    as_of_0_1_0(run)
    cut_before("[balance]")(run)
    before = contents(run)
    for words in ([], ["demo", *(f"--set={s}" for s in sets)]):
        code, told = poise("train", *words, "--resume", "--out", run)
        assert code == 2
        assert "of its 95 options and lacks [balance], " in told
        assert "restore it from a backup" in told
    assert contents(run) == before


def test_options_that_later_versions_added_are_not_missed(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    shutil.copy(Path(__file__).parent / "config_of_0_1_0.toml", path)
    assert find_config_damage(path) == ""
    text = to_toml(RunConfig())
    count = int(text.split("option_count = ")[1].split()[0])
    fewer = text.replace(f"option_count = {count}", f"option_count = {count - 1}")
    path.write_text(fewer.replace("\n[track]\nto = []\n", ""))  # before [track] was thought of
    assert find_config_damage(path) == ""
    path.write_text(text.replace(f"option_count = {count}", "option_count = '95'"))
    assert find_config_damage(path) == "is damaged (option_count='95' is not a number)"


# -- logs ---------------------------------------------------------------------------------------


def test_every_line_that_is_there_is_one_that_is_due(
    sets: list[str], finished: Path, tmp_path: Path
) -> None:
    """So a lost one is noticed, whichever it is, and none is missed in vain."""
    folder, config = RunFolder.open(finished), load_config("demo", sets)
    assert find_missing_logs(folder, config, 5, expects_evaluations=True) == {}
    there = {
        f"{log}.jsonl": sorted({line["iteration"] for line in folder.read(log)})
        for log in ("metrics", "plans", "drops", "evaluations")
    }
    there |= {f"{kind}/": sorted(folder.step_files(kind)) for kind in ("rollouts", "tokens")}
    assert there["evaluations.jsonl"] == [0, 2, 4, 5]
    there["evaluations.jsonl"].pop()  # made after the last checkpoint
    for name, iterations in there.items():
        assert iterations, name
        for iteration in iterations:
            out = shutil.copytree(finished, tmp_path / f"{name[:4]}-{iteration}")
            if name.endswith("/"):
                next((out / name).glob(f"*{iteration:05d}*")).unlink()
            else:
                without(name, iteration)(out)
            found = find_missing_logs(RunFolder.open(out), config, 5, expects_evaluations=True)
            assert found == {name: [iteration]}


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (emptied("metrics.jsonl"), "metrics.jsonl lacks iterations 1-4. They"),
        (without("metrics.jsonl", 2), "metrics.jsonl lacks iteration 2. They"),
        (missing("plans.jsonl"), "plans.jsonl lacks iterations 1-4. They"),
        (missing("evaluations.jsonl"), "evaluations.jsonl lacks iterations 0, 2. They"),
        (emptied("rollouts/step_00003.jsonl"), "rollouts/ lacks iteration 3. They"),
        (missing("tokens/step_00001.parquet"), "tokens/ lacks iteration 1. They"),
    ],
    ids=["metrics", "a line", "plans", "evaluations", "rollouts", "tokens"],
)
def test_lost_logs_are_named_and_the_run_goes_on_only_if_told_to(
    run: Path, damage: Damage, said: str, poise: Callable[..., tuple[int, str]]
) -> None:
    damage(run)
    before = contents(run)
    code, told = poise("train", "--resume", "--out", run)
    assert code == 2
    assert said in told
    assert contents(run) == before

    code, told = poise("train", "--resume", "--accept-missing-logs", "--out", run)
    assert code == 0
    assert "recorded in gaps.jsonl" in told
    (gap,) = (json.loads(line) for line in (run / "gaps.jsonl").read_text().splitlines())
    assert gap["iteration"] == 4
    name = said.split()[0]
    assert list(gap["missing"]) == [name]
    assert poise("train", "--resume", "--out", run)[0] == 0  # a gap is accepted once
    assert poise("report", run)[0] == 0


def test_what_lies_after_the_checkpoint_is_made_again(
    run: Path, finished: Path, poise: Callable[..., tuple[int, str]]
) -> None:
    without("metrics.jsonl", 5)(run)
    without("evaluations.jsonl", 4, 5)(run)
    (run / "rollouts" / "step_00005.jsonl").unlink()
    assert poise("train", "--resume", "--out", run)[0] == 0
    assert_same_run(run, finished)


# -- checkpoints --------------------------------------------------------------------------------


def damaged_checkpoints(out: Path) -> None:
    for path in checkpoint.list_checkpoints(out / "checkpoints"):
        (path / "model.safetensors").write_bytes(b"")


def lost_checkpoints(out: Path) -> None:
    shutil.rmtree(out / "checkpoints")


def lost_checkpoints_and_logs(out: Path) -> None:
    shutil.rmtree(out / "checkpoints")
    for log in ("metrics", "plans", "drops", "evaluations"):
        (out / f"{log}.jsonl").unlink()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (
            damaged_checkpoints,
            ", but none of its checkpoints can be used (those of iterations 2, 4 are",
        ),
        (lost_checkpoints, " and had saved one at 4, but its checkpoints are gone: "),
        (lost_checkpoints_and_logs, " and had saved one at 4, but its checkpoints are gone: "),
    ],
)
def test_a_run_does_not_start_again_unless_told_to(
    run: Path,
    finished: Path,
    damage: Damage,
    said: str,
    poise: Callable[..., tuple[int, str]],
) -> None:
    damage(run)
    before = contents(run)
    code, told = poise("train", "--resume", "--out", run)
    assert code == 2
    assert f"{run} reached iteration 5{said}" in told
    assert contents(run) == before
    assert poise("train", "--resume", "--from-start", "--out", run)[0] == 0
    assert_same_run(run, finished)


def test_a_run_starts_again_with_other_options(
    run: Path, sets: list[str], tmp_path: Path, poise: Callable[..., tuple[int, str]]
) -> None:
    """Also with another version of the user's reward function, whose digest the run stores."""
    rewards = tmp_path / "mine.py"
    for score in (0.0, 1.0):
        rewards.write_text(f"def score(responses):\n    return [{score}] * len(responses)\n")
        changes = [f"verify.name={rewards}:score", "loop.iterations=1", "loop.checkpoint_every=1"]
        words = [word for option in (*sets, *changes) for word in ("--set", option)]
        code, told = poise("train", "demo", "--resume", "--out", run, *words)
        assert (code, "add --from-start to discard the run" in told) == (2, True)
        again = ("--resume", "--from-start", "--out", run)
        assert poise("train", "demo", *again, *words)[0] == 0
        (record,) = RunFolder.open(run).read("metrics")
        assert record["reward"] == score
    assert len(list((run / "checkpoints").iterdir())) == 1


def test_a_run_that_had_ended_does_not_start_again_either(
    sets: list[str], finished: Path, tmp_path: Path, poise: Callable[..., tuple[int, str]]
) -> None:
    out = shutil.copytree(finished, tmp_path / "run")
    shutil.rmtree(out / "checkpoints")
    code, told = poise("train", "--resume", "--out", out)
    assert code == 2
    assert f"{out} had ended, but its checkpoints are gone: " in told
    folder = RunFolder.open(out)
    # Of the old run's problems and model, which the next run may not have.
    (out / "contamination.json").write_text("{}")
    assert (out / "vocabulary.json").exists()
    discard_run(folder)
    assert not (out / "contamination.json").exists()
    assert not (out / "vocabulary.json").exists()
    check_restart(folder)  # nothing of it is there
    assert folder.read_config() == load_config("demo", sets)


@pytest.mark.parametrize("evaluated", [False, True])
def test_a_run_that_was_killed_while_it_saved_its_first_checkpoint_starts_again(
    run: Path, finished: Path, evaluated: bool, poise: Callable[..., tuple[int, str]]
) -> None:
    """Iteration 2 is in the logs, and a checkpoint was due after it. Its evaluation comes later."""
    shutil.rmtree(run / "checkpoints")
    RunFolder.open(run).rewind(2)
    if not evaluated:
        without("evaluations.jsonl", 2)(run)
    code, told = poise("train", "--resume", "--out", run)
    if evaluated:
        assert code == 2
        assert "reached iteration 2 and had saved one at 2, but its checkpoints are gone" in told
    else:
        assert code == 0
        assert "no checkpoint was due yet: starting again from iteration 0" in told
        assert_same_run(run, finished)


def test_permissions_are_for_a_run_that_is_resumed(
    run: Path, poise: Callable[..., tuple[int, str]]
) -> None:
    code, told = poise("train", "demo", "--from-start", "--out", run)
    assert (code, "--from-start only applies to a resumed run: add --resume" in told) == (2, True)
    (run / "engine.json").write_text('{"engine": "verl"}')
    code, told = poise("train", "--resume", "--accept-missing-logs", "--out", run)
    assert (code, "does not apply to verl" in told) == (2, True)


# -- what killed processes leave ----------------------------------------------------------------


def test_a_start_that_was_killed_is_not_in_the_way(tmp_path: Path) -> None:
    (tmp_path / ".config.toml.4711.part").write_text("schema = 1\n")
    RunFolder.create(tmp_path, RunConfig())
    assert set(contents(tmp_path)) == {"config.toml", "checksums.jsonl"}


def test_a_checkpoint_that_was_to_be_removed_goes_when_the_run_is_resumed(
    sets: list[str], run: Path
) -> None:
    """Killed between saving one and removing the one before the last, a run had three for good."""
    second = run / "checkpoints" / checkpoint.folder_name(2)
    shutil.copytree(second, second.with_name(checkpoint.folder_name(1)))
    left = run / "checkpoints" / ".iteration_00005.4711.part"
    left.mkdir()
    (run / ".model.4711.part").mkdir()
    config = load_config("demo", [*sets, "loop.iterations=4", "loop.keep_checkpoints=2"])
    train(config, run, resume=True)
    kept = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert kept == ["iteration_00002", "iteration_00004"]
    assert not list(run.glob(".*"))
