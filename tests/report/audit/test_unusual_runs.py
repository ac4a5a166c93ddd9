"""Runs whose numbers mean something else than usual: the audit says of them what is true."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hosts.importing.foreign import read_lines, write_lines
from hosts.importing.foreign_dumps import write_rollout_dump, write_slime_dump
from hosts.importing.foreign_nemo_rl import POLICY, sample_record, write_config, write_step
from report.audit.made_up_run import ITERATIONS, Faults, G, P, write_made_up_run
from report.synthetic import write_run

from counterpoise.hosts.importing.write_folder import import_run
from counterpoise.report.audit import sampler
from counterpoise.report.audit.audited_run import AuditRun
from counterpoise.report.audit.learning import entropy_collapse, learning_rate
from counterpoise.report.audit.rank import audit_run
from counterpoise.report.audit.records import AuditFinding


def find(run: Path, name: str) -> AuditFinding:
    (finding,) = (each for each in audit_run(run).findings if each.name == name)
    return finding


def change_lines(file: Path, change: Callable[[dict[str, Any]], None]) -> None:
    lines = read_lines(file)
    for line in lines:
        change(line)
    write_lines(file, lines)


def test_a_mean_reward_below_zero_cannot_halve(tmp_path: Path):
    """Rewards of -1 and 1: from -0.30 to -0.38 is a fall, not a collapse."""
    faults = Faults(reward=lambda right, answer, rng: 1.0 if right else -1.0, heldout=(0.4, 0.4))
    run = write_made_up_run(tmp_path / "run", faults)

    def set_reward(line: dict[str, Any]) -> None:
        line["reward"] = -0.28 - 0.01 * line["iteration"]

    change_lines(run / "metrics.jsonl", set_reward)
    finding = find(run, "learning_rate")
    assert finding.level == "warning"
    assert "training mean reward from -0.305 to -0.385" in finding.verdict


def test_an_evaluation_without_a_reward_is_called_a_success(tmp_path: Path):
    graded = Faults(reward=lambda right, answer, rng: [0.25, 1.0][right] + 0.1 * rng.integers(3))
    run = write_made_up_run(tmp_path / "run", graded)
    change_lines(run / "evaluations.jsonl", lambda line: line.pop("reward"))
    verdict = find(run, "learning_rate").verdict
    assert "held-out success went from 42.0 % to 60.0 %" in verdict
    assert "training mean reward from" in verdict


def test_examples_name_the_reward_that_was_given(tmp_path: Path):
    faults = Faults(reward=lambda right, answer, rng: 1.0 if right and rng.random() < 0.7 else -1.0)
    run = write_made_up_run(tmp_path / "run", faults)
    (finding,) = (f for f in audit_run(run).findings if f.name == "rejected_answers")
    assert finding.examples
    assert all(example.text.endswith("and scored -1") for example in finding.examples)
    assert "rollouts that scored 0 or less" in finding.verdict


def test_the_number_that_makes_a_warning_is_in_the_verdict(tmp_path: Path):
    run = write_made_up_run(tmp_path / "run")

    def lose_a_loss(line: dict[str, Any]) -> None:
        line["loss"] = math.nan if line["iteration"] == 3 else 0.1

    change_lines(run / "metrics.jsonl", lose_a_loss)
    finding = find(run, "not_finite_steps")
    assert finding.level == "warning"
    assert finding.verdict.endswith("as not finite; losses or gradients that are no numbers: 1")


def test_rollouts_that_dynamic_sampling_replaced_have_no_signal(tmp_path: Path):
    run = write_made_up_run(tmp_path / "run")
    silent = sum(line["rows_without_signal"] for line in read_lines(run / "metrics.jsonl"))
    change_lines(run / "metrics.jsonl", lambda line: line.update(rollouts=line["rollouts"] + G))
    drops = [
        {"iteration": iteration, "no_spread": {f"{iteration}:made/x": list(range(G))}}
        for iteration in range(1, ITERATIONS + 1)
    ]
    write_lines(run / "drops.jsonl", drops)
    with_signal = ITERATIONS * P * G - silent
    verdict = find(run, "unused_rollouts").verdict
    assert verdict.startswith(f"0 of {with_signal} rollouts with signal were dropped")


def test_balanced_by_reward_rollouts_without_signal_may_be_dropped(tmp_path: Path):
    run = write_run(tmp_path / "run", iterations=6, tau=0.5, sign="reward")
    dropped = read_lines(run / "metrics.jsonl")[-1]["dropped_surplus"]
    assert dropped > 0
    write_lines(run / "drops.jsonl", [{"iteration": 6, "surplus": {"6:x": list(range(dropped))}}])
    verdict = find(run, "unused_rollouts").verdict
    assert verdict.startswith(f"{dropped} of 144 scored rollouts were dropped")


def test_a_rollout_of_an_import_that_is_in_no_plan_is_unused(tmp_path: Path):
    """Two of eight are masked; the one in a group with equal rewards had no signal anyway."""
    records = [
        sample_record(
            [5, 6 + group],
            [(POLICY, [20 + member, 2])],
            float(group == 1 or member == 1),
            advantage=0.0 if group == 1 else member - 0.5,
            weight=0.0 if (group, member) in ((0, 1), (1, 0)) else 1.0,
        )
        for group in range(4)
        for member in range(2)
    ]
    write_step(tmp_path / "theirs", records)
    write_config(tmp_path / "theirs" / "config.yaml", prompts=4, batch=8)
    import_run(tmp_path / "theirs", tmp_path / "run")
    finding = find(tmp_path / "run", "unused_rollouts")
    assert finding.verdict.startswith("1 of 6 rollouts with signal are in no plan")
    values = {each.name: each.value for each in finding.measurements}
    assert values["dropped, of rollouts with signal"] == pytest.approx(1 / 6)
    assert values["in no plan"] == 1
    assert "NeMo-RL left out" in finding.remedy


def mismatched_tokens(finding: AuditFinding) -> list[float]:
    return [m.value for m in finding.measurements if m.name.startswith("mean difference at ")]


def test_an_import_compares_the_sampler_with_the_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Its old_logprob is the sampler's: the sampler was compared with itself."""
    monkeypatch.setattr(sampler, "MIN_OCCURRENCES", 1)
    for rollout_id in range(3):  # -0.5 by the sampler, -0.4 by the trainer
        write_slime_dump(tmp_path / "run", rollout_id)
        write_rollout_dump(tmp_path / "run", rollout_id)
    import_run(tmp_path / "run", tmp_path / "out", tokenizer="embedded")
    finding = find(tmp_path / "out", "sampler_mismatch")
    assert finding.level == "alarm"
    assert mismatched_tokens(finding) == pytest.approx([0.1] * len(mismatched_tokens(finding)))
    assert mismatched_tokens(finding)
    assert all("trainer minus sampler +0.10 nats" in each.text for each in finding.examples)


def test_a_replay_does_not_compare_its_model_with_another_runs_sampler(tmp_path: Path):
    run = write_run(tmp_path / "run", iterations=9, tau=0.0, microscope="off")

    def set_mismatch(line: dict[str, Any]) -> None:
        line.update(sampler_mismatch=0.02 * line["iteration"], old_logprob=-0.5)

    change_lines(run / "metrics.jsonl", set_mismatch)
    assert find(run, "sampler_mismatch").level == "alarm"
    (run / "replay.json").write_text("{}", encoding="utf-8")
    finding = find(run, "sampler_mismatch")
    assert finding.level == "unsupported"
    assert finding.remedy == "audit the folder whose rollouts were replayed"


def test_the_virtual_updates_of_a_replay_are_not_judged(tmp_path: Path):
    """What the clip removes and the entropy are theirs; success is that of the rollouts."""
    folder = write_run(tmp_path / "run", iterations=9, tau=0.0, microscope="off")
    (folder / "evaluations.jsonl").unlink()  # a replay has none

    def judge(reward: float, entropy: float) -> tuple[AuditFinding, AuditFinding]:
        """Of a run whose last third has this reward and entropy; before, they are 0.5 and 1."""

        def change(line: dict[str, Any]) -> None:
            in_last_third = line["iteration"] > 6
            line.update(clipped_share=0.6, lr=0.5, entropy=entropy if in_last_third else 1.0)
            line.update(reward=reward if in_last_third else 0.5)

        change_lines(folder / "metrics.jsonl", change)
        run = AuditRun.read(folder)
        return learning_rate(run), entropy_collapse(run)

    rate, collapse = judge(reward=0.5, entropy=0.1)
    assert (rate.level, collapse.level) == ("alarm", "alarm")
    assert rate.remedy.startswith("lower update.lr, which was 0.5, by")
    assert "the clip removed 60.00 % of the gradients" in rate.verdict
    assert "entropy grew 5.0 times" in judge(reward=0.5, entropy=5.0)[0].verdict

    (folder / "replay.json").write_text("{}", encoding="utf-8")
    for entropy in (0.1, 5.0):
        rate, collapse = judge(reward=0.5, entropy=entropy)
        assert (rate.level, rate.verdict) == ("clear", "training mean reward from 0.5 to 0.5")
        assert len(rate.measurements) == 1
        assert rate.missing[-1] == "clipped_share and entropy of the run itself"
        assert collapse.level == "unsupported"
        assert collapse.remedy == "audit the folder whose rollouts were replayed"
    rate, _ = judge(reward=0.1, entropy=1.0)  # the rollouts themselves got worse
    assert (rate.level, rate.verdict) == ("alarm", "training mean reward from 0.5 to 0.1")
    assert rate.remedy.startswith("lower update.lr, by")


@pytest.mark.parametrize("unknown", [math.nan, None])
def test_tokens_that_the_sampler_did_not_score_are_left_out(tmp_path: Path, unknown: float | None):
    run = write_run(tmp_path / "run", iterations=9, tau=0.0, microscope="off")
    for file in (run / "rollouts").glob("*.jsonl"):
        lines = [json.loads(line) for line in file.open(encoding="utf-8")]
        for line in lines:
            line["sampled_logprobs"] = [unknown, *line["sampled_logprobs"][1:]]
        write_lines(file, lines)

    def set_mismatch(line: dict[str, Any]) -> None:
        line.update(sampler_mismatch=0.02 * line["iteration"], old_logprob=-0.5)

    change_lines(run / "metrics.jsonl", set_mismatch)
    finding = find(run, "sampler_mismatch")
    assert finding.examples
    assert not any("nan" in example.text for example in finding.examples)
    assert all(map(math.isfinite, mismatched_tokens(finding)))
