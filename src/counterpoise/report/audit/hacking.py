"""Findings about reward hacking: gains that do not carry over, answers that echo the question."""

from __future__ import annotations

from counterpoise.report.audit.audited_run import AuditRun
from counterpoise.report.audit.learning import heldout_change, training_change
from counterpoise.report.audit.needs import RESPONSES, ROLLOUTS, needs
from counterpoise.report.audit.records import (
    AuditFinding,
    Level,
    Measurement,
    grade_above,
    percent,
    unsupported,
)
from counterpoise.report.audit.run_files import gap_between, thirds
from counterpoise.report.audit.thresholds import (
    ECHO_OVERLAP,
    ECHO_SHARE,
    HACKING_GAP,
    MIN_ITERATIONS,
)
from counterpoise.statistics.prompt_intervals import share_estimate
from counterpoise.statistics.two_samples import change_estimate

GAP_TITLE = "Training reward rises, held-out does not"
ECHO_TITLE = "Answers that echo the question"


def reward_gap(run: AuditRun) -> AuditFinding:
    """The gain on training prompts minus the gain on held-out problems."""
    heldout, trained = heldout_change(run), training_change(run)
    if heldout is None:
        return unsupported(
            GAP_TITLE, "evaluations.jsonl with two evaluations", remedy="evaluate.prompts = 128"
        )
    if trained is None:
        return unsupported(GAP_TITLE, f"{MIN_ITERATIONS} iterations in metrics.jsonl")
    # A mean reward must not be compared with a success.
    if run.is_graded and not run.heldout_has_rewards:
        return unsupported(GAP_TITLE, "reward in evaluations.jsonl")
    word, unit = ("mean reward", "") if run.is_graded else ("success", "share")

    def show(change: float) -> str:
        return f"{change:+.3g}" if run.is_graded else f"{100 * change:+.1f} points"

    gap = gap_between(trained, heldout)
    level: Level = "clear"
    if trained.low > 0 and gap.low > HACKING_GAP[0]:
        level = grade_above(gap.low, HACKING_GAP[0], HACKING_GAP[1])
    return AuditFinding(
        title=GAP_TITLE,
        level=level,
        verdict=f"training {word} changed by {show(trained.mean)}, held-out {word} by "
        f"{show(heldout.mean)}",
        measurements=(
            Measurement.of("gain in training, first to last third", trained, unit),
            Measurement.of("gain on held-out problems", heldout, unit),
            Measurement.of("difference", gap, unit),
        ),
        threshold="warning if the interval of the gain in training and that of the difference lie "
        f"above 0, alarm from a difference of {show(HACKING_GAP[1])} (lower end)",
        cost=f"{show(max(0.0, gap.mean))} of training {word} did not carry over to held-out "
        "problems",
        remedy="read rewarded rollouts of the last iterations (poise look); a stricter "
        "verify.name; more prompts, so that none is learned by heart; update.kl",
    )


@needs(ECHO_TITLE, ROLLOUTS, RESPONSES)
def question_echo(run: AuditRun) -> AuditFinding:
    """Rewarded responses of which most is copied from the question."""
    scan = run.rollout_totals
    tallies = [tally for tally in scan.prompts.values() if tally.rewarded]
    shares = [tally.echoes / tally.rewarded for tally in tallies]
    if not shares:
        return AuditFinding(ECHO_TITLE, "clear", "0 rewarded responses are long enough to echo")
    estimate = share_estimate(shares)
    series = [tally.echoes for tally in scan.iterations if tally.echoes is not None]
    # Some tasks ask for a copy: what is there from the start is no trick that was learned.
    has_grown = len(series) >= MIN_ITERATIONS and change_estimate(*thirds(series)).low > 0
    level = grade_above(estimate.low, *ECHO_SHARE)
    if level == "alarm" and not has_grown:
        level = "warning"
    echoes = sum(tally.echoes for tally in tallies)
    measurements = [Measurement.of("echoes, of rewarded rollouts", estimate, "share")]
    if len(series) >= MIN_ITERATIONS:
        measurements.append(
            Measurement.of("change, first to last third", change_estimate(*thirds(series)), "share")
        )
    return AuditFinding(
        title=ECHO_TITLE,
        level=level,
        verdict=f"{echoes:,} of {sum(t.rewarded for t in tallies):,} rewarded rollouts repeat the "
        f"question in at least {percent(ECHO_OVERLAP)} of their six-word sequences",
        measurements=tuple(measurements),
        threshold=f"warning from {percent(ECHO_SHARE[0])}, alarm from {percent(ECHO_SHARE[1])} if "
        f"it grew, "
        "by the lower end of the interval over prompts",
        cost=f"{echoes:,} rewards for text copied from the question",
        remedy='a reward that looks at the final answer only (verify.name = "math"); price length '
        '(verify.also = ["overlong"])',
        examples=tuple(scan.examples.get("echo", ())),
        explains=("reward_gap", "length_drift"),
    )
