"""Findings about response lengths: drift, cut-offs, and rewards that pay for length."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from counterpoise.report.audit.audited_run import AuditRun
from counterpoise.report.audit.learning import is_rising
from counterpoise.report.audit.needs import ROLLOUTS, needs
from counterpoise.report.audit.records import (
    AuditFinding,
    Level,
    Measurement,
    grade_above,
    percent,
    unsupported,
    worst_level,
)
from counterpoise.report.audit.rollout_scan import IterationTally
from counterpoise.report.audit.run_files import thirds
from counterpoise.report.audit.thresholds import (
    LENGTH_FALL,
    LENGTH_RATIO,
    LENGTH_REWARD_CORRELATION,
    MIN_ITERATIONS,
    TRUNCATED_SHARE,
)
from counterpoise.statistics.prompt_intervals import (
    IntervalEstimate,
    mean_estimate,
    wilson_interval,
)
from counterpoise.statistics.two_samples import ratio_estimate

TITLE = "Length drift and cut-offs"
SAMPLED_TOKENS = "sampled tokens in rollouts/ (lengths are those of the texts, encoded again)"
CUT_WHILE_GROWING = 0.10  # growing length is an alarm if this share of responses is cut


@needs(TITLE, ROLLOUTS)
def length_drift(run: AuditRun) -> AuditFinding:
    """Responses that grow or shrink, or that are cut at the limit."""
    tallies = run.rollout_totals.iterations
    if not tallies:
        return unsupported(TITLE, "rollouts with a reward in rollouts/")
    unit = run.rollout_totals.length_unit
    lengths = [max(tally.length, 1e-6) for tally in tallies]
    cuts = [tally for tally in tallies if tally.truncated is not None]
    correlations = [t.length_reward for t in tallies if t.length_reward is not None]
    measurements: list[Measurement] = []
    levels: list[Level] = []
    paid_for = mean_estimate(correlations).low if len(correlations) >= 3 else -1.0
    late_cut = _share_cut(thirds(cuts)[1]) if cuts else None
    if late_cut is not None:
        measurements.append(Measurement.of("cut off, last third", late_cut, "share"))
        levels.append(grade_above(late_cut.low, *TRUNCATED_SHARE))
    if len(lengths) >= MIN_ITERATIONS:
        ratio = ratio_estimate(*thirds(lengths))
        measurements.insert(0, Measurement.of("length, last third over first", ratio))
        is_cut = late_cut is not None and late_cut.low >= CUT_WHILE_GROWING
        is_paid = paid_for >= LENGTH_REWARD_CORRELATION[0]
        if ratio.low >= LENGTH_RATIO:
            levels.append("alarm" if is_cut or is_paid or not is_rising(run) else "warning")
        elif ratio.high <= LENGTH_FALL:
            levels.append("warning" if is_rising(run) else "alarm")
    if correlations:
        levels.append(grade_above(paid_for, LENGTH_REWARD_CORRELATION[1]))
        measurements.append(
            Measurement.of(
                "correlation of length and reward in a group", mean_estimate(correlations)
            )
        )
    first, last = (float(np.mean(third)) for third in thirds(lengths))
    measurements += [
        Measurement("first third", first, unit=unit),
        Measurement("last third", last, unit=unit),
    ]
    cut_text = f"; {percent(late_cut.mean, 1)} of the last ones were cut" if late_cut else ""
    extra = sum(lengths) - len(lengths) * first
    return AuditFinding(
        title=TITLE,
        level=worst_level(levels),
        verdict=f"responses went from {first:.0f} to {last:.0f} {unit}{cut_text}",
        measurements=tuple(measurements),
        threshold=f"growth by a factor of {LENGTH_RATIO:g} (lower end) is an alarm if success does "
        f"not rise, {percent(CUT_WHILE_GROWING)} are cut, or length and reward correlate by "
        f"{LENGTH_REWARD_CORRELATION[0]:g}, else a warning; a fall to {LENGTH_FALL:g} of the first "
        "third (upper end) is an alarm if success does not rise, else a warning; whatever the "
        f"trend, alarm from {percent(TRUNCATED_SHARE[1])} cut, warning from "
        f"{percent(TRUNCATED_SHARE[0])} cut or a correlation of {LENGTH_REWARD_CORRELATION[1]:g}",
        cost=f"{percent(max(0.0, extra) / max(1e-6, sum(lengths)))} of all sampled {unit} are "
        f"growth "
        "since the first third; a cut response usually scores 0 whatever it knew",
        remedy='verify.also = ["overlong"] prices length; update.mask_truncated leaves cut '
        'responses out; sample.max_new_tokens; update.aggregate = "constant" or '
        '"token_mean" does not favour long wrong responses',
        missing=tuple(
            name
            for name, is_stored in (
                ("finished in rollouts/", bool(cuts)),
                (SAMPLED_TOKENS, run.has_sampled_tokens),
            )
            if not is_stored
        ),
    )


def _share_cut(tallies: Sequence[IterationTally]) -> IntervalEstimate:
    """The share of cut responses; rollouts of a group are alike, so groups are counted."""
    rollouts = sum(tally.rollouts for tally in tallies)
    share = sum((tally.truncated or 0.0) * tally.rollouts for tally in tallies) / rollouts
    return IntervalEstimate(share, *wilson_interval(share, sum(tally.groups for tally in tallies)))
