"""What findings need of a run's files, each with its remedy; without it they are unsupported.

    @needs(ECHO_TITLE, ROLLOUTS, RESPONSES)
    def question_echo(run: AuditRun) -> AuditFinding: ...

A need that only one finding has is told in that finding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps

from counterpoise.report.audit.audited_run import AuditRun
from counterpoise.report.audit.records import AuditFinding, unsupported

Finding = Callable[[AuditRun], AuditFinding]


@dataclass(frozen=True, slots=True)
class Need:
    """Something that several findings need."""

    missing: str  # what to call it where the run lacks it
    is_met: Callable[[AuditRun], object]
    remedy: str = ""


ROLLOUTS = Need("rollouts/", lambda run: run.rollout_files, "store.rollouts = true")
# The following read all rollouts, so ROLLOUTS stands before them.
RESPONSES = Need(
    "response in rollouts/",
    lambda run: run.rollout_totals.with_response,
    "import the run again with --tokenizer",
)
REFERENCES = Need(
    "answer in rollouts/",
    lambda run: run.rollout_totals.with_reference,
    "the trainer did not store references",
)
BINARY_REWARDS = Need(
    "rewards of two values: these are graded", lambda run: run.rollout_totals.is_binary
)


def needs(title: str, *required: Need) -> Callable[[Finding], Finding]:
    """Make the finding of that title unsupported where a run lacks one of its needs, in order."""

    def declare(finding: Finding) -> Finding:
        @wraps(finding)
        def finding_or_unsupported(run: AuditRun) -> AuditFinding:
            for need in required:
                if not need.is_met(run):
                    return unsupported(title, need.missing, remedy=need.remedy)
            return finding(run)

        return finding_or_unsupported

    return declare
