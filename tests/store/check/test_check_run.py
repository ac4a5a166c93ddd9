"""`poise check`: a whole run passes, and every kind of damage to every kind of file is reported."""

from __future__ import annotations

import json
import math
import random
import re
import shutil
import sys
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from small_run import small_config

from counterpoise.cli import main
from counterpoise.errors import PoiseError
from counterpoise.loop import train
from counterpoise.report.traces import read_trace
from counterpoise.store.check.check_run import check_run
from counterpoise.store.checksums import Checksum
from counterpoise.store.folder import RunFolder
from counterpoise.store.rollout_files import read_groups


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("check")
    train(small_config(folder), folder / "run")
    return folder / "run"


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return shutil.copytree(finished, tmp_path / "run")


def all_files(run: Path) -> list[Path]:
    return sorted(path for path in run.rglob("*") if path.is_file())


def problems(run: Path) -> list[str]:
    return [f"{finding.file} {finding.problem}" for finding in check_run(run).findings]


def flip_bit(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def test_a_whole_run_passes_and_all_of_it_is_trusted(run: Path) -> None:
    report = check_run(run)
    assert report.findings == []
    assert report.remarks == []
    assert report.finished
    assert report.iterations == 4
    trusted = report.trusted()
    assert trusted["metrics.jsonl"] == trusted["model/model.safetensors"] == "all"
    assert trusted["tokens/"] == trusted["rollouts/"] == "iterations 1-4"
    assert trusted["checkpoints/"] == "iterations 2, 4"


def test_a_checkpoint_with_damage_is_not_listed_as_trusted(run: Path) -> None:
    report = check_run(run)
    # As check_memory_checkpoints does for a checkpoint whose own digests are right.
    problem = "has another prompt memory than memory.jsonl"
    report.add("checkpoints/iteration_00004", problem, 4)
    assert report.trusted()["checkpoints/"] == "iterations 2"
    report.add("checkpoints/iteration_00002", problem, 2)
    assert "checkpoints/" not in report.trusted()


def test_every_flipped_bit_in_every_file_is_reported(run: Path) -> None:
    rng = random.Random(1)
    files = all_files(run)
    assert len(files) > 30
    unnoticed = []
    for path in files:
        original = path.read_bytes()
        for _ in range(2):
            flip_bit(path, rng)
            if check_run(run).is_whole:
                unnoticed.append(path.name)
            path.write_bytes(original)
    assert unnoticed == []


def test_every_cut_or_emptied_file_is_reported(run: Path) -> None:
    rng = random.Random(2)
    unnoticed = []
    for path in all_files(run):
        original = path.read_bytes()
        length = rng.choice([0, rng.randrange(len(original))])
        path.write_bytes(original[:length])
        if check_run(run).is_whole:
            unnoticed.append((path.name, length))
        path.write_bytes(original)
    assert unnoticed == []


def test_every_removed_file_is_reported(run: Path) -> None:
    unnoticed = []
    for path in all_files(run):
        original = path.read_bytes()
        path.unlink()
        if check_run(run).is_whole:
            unnoticed.append(str(path.relative_to(run)))
        path.write_bytes(original)
    # Without finished.json it is a run that was killed just before its end: resuming writes it.
    assert unnoticed == ["finished.json"]


def without_line(path: Path, iteration: int) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(line for line in lines if json.loads(line)["iteration"] != iteration))


def test_what_the_user_accepted_as_lost_is_no_damage(run: Path) -> None:
    without_line(run / "metrics.jsonl", 2)
    without_line(run / "plans.jsonl", 3)
    (run / "rollouts" / "step_00001.jsonl").unlink()
    (run / "tokens" / "step_00004.parquet").write_bytes(b"")
    damage = check_run(run)
    files = {finding.file for finding in damage.findings}
    assert files >= {"metrics.jsonl", "plans.jsonl", "rollouts/step_00001.jsonl"}
    assert damage.trusted()["metrics.jsonl"] == "iterations 1, 3-4"
    assert damage.trusted()["plans.jsonl"] == "iterations 1, 4"  # 2 has no metrics
    missing = {"metrics.jsonl": [2], "plans.jsonl": [3], "rollouts/": [1], "tokens/": [4]}
    RunFolder.open(run).append("gaps", {"iteration": 4, "missing": missing})
    report = check_run(run)
    assert report.findings == []
    assert report.remarks == [
        "accepted as lost (gaps.jsonl): metrics.jsonl lacks iteration 2, plans.jsonl lacks "
        "iteration 3, rollouts/ lacks iteration 1, tokens/ lacks iteration 4"
    ]
    flip_bit(run / "rollouts" / "step_00002.jsonl", random.Random(0))
    assert not check_run(run).is_whole


def test_a_lost_end_of_a_finished_run_is_named_as_a_whole(run: Path) -> None:
    (run / "metrics.jsonl").write_bytes(b"")
    assert "metrics.jsonl lacks iterations 1-4" in problems(run)


@pytest.mark.parametrize("kind", ["rollouts", "tokens", "pushes"])
def test_two_swapped_files_are_reported(run: Path, kind: str) -> None:
    first, second = sorted((run / kind).iterdir())[:2]
    first_content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(first_content)
    report = check_run(run)
    assert {finding.iteration for finding in report.findings if finding.file.startswith(kind)} == {
        1,
        2,
    }
    assert report.trusted()[f"{kind}/"] == "iterations 3-4"


def test_dropped_repeated_and_moved_lines_are_reported(run: Path) -> None:
    rng = random.Random(3)
    unnoticed, harmless = [], 0
    for path in [*run.glob("*.jsonl"), run / "rollouts" / "step_00001.jsonl"]:
        lines = path.read_bytes().splitlines(keepends=True)
        for number, line in enumerate(lines[:-1]):
            change = rng.choice(["drop", "repeat", "move"])
            changed = lines[:number] + lines[number + 1 :]
            if change == "repeat":
                changed = lines[: number + 1] + lines[number:]
            elif change == "move":
                changed.append(line)
            path.write_bytes(b"".join(changed))
            if not check_run(run).is_whole:
                continue
            # Checksums are read by the name of their file: their order says nothing, nor does a
            # second one for a file of the whole run.
            is_checksum = path.name == "checksums.jsonl"
            of_whole_run = json.loads(line).get("iteration") == 0
            if is_checksum and (change == "move" or (change == "repeat" and of_whole_run)):
                harmless += 1
            else:
                unnoticed.append((path.name, change, line))
        path.write_bytes(b"".join(lines))
    assert unnoticed == []
    assert harmless > 2


def test_a_changed_table_is_refused_by_its_readers_too(run: Path) -> None:
    read_trace(run, 2)
    path = run / "tokens" / "step_00002.parquet"
    table = pq.read_table(path)
    pq.write_table(table.set_column(4, "advantage", [[0.0] * table.num_rows]), path)
    with pytest.raises(PoiseError, match="is not what the run wrote; poise check"):
        read_trace(run, 2)
    rollouts = run / "rollouts" / "step_00001.jsonl"
    rollouts.write_text(rollouts.read_text().replace('"reward": 1.0', '"reward": 0.0', 1))
    with pytest.raises(PoiseError, match="is not what the run wrote"):
        read_groups(run)


# -- folders of earlier versions, which have no checksums -----------------------------------------


@pytest.fixture
def old_run(run: Path) -> Path:
    """As release 0.2.0 would have left it."""
    (run / "checksums.jsonl").unlink()
    (run / "finished.json").write_text('{"schema": 1, "iterations": 4}')
    for checkpoint in (run / "checkpoints").iterdir():
        state = json.loads((checkpoint / "state.json").read_text())
        del state["checksums_from"]
        (checkpoint / "state.json").write_text(json.dumps(state))
        manifest = json.loads((checkpoint / "manifest.json").read_text())
        digest = sha256((checkpoint / "state.json").read_bytes()).hexdigest()
        manifest["sha256"]["state.json"] = digest
        (checkpoint / "manifest.json").write_text(json.dumps(manifest))
    return run


def test_a_run_without_checksums_passes_with_a_remark(old_run: Path) -> None:
    report = check_run(old_run)
    assert report.findings == []
    assert "no checksums" in report.remarks[0]


def change_number(name: str, field: str, change: Callable[[object], object]) -> Callable:
    def damage(run: Path) -> None:
        lines = [json.loads(line) for line in (run / name).read_text().splitlines()]
        lines[0][field] = change(lines[0][field])
        (run / name).write_text("".join(json.dumps(line) + "\n" for line in lines))

    return damage


def change_column(name: str, column: str, amount: float) -> Callable:
    def damage(run: Path) -> None:
        table = pq.read_table(run / name)
        values = table[column].to_numpy().copy()
        values[0] += amount
        index = table.column_names.index(column)
        pq.write_table(table.set_column(index, column, [values]), run / name)

    return damage


ROLLOUTS, TOKENS = "rollouts/step_00001.jsonl", "tokens/step_00001.parquet"


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (change_number("metrics.jsonl", "rollouts", lambda n: n + 1), "metrics.jsonl says 10"),
        (change_number("metrics.jsonl", "rollout_tokens", lambda n: n + 1), "rollout_tokens 45"),
        (change_number("metrics.jsonl", "reward", lambda n: n + 1e-6), "has reward"),
        (change_number("metrics.jsonl", "reward", lambda n: math.nan), "metrics.jsonl says nan"),
        (change_number("metrics.jsonl", "batch_rows", lambda n: 5), "has 4 rows"),
        (change_number("metrics.jsonl", "iteration", lambda n: 7), "lacks iteration 1"),
        (change_number("metrics.jsonl", "schema", lambda n: 2), "schema is not 1"),
        (change_number("plans.jsonl", "steps", lambda _: [[2, 3], [2, 1]]), "uses a row twice"),
        (change_number("plans.jsonl", "tokens", lambda n: [n[0] + 1, *n[1:]]), "says 6 tokens"),
        (change_number("plans.jsonl", "index", lambda n: [8, *n[1:]]), "which rollouts/ lacks"),
        (change_number("plans.jsonl", "index", lambda n: [2, *n[1:]]), "which the plan trains"),
        (
            change_number("plans.jsonl", "advantage", lambda n: [x + 0.5 for x in n]),
            "another advantage",
        ),
        (change_number("plans.jsonl", "steps", lambda n: n[::-1]), "in other steps"),
        (change_number(ROLLOUTS, "response_tokens", lambda n: [5, *n[1:]]), "other tokens in row"),
        (change_number(ROLLOUTS, "response_tokens", lambda n: [9999] * 5), "vocabulary lacks"),
        (change_number(ROLLOUTS, "sampled_logprobs", lambda n: n[1:]), "4 log-prob"),
        (change_number(ROLLOUTS, "reward", lambda n: 1 - n), "has reward"),
        (change_number(ROLLOUTS, "group", lambda n: "2:x"), "of another iteration"),
        (change_column(TOKENS, "token", 1), "has other tokens in row"),
        (change_column(TOKENS, "advantage", 0.001), "another advantage"),
        (change_column(TOKENS, "row", 1), "in other steps|skips or repeats"),
        (change_column(TOKENS, "position", 1), "skips or repeats positions"),
        (change_column("pushes/step_00001.parquet", "by_row", 70), "that tokens/ lacks"),
    ],
)
def test_files_that_contradict_each_other_are_reported(
    old_run: Path, damage: Callable[[Path], None], said: str
) -> None:
    damage(old_run)
    found = problems(old_run)
    assert any(re.search(said, line) for line in found), found


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda line: line[:20], "line 3: "),
        (lambda line: "[]", "line 3: "),
        (lambda line: line.replace('"reward"', '"award"'), "line 3 has no field 'reward'"),
        (lambda line: line.replace('"reward": ', '"reward": null, "was": '), "line 3: "),
        (lambda line: line.replace('"group": "1:', '"group": "2:'), "line 3"),
    ],
)
def test_a_damaged_line_of_a_rollout_file_is_named(
    old_run: Path, change: Callable[[str], str], reason: str
) -> None:
    lines = (old_run / ROLLOUTS).read_text().splitlines()
    assert change(lines[2]) != lines[2]
    lines[2] = change(lines[2])
    (old_run / ROLLOUTS).write_text("".join(f"{line}\n" for line in lines))
    found = problems(old_run)
    assert any(line.startswith(f"{ROLLOUTS} cannot be read: {reason}") for line in found), found


def test_options_that_contradict_a_checkpoint_are_reported(old_run: Path) -> None:
    config = old_run / "config.toml"
    config.write_text(config.read_text().replace("tau = 0.25", "tau = 0.5"))
    assert any("made with balance.tau=0.25" in line for line in problems(old_run))


def test_folders_within_folders(run: Path) -> None:
    """A tokenizer with several chat templates has one in model/; one of the user's is no damage."""
    templates = run / "model" / "additional_chat_templates"
    templates.mkdir()
    (templates / "tool_use.jinja").write_text("{{ messages }}")
    (run / "plots" / "first").mkdir(parents=True)
    assert problems(run) == [
        "model/additional_chat_templates/tool_use.jinja has no checksum in checksums.jsonl"
    ]
    RunFolder.open(run).write_model_checksums(run / "model")
    report = check_run(run)
    assert report.findings == []
    assert report.remarks == ["not checked, because no run writes it: plots"]
    (templates / "tool_use.jinja").unlink()
    assert problems(run) == ["model/additional_chat_templates/tool_use.jinja is missing"]


# -- unfinished runs ------------------------------------------------------------------------------


def test_what_a_kill_cuts_off_is_no_damage_and_resuming_completes_it(
    finished: Path, run: Path
) -> None:
    """As if killed while iteration 3 was written: after the checksum, before the line."""
    shutil.rmtree(run / "checkpoints" / "iteration_00004")
    shutil.rmtree(run / "model")
    (run / "finished.json").unlink()
    for log in ("metrics", "plans", "drops"):
        lines = (run / f"{log}.jsonl").read_text().splitlines(keepends=True)
        (run / f"{log}.jsonl").write_text("".join(lines[:2]))
    evaluations = (run / "evaluations.jsonl").read_text().splitlines(keepends=True)
    (run / "evaluations.jsonl").write_text("".join(evaluations[:1]))
    (run / "tokens" / "step_00003.parquet").unlink()
    report = check_run(run)
    assert report.findings == []
    assert not report.finished
    assert report.resume_advice() == "It can be resumed after iteration 2."
    (run / "rollouts" / "step_00001.jsonl").rename(run / "rollouts.jsonl")
    assert check_run(run).resume_advice() == (
        "It can be resumed after iteration 2 with --accept-missing-logs only: "
        "rollouts/ lacks iteration 1."
    )
    (run / "rollouts.jsonl").rename(run / "rollouts" / "step_00001.jsonl")
    metrics = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(f"no json\n{metrics}")
    assert "iteration 2 once this is mended: " in check_run(run).resume_advice()
    (run / "metrics.jsonl").write_text(metrics)
    train(small_config(finished.parent), run, resume=True)
    assert problems(run) == []
    assert (run / "tokens" / "step_00003.parquet").read_bytes() == (
        finished / "tokens" / "step_00003.parquet"
    ).read_bytes()


def test_a_resumed_run_of_an_earlier_version_is_checked_from_there_on(
    finished: Path, old_run: Path
) -> None:
    train(small_config(finished.parent, "loop.iterations=6"), old_run, resume=True)
    assert problems(old_run) == []
    flip_bit(old_run / "tokens" / "step_00006.parquet", random.Random(0))
    assert problems(old_run) == ["tokens/step_00006.parquet is not what the run wrote"]


def test_checksums_cost_less_than_a_hundredth_of_an_iteration(finished: Path) -> None:
    """CRC-32 of an iteration's files, against the time of this run's iterations."""
    files = [finished / kind / f"step_00002.{suffix}" for kind, suffix in
             (("rollouts", "jsonl"), ("tokens", "parquet"), ("pushes", "parquet"),
              ("likely", "parquet"))]  # fmt: skip
    seconds = []
    for _ in range(20):
        start = time.perf_counter()
        for path in files:
            Checksum.of_file(path)
        seconds.append(time.perf_counter() - start)
    iterations = [line["iteration_seconds"] for line in RunFolder(finished).read("metrics")]
    assert min(seconds) < 0.01 * min(iterations)


# -- the command ----------------------------------------------------------------------------------


def test_the_command_answers_and_exits_with_0_or_2(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def poise(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["poise", "check", str(run), *words])
        with pytest.raises(SystemExit) as stopped:
            main()
        printed = capsys.readouterr()
        return int(stopped.value.code or 0), printed.out, printed.err

    assert poise()[:2] == (0, f"{run}: whole; 4 iterations, finished\n")
    flip_bit(run / "tokens" / "step_00003.parquet", random.Random(0))
    code, answer, message = poise()
    assert code == 2
    assert "tokens/step_00003.parquet is not what the run wrote" in answer
    assert "tokens/ (iterations 1-2, 4)" in answer
    assert message.count("\n") == 1
    code, answer, _ = poise("--json")
    assert code == 2
    assert json.loads(answer)["damage"] == [
        {
            "file": "tokens/step_00003.parquet",
            "problem": "is not what the run wrote",
            "iteration": 3,
        }
    ]
