"""Two audits of one run: of the folder that we recorded, and of what the trainer itself wrote."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from counterpoise.report.audit.rank import audit_run
from counterpoise.report.audit.records import AuditFinding

# What an import of texts measures as the recorded folder does: verdict and all numbers.
SAME_FROM_TEXTS = (
    "duplicate_prompts", "equal_rewards", "inconsistent_rewards", "question_echo",
    "rollouts_without_signal", "unusable_prompts",
)  # fmt: skip
# What it measures in part, and what it lacks for the rest.
PARTLY_FROM_TEXTS: Mapping[str, tuple[str, ...]] = {
    "learning_rate": (
        "evaluations.jsonl with two evaluations", "clipped_share in metrics.jsonl",
        "entropy in metrics.jsonl",
    ),
    "rare_sign": ("plans.jsonl",),
    "length_drift": (
        "finished in rollouts/",
        "sampled tokens in rollouts/ (lengths are those of the texts, encoded again)",
    ),
}  # fmt: skip
# What it cannot measure at all, while the recorded folder can.
NOT_FROM_TEXTS: Mapping[str, tuple[str, ...]] = {
    "cut_groups": ("plans.jsonl",),
    "entropy_collapse": ("entropy in metrics.jsonl",),
    "not_finite_steps": ("steps and skipped_steps in metrics.jsonl",),
    "unused_rollouts": ("batch_rows in metrics.jsonl",),
}
NUMBERS = ("level", "verdict", "measurements", "consequence_of", "missing", "threshold")


def check_same_audit(
    recorded: Path,
    imported: Path,
    same: tuple[str, ...] = SAME_FROM_TEXTS,
    not_imported: Mapping[str, tuple[str, ...]] = NOT_FROM_TEXTS,
) -> tuple[dict[str, AuditFinding], dict[str, AuditFinding]]:
    """Assert that both audits say the same, or what is missing; returns their findings."""
    ours, theirs = (audit_run(folder) for folder in (recorded, imported))
    assert (ours.iterations, ours.rollouts) == (theirs.iterations, theirs.rollouts)
    recorded_findings, imported_findings = (
        {finding.name: finding for finding in report.findings} for report in (ours, theirs)
    )
    # Findings that both measure come in the same order.
    orders = [
        [finding.name for finding in report.findings if finding.name in same]
        for report in (ours, theirs)
    ]
    assert orders[0] == orders[1]
    for name in same:
        for field in NUMBERS:
            expected = getattr(recorded_findings[name], field)
            assert getattr(imported_findings[name], field) == expected, (name, field)
        assert not imported_findings[name].missing, name
    for name, missing in PARTLY_FROM_TEXTS.items():
        assert imported_findings[name].missing == missing, name
    check_partly_same(recorded_findings, imported_findings)
    for name, missing in not_imported.items():
        assert imported_findings[name].level == "unsupported", name
        assert imported_findings[name].missing == missing, name
        assert not recorded_findings[name].missing, name
    others = (
        recorded_findings.keys() - {*same, *PARTLY_FROM_TEXTS, *not_imported} - {"sampler_mismatch"}
    )
    for name in others:  # neither trainer writes what these need
        assert imported_findings[name].level == recorded_findings[name].level == "unsupported", name
        assert imported_findings[name].missing == recorded_findings[name].missing, name
    return recorded_findings, imported_findings


def check_partly_same(
    recorded: Mapping[str, AuditFinding], imported: Mapping[str, AuditFinding]
) -> None:
    """What an import measures of a finding is what the recorded folder measures."""
    rates = imported["learning_rate"].measurements
    assert rates
    assert set(rates) <= set(recorded["learning_rate"].measurements)
    # A text lacks the end token, and is encoded with other tokens than a model of random weights
    # had sampled: lengths are similar, not equal.
    sampled, encoded = (
        {
            measurement.name: measurement.value
            for measurement in findings["length_drift"].measurements
        }
        for findings in (recorded, imported)
    )
    assert encoded.keys() == sampled.keys() - {"cut off, last third"}
    for name in ("first third", "last third"):
        assert encoded[name] == pytest.approx(sampled[name], rel=0.5), name
