"""The note about prompts that keep lowering held-out answers."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
from small_run import small_config

from counterpoise.loop import train
from counterpoise.report.audit.audited_run import AuditRun
from counterpoise.report.audit.heldout_pushes import (
    binomial_tail,
    chance_of_passing,
    is_unlikely,
    lowering_prompts,
)
from counterpoise.report.audit.rank import audit_run
from counterpoise.report.probe_trace.influence import Influence, trace_run
from counterpoise.report.probe_trace.read import ProbedRun
from counterpoise.variants import FINDINGS


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three prompts, which every iteration trains again."""
    base = tmp_path_factory.mktemp("lowering")
    sets = (
        "monitor.probe=6",
        "monitor.probe_every=1",
        "task.size=3",
        "task.heldout=3",
        "balance.tau=0",
    )
    train(small_config(base, *sets, "loop.iterations=7", "evaluate.prompts=0"), base / "run")
    train(small_config(base, "loop.iterations=1", "evaluate.prompts=0"), base / "blind")
    return base / "run"


def test_the_tail_is_that_of_a_coin() -> None:
    assert binomial_tail(30, 35) == pytest.approx(
        sum(math.comb(35, k) for k in range(30, 36)) / 2**35
    )
    assert chance_of_passing(4) == 0.0  # 1/16 is not rare enough
    assert is_unlikely(Influence(total=-1.0, updates=35, raising=5))
    assert not is_unlikely(Influence(total=-1.0, updates=35, raising=17))
    assert not is_unlikely(Influence(total=1.0, updates=35, raising=30))


def test_an_update_that_moved_nothing_did_not_lower() -> None:
    """A warm-up of the learning rate may begin at 0."""
    influence = Influence()
    for change in (0.0, -1.0, -1.0, -1.0, -1.0):
        influence.add(change)
    assert (influence.updates, influence.raising) == (4, 0)
    assert not is_unlikely(influence)


def test_a_run_with_probes_is_judged_by_its_own_numbers(run: Path) -> None:
    finding = lowering_prompts(AuditRun.read(run))
    assert finding.level in ("note", "clear")
    assert "prompts with 5 updates or more" in finding.verdict
    traced = trace_run(ProbedRun.open(run)).prompts.values()
    lowering = [influence for influence in traced if is_unlikely(influence)]
    if lowering:
        updates = sum(influence.updates for influence in lowering)
        raised = sum(influence.raising for influence in lowering)
        assert f"in {updates - raised} of their {updates} updates" in finding.verdict
    assert finding.measurements[0].name == "rank correlation of predicted and real change"
    assert -1 <= finding.measurements[0].value <= 1


def test_a_run_without_probes_says_what_it_lacks(run: Path) -> None:
    finding = lowering_prompts(AuditRun.read(run.with_name("blind")))
    assert (finding.level, finding.missing) == ("unsupported", ("probes/",))


def test_a_run_without_its_plans_is_audited_all_the_same(run: Path, tmp_path: Path) -> None:
    """store.report=false: what this finding lacks once ended the whole audit."""
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    plans = [json.loads(line) for line in (folder / "plans.jsonl").open()]
    short = [{name: plan[name] for name in ("schema", "iteration", "describe")} for plan in plans]
    (folder / "plans.jsonl").write_text("".join(f"{json.dumps(plan)}\n" for plan in short))
    findings = {finding.name: finding for finding in audit_run(folder).findings}
    assert len(findings) == len(FINDINGS)
    finding = findings["lowering_prompts"]
    assert (finding.level, finding.remedy) == ("unsupported", "store.report = true")


def test_a_run_that_measured_no_update_is_not_told_to_follow_answers(
    run: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    for name in ("probes", "probe_rows"):
        shutil.rmtree(folder / name)
    options = (folder / "config.toml").read_text()
    assert "probe_every = 1\n" in options
    (folder / "config.toml").write_text(options.replace("probe_every = 1\n", "probe_every = 0\n"))
    for log in (folder / "probes.jsonl", None):
        finding = lowering_prompts(AuditRun.read(folder))
        assert "monitor.probe_every = 1" in finding.remedy
        assert "monitor.probe = 32" not in finding.remedy
        if log is not None:
            log.unlink()
    records = [json.loads(line) | {"steps": 0} for line in (folder / "metrics.jsonl").open()]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in records))
    finding = lowering_prompts(AuditRun.read(folder))
    assert finding.verdict == "needs an update: the run took no optimizer step"
