"""Folders of earlier releases: read as they are, resumed with their own settings, or refused.

releases/0.1, 0.2 and 0.3 were written by the code of those releases (the first form of 0.1.0,
0.2.0 and 0.3.0): two of three iterations of a model of width 2, then stopped. Their rewards are of
a checksum, which `verify.name = "exact"` in their options does not say. 0.3 has a held-out answer
that is followed and a memory of prompts.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from small_run import write_model

from counterpoise.cli import main
from counterpoise.config.load import load_config
from counterpoise.errors import PoiseError
from counterpoise.loop import train
from counterpoise.store.check.check_run import check_run
from counterpoise.store.folder import RunFolder
from counterpoise.store.resume import load_config_to_resume, load_stored_config

RELEASES = Path(__file__).parent / "releases"
MEAN_REWARDS = [2 / 3, 1 / 2]


@pytest.fixture(params=["0.1", "0.2", "0.3"])
def release(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A release; its folder is `run` in the current directory, beside the model that it names."""
    shutil.copytree(RELEASES / request.param, tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    name: str = request.param
    return name


def file_bytes(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_folder_is_whole_and_its_numbers_are_read(release: str) -> None:
    report = check_run(Path("run"))
    assert report.is_whole
    folder = RunFolder.open(Path("run"))
    assert [line["iteration"] for line in folder.read("metrics")] == [1, 2]
    for line, mean_reward in zip(folder.read("metrics"), MEAN_REWARDS, strict=True):
        rewards = [rollout["reward"] for rollout in folder.read_rollouts(line["iteration"])]
        assert line["reward"] == pytest.approx(mean_reward)
        assert sum(rewards) / 6 == pytest.approx(mean_reward)
    changed = Path("run/rollouts/step_00001.jsonl")
    changed.write_text(changed.read_text().replace('"reward": 1.0', '"reward": 0.0', 1))
    assert not check_run(Path("run")).is_whole


@pytest.mark.parametrize("words", [["check"], ["audit"], ["look"], ["report"]])
def test_every_reader_reads_it(
    release: str, words: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr("sys.argv", ["poise", *words, "run"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert not stopped.value.code
    assert capfd.readouterr().out


def test_a_run_of_0_2_goes_on_with_the_settings_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(RELEASES / "0.2", tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    write_model(Path("model"), width=2)
    before = Path("run/metrics.jsonl").read_bytes()
    config = load_config_to_resume(Path("run"), None, [])
    assert config.credit.weights == "shear"
    assert config.credit.settings == ["width=100", "stride=25"]  # 0 and 0 today
    train(config, Path("run"), resume=True)
    assert Path("run/metrics.jsonl").read_bytes().startswith(before)
    assert [line["iteration"] for line in RunFolder.open(Path("run")).read("metrics")] == [1, 2, 3]
    assert check_run(Path("run")).is_whole
    # The checkpoint of 0.2 and the rewritten options do not contradict each other, now or later.
    assert load_stored_config(Path("run/config.toml")).credit == config.credit
    assert load_config_to_resume(Path("run"), None, ["loop.iterations=4"]).credit == config.credit
    with pytest.raises(PoiseError, match=r"credit.settings=.*width=100.*resume without that"):
        load_config_to_resume(Path("run"), None, ["credit.settings=[]", "loop.iterations=4"])


def test_a_run_of_0_3_goes_on_with_its_probes_and_its_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(RELEASES / "0.3", tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    write_model(Path("model"), width=2)
    before = Path("run/probes.jsonl").read_bytes()
    config = load_config_to_resume(Path("run"), None, [])
    assert (config.monitor.probe, config.sample.choose) == (1, "skip_settled")
    assert (config.credit.weights, config.credit.settings) == ("shear", [])
    train(config, Path("run"), resume=True)
    assert Path("run/probes.jsonl").read_bytes().startswith(before)
    for log in ("metrics", "memory"):
        assert [line["iteration"] for line in RunFolder.open(Path("run")).read(log)] == [1, 2, 3]
    assert check_run(Path("run")).is_whole


def test_a_run_of_0_1_is_refused_in_one_line_and_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(RELEASES / "0.1", tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    before = file_bytes(Path("run"))
    with pytest.raises(PoiseError, match=r"first form of version 0\.1\.0.*start a new --out"):
        load_config_to_resume(Path("run"), None, [])
    with pytest.raises(PoiseError, match=r"first form of version 0\.1\.0"):
        load_config_to_resume(Path("run"), load_config("demo", []), [], from_start=True)
    assert file_bytes(Path("run")) == before
