"""A planted cause comes first, a healthy run alarms nobody: the quick form, on made-up files.

tests/lab/sick_runs/ has the slow form, on real runs of the embedded model.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from report.audit.made_up_run import Faults, write_made_up_run

from counterpoise.lab.sick_runs import edits
from counterpoise.report.audit.rank import audit_run
from counterpoise.report.audit.records import AuditReport
from counterpoise.variants import FINDINGS


def serious(report: AuditReport) -> list[tuple[str, str]]:
    return [(f.level, f.name) for f in report.findings if f.level in ("alarm", "warning")]


SICK: dict[str, Faults] = {
    "learning_rate": Faults(success=lambda p: 0.5 - 0.45 * p, heldout=(0.45, 0.05)),
    "cut_groups": Faults(composer="shuffled"),
    "sampler_mismatch": Faults(mismatch=lambda p: 1e-4 + 0.05 * p),
    "rejected_answers": Faults(
        reference=lambda n: f"\\frac{{{2 * n}}}{{2}}" if n % 2 else str(n),
        reward=lambda right, response, rng: float(right and response.count("1") % 2 == 0),
    ),
    "inconsistent_rewards": Faults(
        reward=lambda right, response, rng: float(right != (rng.random() < 0.2))
    ),
    "equal_rewards": Faults(reward=lambda right, response, rng: 1.0),
    "duplicate_prompts": Faults(distinct_prompts=20),
    "entropy_collapse": Faults(
        success=lambda p: 0.5, heldout=(0.45, 0.46), entropy=lambda p: 0.3 * 0.03**p
    ),
    "rare_sign": Faults(composer="by_sign"),
    "reward_gap": Faults(success=lambda p: 0.3 + 0.5 * p, heldout=(0.45, 0.40)),
}


@pytest.mark.parametrize("cause", SICK)
def test_the_planted_cause_comes_first(cause: str, tmp_path: Path):
    findings = serious(audit_run(write_made_up_run(tmp_path / "run", SICK[cause])))
    expected = "cut_groups" if cause == "rare_sign" else cause  # by_sign cuts every group as well
    assert findings[0] == ("alarm", expected), findings
    assert any(name == cause for _, name in findings)


@pytest.mark.parametrize(
    ("edit", "cause"),
    [
        (edits.ramble, "length_drift"),
        (edits.collapse_entropy, "entropy_collapse"),
        (edits.echo, "question_echo"),
        (edits.skip_steps, "not_finite_steps"),
    ],
)
def test_an_edited_run_is_seen_through(edit: Callable[[Path], None], cause: str, tmp_path: Path):
    run = write_made_up_run(tmp_path / "run")
    edit(run)
    assert serious(audit_run(run))[0] == ("alarm", cause)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("composer", "steps"), [("grouped", 4), ("whole", 1)])
def test_a_healthy_run_raises_no_alarm(seed: int, composer: str, steps: int, tmp_path: Path):
    faults = Faults(seed=seed, composer=composer, steps=steps)
    report = audit_run(write_made_up_run(tmp_path / "run", faults))
    assert serious(report) == []
    assert {finding.name for finding in report.findings} == set(FINDINGS)


def test_a_benchmark_that_is_trained_on(tmp_path: Path):
    run = write_made_up_run(tmp_path / "run")
    lines = (run / "rollouts" / "step_00001.jsonl").read_text().splitlines()
    prompts = list(dict.fromkeys(json.loads(line)["prompt"] for line in lines))
    bench = tmp_path / "bench.jsonl"
    bench.write_text("".join(json.dumps({"problem": p, "answer": ""}) + "\n" for p in prompts[:5]))
    report = audit_run(run, [bench])
    assert serious(report)[0] == ("alarm", "benchmark_prompts")
    assert report.findings[0].verdict.startswith("5 of 96 training prompts")
    harmless = tmp_path / "other.jsonl"
    harmless.write_text('{"problem": "What is the capital of France?", "answer": "Paris"}\n')
    assert serious(audit_run(run, [harmless])) == []


def test_evidence_is_in_numbers_and_names_rollouts(tmp_path: Path):
    run = write_made_up_run(tmp_path / "run", SICK["rejected_answers"])
    finding = audit_run(run).findings[0]
    lines = [
        json.loads(line)
        for file in sorted((run / "rollouts").glob("*.jsonl"))
        for line in file.read_text().splitlines()
    ]
    zeros = [line for line in lines if line["reward"] == 0]

    def is_right(line: dict) -> bool:
        reference = line["answer"]
        number = int(reference[6:].split("}")[0]) // 2 if "frac" in reference else int(reference)
        return f"\\boxed{{{number}}}" in line["response"]

    rejected = sum(map(is_right, zeros))
    assert finding.measurements[0].value == pytest.approx(rejected / len(zeros))
    assert f"{rejected} of {len(zeros)} rollouts" in finding.verdict
    for example in finding.examples:
        members = [line for line in lines if line["group"] == example.group]
        assert example.index is not None
        assert is_right(members[example.index])
        assert members[example.index]["reward"] == 0
    assert finding.threshold
    assert finding.cost
    assert "verify.name" in finding.remedy


def test_cut_groups_say_what_qb_would_change(tmp_path: Path):
    report = audit_run(write_made_up_run(tmp_path / "run", SICK["cut_groups"]))
    numbers = {m.name: m.value for m in report.findings[0].measurements}
    assert numbers["split, of groups with signal"] == 1.0
    tried = next(name for name in numbers if name.startswith("with QB, split groups"))
    assert numbers[tried] == 0.0
    # A plan of whole groups has the cross term -1, shuffled rows about 0.
    change = numbers["with QB, change of the cross term"]
    assert -1.5 < change < -0.5
