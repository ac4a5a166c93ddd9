"""Findings about the reward function, by comparing it with our own math verifier.

They are suspicions: a task may have rules that our verifier does not know. Rollouts of one prompt
are not independent, so intervals are over prompts.
"""

from __future__ import annotations

from counterpoise.report.audit.audited_run import AuditRun
from counterpoise.report.audit.needs import BINARY_REWARDS, REFERENCES, RESPONSES, ROLLOUTS, needs
from counterpoise.report.audit.records import (
    AuditFinding,
    Measurement,
    grade_above,
    percent,
    unsupported,
    worst_level,
)
from counterpoise.report.audit.thresholds import (
    ACCEPTED_SHARE,
    INCONSISTENT_SHARE,
    REJECTED_SHARE,
    TIMEOUT_SHARE,
    UNBOXED_SHARE,
)
from counterpoise.statistics.prompt_intervals import IntervalEstimate, share_estimate

INCONSISTENT_TITLE = "Equal answers, different rewards"
REJECTED_TITLE = "Right answers that scored 0"
ACCEPTED_TITLE = "Wrong answers that scored 1"
TIMEOUT_TITLE = "Verifier timeouts and crashes"
SHOW_REMEDY = "run poise verify-check on your data; compare the examples by hand"


def _over_prompts(counts: list[tuple[int, int]]) -> IntervalEstimate:
    """The pooled share of (matching, all) counts, with an interval over prompts."""
    matching, total = (sum(pair[side] for pair in counts) for side in (0, 1))
    if not total:
        return IntervalEstimate(0.0, 0.0, 1.0)  # 0 of 0: nothing is known
    estimate = share_estimate([count / size for count, size in counts if size])
    pooled = matching / total
    # The interval belongs to the mean over prompts: keep the pooled share inside.
    return IntervalEstimate(pooled, min(estimate.low, pooled), max(estimate.high, pooled))


@needs(INCONSISTENT_TITLE, ROLLOUTS, RESPONSES)
def inconsistent_rewards(run: AuditRun) -> AuditFinding:
    """The same answer to the same prompt with different rewards: the reward is partly chance."""
    tallies = run.rollout_totals.prompts.values()
    estimate = _over_prompts([(t.inconsistent, t.repeats) for t in tallies])
    inconsistent, repeats = sum(t.inconsistent for t in tallies), sum(t.repeats for t in tallies)
    if not repeats:
        return unsupported(INCONSISTENT_TITLE, "answers that repeat another: there are 0")
    return AuditFinding(
        title=INCONSISTENT_TITLE,
        level=grade_above(estimate.low, *INCONSISTENT_SHARE),
        verdict=f"{inconsistent:,} of {repeats:,} repeated answers got another reward than the "
        "first",
        measurements=(Measurement.of("repeats with another reward", estimate, "share"),),
        threshold=f"warning from {percent(INCONSISTENT_SHARE[0], 1)}, alarm from "
        f"{percent(INCONSISTENT_SHARE[1])} of repeats, by the lower end of the interval over "
        f"prompts",
        cost=f"{inconsistent:,} rollouts pushed the same answer both ways",
        remedy="the reward of a response may depend only on it and its problem: look for "
        "randomness, a time limit, a judge model or a cache in verify.name",
        examples=tuple(run.rollout_totals.examples.get("inconsistent", ())),
        explains=("rejected_answers", "accepted_answers"),
    )


@needs(REJECTED_TITLE, ROLLOUTS, REFERENCES)
def rejected_answers(run: AuditRun) -> AuditFinding:
    """Final answers that equal the reference by our verifier and scored 0."""
    tallies = run.rollout_totals.prompts.values()
    boxed = _over_prompts([(t.rejected, t.zero_scored) for t in tallies])
    unboxed = _over_prompts([(t.unboxed, t.zero_scored) for t in tallies])
    rejected, zeros = sum(t.rejected for t in tallies), sum(t.zero_scored for t in tallies)
    examples = run.rollout_totals.examples
    return AuditFinding(
        title=REJECTED_TITLE,
        level=worst_level(
            (
                grade_above(boxed.low, *REJECTED_SHARE),
                grade_above(unboxed.low, UNBOXED_SHARE),
            )
        ),
        verdict=f"{rejected:,} of {zeros:,} rollouts that scored 0 or less have the right answer "
        "in a box",
        measurements=(
            Measurement.of("right in a box, of those that scored 0 or less", boxed, "share"),
            Measurement.of("right without a box", unboxed, "share"),
            Measurement("comparisons left undecided", run.rollout_totals.undecided_pairs),
        ),
        threshold=f"warning from {percent(REJECTED_SHARE[0], 1)}, alarm from "
        f"{percent(REJECTED_SHARE[1])} "
        f"(boxed), warning from {percent(UNBOXED_SHARE)} (not boxed), by the lower end of the "
        f"interval "
        "over prompts",
        cost=f"{rejected:,} right rollouts were pushed down or lost their signal",
        remedy=f'verify.name = "math" compares values; {SHOW_REMEDY}',
        examples=tuple(examples.get("rejected") or examples.get("unboxed") or ()),
        explains=("unusable_prompts", "rollouts_without_signal"),
    )


# A graded reward of 1 or more need not mean "right".
@needs(ACCEPTED_TITLE, ROLLOUTS, REFERENCES, BINARY_REWARDS)
def accepted_answers(run: AuditRun) -> AuditFinding:
    """Answers that differ from a numeric reference and scored 1."""
    counts = [(t.accepted, t.paid) for t in run.rollout_totals.prompts.values()]
    estimate = _over_prompts(counts)
    accepted, paid = sum(pair[0] for pair in counts), sum(pair[1] for pair in counts)
    if not paid:
        return unsupported(ACCEPTED_TITLE, "rollouts that scored 1: there are 0")
    return AuditFinding(
        title=ACCEPTED_TITLE,
        level=grade_above(estimate.low, *ACCEPTED_SHARE),
        verdict=f"{accepted:,} of {paid:,} rollouts that scored 1 answer another number than the "
        "reference",
        measurements=(Measurement.of("wrong, of those that scored 1", estimate, "share"),),
        threshold=f"warning from {percent(ACCEPTED_SHARE[0])}, alarm from "
        f"{percent(ACCEPTED_SHARE[1])}, by "
        "the lower end of the interval over prompts; numeric references only",
        cost=f"{accepted:,} wrong rollouts were pushed up",
        remedy=SHOW_REMEDY,
        examples=tuple(run.rollout_totals.examples.get("accepted", ())),
        explains=("reward_gap",),
    )


def verifier_timeouts(run: AuditRun) -> AuditFinding:
    """Comparisons that hung or killed their worker, which score 0."""
    if not run.metric("verifier_timeouts"):
        return unsupported(
            TIMEOUT_TITLE, "verifier_timeouts in metrics.jsonl", remedy='verify.name = "math"'
        )
    timeouts, crashes = run.total("verifier_timeouts"), run.total("verifier_crashes")
    rollouts = max(1.0, run.total("rollouts"))
    share = (timeouts + crashes) / rollouts
    return AuditFinding(
        title=TIMEOUT_TITLE,
        level=grade_above(share, *TIMEOUT_SHARE),
        verdict=f"{timeouts:,.0f} comparisons hung and {crashes:,.0f} crashed, for "
        f"{rollouts:,.0f} rollouts",
        measurements=(Measurement("timeouts and crashes per rollout", share, unit="share"),),
        threshold=f"warning from {percent(TIMEOUT_SHARE[0], 1)}, alarm from "
        f"{percent(TIMEOUT_SHARE[1])}",
        cost=f"{timeouts + crashes:,.0f} rollouts scored 0 without being compared",
        remedy="raise verify.timeout_seconds or verify.workers; simplify references",
    )
