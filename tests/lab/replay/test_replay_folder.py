"""The folder of a replay of another trainer's steps 10 and 12: its check, its page, its entry."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hosts.importing.foreign import write_lines

from counterpoise.config import ModelConfig
from counterpoise.errors import PoiseError
from counterpoise.lab.choose_page import write_report
from counterpoise.lab.replay.folder import ReplayRequest, open_replay
from counterpoise.lab.replay.run import replay
from counterpoise.lab.replay.start import ReplayedModel
from counterpoise.serve.run_reader import RunReader
from counterpoise.store.check.check_run import check_run
from counterpoise.store.folder import RunFolder
from counterpoise.store.replays import ReplayDescription, describe_replay


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two rollouts a step; the first has no reward `form`, and none says whether it was cut off."""
    folder = tmp_path_factory.mktemp("replayed")
    for step in (10, 12):
        (folder / "theirs/rollouts").mkdir(parents=True, exist_ok=True)
        lines = [
            {"group": f"{step}:p", "prompt_id": "p", "prompt": "1 + 1 = ?", "response": "2",
             "reward": reward, "further": further, "response_tokens": [60, 70, 80 + int(reward)]}
            for reward, further in ((0.0, {}), (1.0, {"form": 0.5}))
        ]  # fmt: skip
        write_lines(folder / f"theirs/rollouts/step_{step:05d}.jsonl", lines)
    overrides = ("monitor.watch=2",)
    request = ReplayRequest(folder / "theirs", "embedded", device="cpu", overrides=overrides)
    replay(request, folder / "replay")
    return folder / "replay"


def test_what_the_rollouts_do_not_say_stays_unknown(replayed: Path) -> None:
    record = RunFolder(replayed).read("metrics")[0]
    assert record["reward_form"] == 0.5
    assert "truncated_share" not in record
    assert all("finished" not in line for line in RunFolder(replayed).read_rollouts(10))


def test_a_replay_of_the_steps_that_its_source_has_is_whole(replayed: Path, tmp_path: Path) -> None:
    assert check_run(replayed).findings == []
    damaged = shutil.copytree(replayed, tmp_path / "replay")
    # A line that is lost with its checksum.
    for name in ("metrics.jsonl", "checksums.jsonl"):
        lines = (damaged / name).read_text(encoding="utf-8").splitlines()
        kept = [
            line
            for line in lines
            if json.loads(line)["iteration"] != 10
            or json.loads(line).get("file", "metrics.jsonl") != "metrics.jsonl"
        ]
        assert len(kept) == len(lines) - 1
        (damaged / name).write_text("\n".join([*kept, ""]), encoding="utf-8")
    problems = [f"{finding.file} {finding.problem}" for finding in check_run(damaged).findings]
    assert "metrics.jsonl lacks iteration 10" in problems
    with (damaged / "replay.json").open("a") as file:
        file.write(" ")
    files = [finding.file for finding in check_run(damaged).findings]
    assert "replay.json" in files


def test_a_replay_from_before_0_3_0_is_whole(replayed: Path, tmp_path: Path) -> None:
    """It had no checksum of replay.json, which did not name the iterations."""
    older = shutil.copytree(replayed, tmp_path / "replay")
    content = json.loads((older / "replay.json").read_text(encoding="utf-8"))
    del content["iterations"]
    (older / "replay.json").write_text(json.dumps(content), encoding="utf-8")
    checksums = (older / "checksums.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in checksums if '"replay.json"' not in line]
    (older / "checksums.jsonl").write_text("".join(kept), encoding="utf-8")
    assert check_run(older).findings == []


def test_a_replay_whose_request_lacks_newer_fields_goes_on(replayed: Path, tmp_path: Path) -> None:
    older = shutil.copytree(replayed, tmp_path / "replay")
    content = json.loads((older / "replay.json").read_text(encoding="utf-8"))
    for name in ("reward", "compare"):
        del content["request"][name]
    (older / "replay.json").write_text(json.dumps(content), encoding="utf-8")
    request = ReplayRequest(
        replayed.parent / "theirs", "embedded", device="cpu", overrides=("monitor.watch=2",)
    )
    model = ReplayedModel("embedded", ModelConfig(), content["request"]["digest"])
    assert open_replay(older, request, model).path == older
    with pytest.raises(PoiseError, match=r"begun with another --reward: none then, mine now"):
        open_replay(older, replace(request, reward="mine"), model)


def test_of_a_damaged_replay_file_the_rest_is_read(replayed: Path, tmp_path: Path) -> None:
    damaged = shutil.copytree(replayed, tmp_path / "replay")
    (damaged / "replay.json").write_text("{", encoding="utf-8")
    assert {finding.file for finding in check_run(damaged).findings} == {"replay.json"}
    assert describe_replay(damaged) == ReplayDescription("", None, "")
    write_report(damaged)


def test_the_page_says_what_was_replayed(replayed: Path, tmp_path: Path) -> None:
    page = " ".join(write_report(replayed, tmp_path / "report.html").read_text("utf-8").split())
    assert "A <b>replay</b> of the rollouts in <b>theirs</b> by the model <b>embedded</b>:" in page
    assert "2 virtual updates (iterations 10, 12), each from the same weights." in page
    assert "Counterpoise replay" in page
    assert "12 of 12" not in page
    assert "not measured.</p>" not in page


def test_the_list_of_runs_counts_virtual_updates(replayed: Path) -> None:
    reader = RunReader("replay", replayed, [replayed.resolve()])
    reader.refresh(None)
    summary = reader.summary()
    assert summary["replay"] == {"source": "theirs", "made": 2, "planned": 2}
    assert summary["planned_iterations"] is None
