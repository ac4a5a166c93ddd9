"""The planted runs: what is planted is there, and the table says what the audits said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from counterpoise.config import RunConfig
from counterpoise.config.load import load_config
from counterpoise.errors import PoiseError
from counterpoise.lab.sick_runs import confusion, data_files, plant
from counterpoise.lab.sick_runs.causes import HEALTHY_RUNS, SICK_RUNS, EditedRun
from counterpoise.lab.sick_runs.confusion import (
    PAGE,
    RECORDS,
    AuditedRun,
    audit_planted_runs,
    confusion_page,
    from_records,
    run_audit_study,
    to_records,
    write_page_of_records,
)
from counterpoise.lab.sick_runs.plant import ALL_RUNS
from counterpoise.lab.sick_runs.planted_rewards import always_right, compares_texts, flaky
from counterpoise.lab.sick_runs.stale_sampler import stale_sampling
from counterpoise.lab.studies.records import read_records
from counterpoise.loop import train
from counterpoise.report.audit.thresholds import MIN_ITERATIONS
from counterpoise.store.finished import FINISHED_FILE
from counterpoise.variants import FINDINGS
from counterpoise.verify.math.verifier import MathVerifier

ROOT = Path(__file__).parents[3]


def read_lines(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def test_there_are_enough_of_them_and_each_expects_a_finding_of_its_own():
    assert len(HEALTHY_RUNS) >= 4
    assert len(SICK_RUNS) >= 8
    assert sum(not isinstance(planted, EditedRun) for planted in SICK_RUNS) >= 8
    expected = [planted.finding for planted in SICK_RUNS]
    assert len(set(expected)) == len(expected)
    assert set(expected) <= set(FINDINGS)
    assert len({planted.name for planted in ALL_RUNS}) == len(ALL_RUNS)


def test_half_of_the_references_are_fractions_that_only_a_text_comparison_rejects(tmp_path: Path):
    options = data_files.write_fractions(tmp_path, 0)
    records = read_lines(tmp_path / "train.jsonl")
    healthy = data_files.write_problems(tmp_path / "healthy", 0)
    numbers = [record["answer"] for record in read_lines(tmp_path / "healthy" / "train.jsonl")]
    assert len(options) == len(healthy) == 3
    responses = [f"so \\boxed{{{number}}}" for number in numbers]
    references = [record["answer"] for record in records]
    assert sum(compares_texts(responses, references)) == len(records) / 2
    with MathVerifier() as verifier:
        assert sum(verifier.score(responses, references).rewards) == len(records)


def test_duplicates_and_leaks_are_planted(tmp_path: Path):
    data_files.write_duplicates(tmp_path / "copies", 0)
    records = read_lines(tmp_path / "copies" / "train.jsonl")
    assert len({record["id"] for record in records}) == len(records) == 240
    assert len({record["problem"] for record in records}) == 24
    for leak, share in ((True, 40), (False, 0)):
        folder = tmp_path / f"leak-{leak}"
        data_files.write_benchmark(folder, 0, leak=leak)
        train, bench = (
            {record["problem"] for record in read_lines(folder / f"{name}.jsonl")}
            for name in ("train", "benchmark")
        )
        assert len(train & bench) == share


def test_bad_rewards_are_bad():
    answers = ["1"] * 200
    assert always_right(["x", "y"], ["1", "2"]) == [1.0, 1.0]
    rewards = flaky(["\\boxed{1}"] * 200, answers)
    assert 20 < rewards.count(0.0) < 60  # one in five, on average


def test_a_run_is_made_again_if_its_cause_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made: list[str] = []

    def pretend_to_train(config: RunConfig, folder: Path) -> None:
        made.append(folder.name)
        folder.mkdir(parents=True)
        (folder / FINISHED_FILE).touch()

    monkeypatch.setattr(plant, "train", pretend_to_train)
    healthy, edited = ALL_RUNS[0], EditedRun("edited", "echo", "", lambda run: made.append("edit"))
    for planted in (healthy, edited, healthy, edited):
        plant.plant_run(planted, 1, tmp_path, print)
    assert made == ["demo", "edit"]
    monkeypatch.setattr(plant, "BASE_OPTIONS", (*plant.BASE_OPTIONS, "sample.prompts=12"))
    plant.plant_run(edited, 1, tmp_path, print)  # of the healthy run, which is made first
    assert made == ["demo", "edit", "demo", "edit"]


def test_a_quick_study_leaves_the_published_page_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    rows = [AuditedRun("demo", 1, "", ()), AuditedRun("echo", 1, "echo", (("echo", "alarm"),))]
    monkeypatch.setattr(confusion, "audit_planted_runs", lambda *_: rows)
    monkeypatch.setattr(confusion, "confusion_page", lambda _: "page")
    monkeypatch.chdir(tmp_path)
    for folder in (PAGE.parent, RECORDS.parent, Path("out")):
        folder.mkdir(parents=True)
    assert run_audit_study("quick", [], tmp_path / "out", print) == tmp_path / "out" / "audit.md"
    assert not PAGE.exists()
    assert not RECORDS.exists()
    assert run_audit_study("full", [], tmp_path / "out", print) == PAGE
    assert RECORDS.exists()


def test_the_table_counts(tmp_path: Path):
    rows = [
        AuditedRun(
            "lr-x10", 1, "learning_rate", (("learning_rate", "alarm"), ("cut_groups", "clear"))
        ),
        AuditedRun(
            "lr-x10", 2, "learning_rate", (("cut_groups", "alarm"), ("learning_rate", "alarm"))
        ),
        AuditedRun("demo", 1, "", (("cut_groups", "clear"),)),
        AuditedRun("demo", 2, "", (("length_drift", "alarm"), ("cut_groups", "warning"))),
        AuditedRun("leak", 1, "benchmark_prompts", (("benchmark_prompts", "warning"),)),
    ]
    assert [row.is_right for row in rows] == [True, False, True, False, False]
    assert from_records(to_records(rows)) == rows
    rows = rows[:4]
    page = confusion_page(rows)
    assert "named first, as an alarm: 1 of 2. Healthy runs without an alarm: 1 of 2." in page
    assert "| `learning_rate` (1), `cut_groups` (1); also `learning_rate` (1) | 1/2 |" in page
    with pytest.raises(PoiseError, match="--size seeds=2"):
        run_audit_study("quick", ["batches=2"], tmp_path, print)


def test_stored_records_give_the_page_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # outside of a checkout
    page = write_page_of_records(ROOT / RECORDS, tmp_path / "out")
    assert page == tmp_path / "out" / "audit.md"
    assert page.read_text("utf-8") == (ROOT / PAGE).read_text("utf-8")
    with pytest.raises(PoiseError, match="there is no such file"):
        write_page_of_records(tmp_path / "no.parquet", tmp_path)
    with pytest.raises(PoiseError, match="no records of the study audit: no column 'run'"):
        write_page_of_records(ROOT / "docs/data/embedded-trace.parquet", tmp_path)


def test_the_page_in_docs_is_of_these_runs():
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    stored = read_records(ROOT / RECORDS)
    assert stored is not None
    assert page == confusion_page(from_records(stored[0]))
    of_runs, _, of_routes = page.partition("## One run, two routes")
    assert of_routes.count("\n| ") == 6
    table = [line for line in of_runs.splitlines() if line.startswith("| ")][1:]
    assert [line.split(": ")[0].removeprefix("| ").split(" ")[0] for line in table] == [
        planted.name for planted in ALL_RUNS
    ]
    counts = [line.split(" | ")[-1].rstrip(" |").split("/") for line in table]
    right, total = ([int(count[side]) for count in counts] for side in (0, 1))
    healthy = len(HEALTHY_RUNS)
    assert f"as an alarm: {sum(right[healthy:])} of {sum(total[healthy:])}." in page
    assert f"without an alarm: {sum(right[:healthy])} of {sum(total[:healthy])}." in page


@pytest.mark.slow
def test_real_runs_are_seen_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Two of the runs behind docs/results/audit.md, on a seed that it does not use: as short as a
    trend allows, with fewer prompts, the easiest problems and few held-out ones."""
    shorter = (
        f"loop.iterations={MIN_ITERATIONS}", "task.levels=[1]", "sample.max_new_tokens=48",
        "sample.prompts=4", "sample.group_size=4", "balance.target=8", "batch.steps=2",
        "evaluate.prompts=2", "task.size=64", "task.heldout=8", "store.report=false",
    )  # fmt: skip
    monkeypatch.setattr(plant, "BASE_OPTIONS", (*plant.BASE_OPTIONS, *shorter))
    chosen = [planted for planted in ALL_RUNS if planted.name in ("cut-groups", "length")]
    rows = audit_planted_runs([7], tmp_path, lambda line: None, chosen)
    assert [row.is_right for row in rows] == [True, True], rows


def test_a_stale_sampler_keeps_the_first_weights(tmp_path: Path) -> None:
    """Rollouts of the second iteration are those of a run whose weights never change."""
    options = [
        "loop.iterations=2", "task.levels=[3]", "task.size=16", "task.heldout=2",
        "sample.prompts=4", "sample.group_size=8", "evaluate.prompts=0",
        "balance.tau=0", "balance.target=0", "batch.steps=1", "update.warmup_steps=0",
        "store.model=false", "store.report=false", "monitor.every=0",
    ]  # fmt: skip

    def second_responses(name: str, lr: float) -> list[list[int]]:
        folder = train(load_config("demo", [*options, f"update.lr={lr}"]), tmp_path / name)
        lines = read_lines(folder.path / "rollouts" / "step_00002.jsonl")
        return [line["response_tokens"] for line in lines]

    with stale_sampling():
        stale = second_responses("stale", 1e-3)
    frozen, fresh = second_responses("frozen", 1e-30), second_responses("fresh", 1e-3)
    assert stale == frozen
    assert stale != fresh
