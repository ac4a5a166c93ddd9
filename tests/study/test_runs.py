"""Runs of a study: trained once, taken up, refused when they are not the ones asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from counterpoise.errors import PoiseError
from counterpoise.runfile import load_config
from counterpoise.store.folder import RunFolder
from counterpoise.study.runs import ALWAYS, number_of_jobs, train_runs

SMALL = (
    "loop.iterations=2", "sample.prompts=4", "batch.steps=2", "balance.tau=0", "task.size=16",
    "evaluate.prompts=0", "store.rollouts=false", "store.tokens=false", "monitor.every=0",
)  # fmt: skip


def silent(doing: str, share: float) -> None:
    pass


@pytest.mark.slow
def test_runs_are_trained_once(tmp_path: Path) -> None:
    told: list[tuple[str, float]] = []
    runs = {"a": SMALL, "b": (*SMALL, "loop.seed=1")}
    first = train_runs(runs, tmp_path, lambda *what: told.append(what))
    assert list(first) == ["a", "b"]
    assert told == [("1 of 2 runs", 0.5), ("2 of 2 runs", 1.0)]
    metrics = {name: run.read("metrics") for name, run in first.items()}
    assert [len(m) for m in metrics.values()] == [2, 2]
    assert metrics["a"][0]["old_logprob"] != metrics["b"][0]["old_logprob"]

    written = (tmp_path / "a" / "metrics.jsonl").stat().st_mtime_ns
    again = train_runs(runs, tmp_path, silent)
    assert (tmp_path / "a" / "metrics.jsonl").stat().st_mtime_ns == written
    assert again["a"].read("metrics") == metrics["a"]

    with pytest.raises(PoiseError, match=r"made with loop\.seed=0, not 5: remove it"):
        train_runs({"a": (*SMALL, "loop.seed=5")}, tmp_path, silent)


@pytest.mark.slow
def test_a_run_that_stopped_goes_on(tmp_path: Path) -> None:
    """Only config.toml was written before it was killed."""
    RunFolder.create(tmp_path / "a", load_config("demo", [*ALWAYS, *SMALL]))
    done = train_runs({"a": SMALL}, tmp_path, silent)
    assert len(done["a"].read("metrics")) == 2


@pytest.mark.slow
def test_a_fault_of_a_run_is_told(tmp_path: Path) -> None:
    missing = f"model.name={tmp_path / 'nowhere'}"
    with pytest.raises(PoiseError, match=r"the run in .*/a failed: .*nowhere"):
        train_runs({"a": (*SMALL, missing)}, tmp_path / "runs", silent)


def test_options_are_checked_before_anything_is_trained(tmp_path: Path) -> None:
    with pytest.raises(PoiseError, match="composer"):
        train_runs({"a": SMALL, "b": ("batch.composer=grupped",)}, tmp_path / "runs", silent)
    assert not (tmp_path / "runs").exists()


def test_number_of_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POISE_JOBS", raising=False)
    assert number_of_jobs() >= 1
    monkeypatch.setenv("POISE_JOBS", "24")
    assert number_of_jobs() == 24
    for wrong in ("0", "many", "-2"):
        monkeypatch.setenv("POISE_JOBS", wrong)
        with pytest.raises(PoiseError, match="POISE_JOBS"):
            number_of_jobs()
