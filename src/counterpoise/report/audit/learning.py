"""Findings about the update: learning rate, entropy, steps that were not finite."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from counterpoise.report.audit.audited_run import AuditRun
from counterpoise.report.audit.records import (
    AUDIT_REPLAYED_RUN,
    NEEDS_UPDATE,
    AuditFinding,
    Level,
    Measurement,
    grade_above,
    percent,
    unsupported,
    worst_level,
)
from counterpoise.report.audit.run_files import gap_between, thirds
from counterpoise.report.audit.thresholds import (
    CLIP_SHARE,
    COLLAPSE,
    ENTROPY_BLOWUP,
    ENTROPY_RATIO,
    MIN_ITERATIONS,
    SKIPPED_SHARE,
)
from counterpoise.statistics.prompt_intervals import IntervalEstimate, mean_estimate
from counterpoise.statistics.two_samples import change_estimate, ratio_estimate

RATE_TITLE = "Learning rate too high"
ENTROPY_TITLE = "Entropy collapse"
FINITE_TITLE = "Steps that were not finite"


def training_series(run: AuditRun) -> list[float]:
    """Success of each iteration on its prompts, or the mean reward where rewards are graded."""
    return [value for _, value in run.metric("reward" if run.is_graded else "success")]


def training_change(run: AuditRun) -> IntervalEstimate | None:
    """Success of the last third of the iterations minus that of the first; None if too few."""
    series = training_series(run)
    return change_estimate(*thirds(series)) if len(series) >= MIN_ITERATIONS else None


def heldout_change(run: AuditRun) -> IntervalEstimate | None:
    """Held-out success at the end minus at the beginning; None without two evaluations."""
    if len(run.heldout) < 2:
        return None
    return gap_between(run.heldout[-1][1], run.heldout[0][1])


def is_rising(run: AuditRun) -> bool:
    """Whether held-out success rose beyond its interval; without evaluations, training success.

    Training prompts change from iteration to iteration, so held-out problems are the better judge.
    """
    change = heldout_change(run) or training_change(run)
    return change is not None and change.low > 0


@dataclass(frozen=True, slots=True)
class RateEvidence:
    """One sign of a learning rate that is too high: how bad it is, and what it cost."""

    level: Level
    reason: str  # "": too unremarkable for the verdict
    cost: str
    measurements: tuple[Measurement, ...]


def learning_rate(run: AuditRun) -> AuditFinding:
    """Success that falls, on held-out problems or in training, or a clip that takes over.

    A replay has only the success of the rollouts from the run. What the clip removed, entropy and
    the rate are those of virtual updates, each of which starts from the same weights.
    """
    evidence = _falling_success(run)
    missing: list[str] = []  # evidence that this run's files do not hold
    if len(run.heldout) < 2:
        missing.append("evaluations.jsonl with two evaluations")
    if run.is_replay:
        missing.append("clipped_share and entropy of the run itself")
    else:
        evidence += [*_clipped_gradients(run), *_growing_entropy(run)]
        if not run.metric("clipped_share"):
            missing.append("clipped_share in metrics.jsonl")
        if not _positive_entropy(run):
            missing.append("entropy in metrics.jsonl")
    if not evidence:
        return unsupported(
            RATE_TITLE, f"evaluations.jsonl or {MIN_ITERATIONS} iterations in metrics.jsonl"
        )
    rates = [] if run.is_replay else [value for _, value in run.metric("lr")]
    rate = f", which was {max(rates):g}" if rates else ""
    level = worst_level([each.level for each in evidence])
    decisive = [each for each in evidence if each.level == level != "clear"]
    return AuditFinding(
        title=RATE_TITLE,
        level=level,
        verdict="; ".join(each.reason for each in evidence if each.reason),
        measurements=tuple(number for each in evidence for number in each.measurements),
        threshold="alarm if held-out success falls beyond its interval, if training success halves "
        f"beyond its interval, from {percent(CLIP_SHARE[1])} clipped, or if entropy grows "
        f"{ENTROPY_BLOWUP:g} times; warning if training success falls or from "
        f"{percent(CLIP_SHARE[0])} clipped",
        cost="; ".join(each.cost for each in decisive),
        remedy=f"lower update.lr{rate}, by a factor of 3 to 10{run.foreign_options_hint}; fewer "
        "batch.steps or update.schedule = \"cosine\" help as well",
        explains=(
            "not_finite_steps", "entropy_collapse", "length_drift", "rollouts_without_signal",
            "unused_rollouts", "unusable_prompts", "rare_sign", "reward_gap",
        ),
        missing=tuple(missing),
    )  # fmt: skip


def _falling_success(run: AuditRun) -> list[RateEvidence]:
    """Evidence from held-out problems and from training prompts, as far as the run has it."""
    evidence = []

    def show(value: float, unit: str) -> str:
        return percent(value, 1) if unit == "share" else f"{value:.3g}"

    if heldout := heldout_change(run):
        word, unit = _headline(is_reward=run.is_graded and run.heldout_has_rewards)
        first, last = run.heldout[0][1], run.heldout[-1][1]
        evidence.append(
            RateEvidence(
                "alarm" if heldout.high < 0 else "clear",
                f"held-out {word} went from {show(first.mean, unit)} to {show(last.mean, unit)}",
                f"{run.total('rollouts'):,.0f} rollouts bought a policy that is worse on held-out "
                "problems than the one at the start",
                (
                    Measurement.of(f"held-out {word} before", first, unit),
                    Measurement.of(f"held-out {word} after", last, unit),
                    Measurement.of("held-out change", heldout, unit),
                ),
            )
        )
    if change := training_change(run):
        word, unit = _headline(is_reward=run.is_graded)
        before, after = (float(np.mean(third)) for third in thirds(training_series(run)))
        # A mean reward of 0 or less has no half to fall below.
        has_collapsed = before > 0 and after < COLLAPSE * before
        fall_level: Level = "alarm" if has_collapsed else "warning"
        evidence.append(
            RateEvidence(
                fall_level if change.high < 0 else "clear",
                f"training {word} from {show(before, unit)} to {show(after, unit)}",
                f"the rollouts of the last third have a lower {word} than those of the first",
                (Measurement.of(f"change of training {word}, first to last third", change, unit),),
            )
        )
    return evidence


def _clipped_gradients(run: AuditRun) -> list[RateEvidence]:
    """Evidence from the gradients that the clip removed; none where this was not measured."""
    clip_values = [value for _, value in run.metric("clipped_share")]
    if not clip_values:
        return []
    clipped = mean_estimate(clip_values)
    removed = f"{percent(clipped.mean, 2)} of the gradients"
    return [
        RateEvidence(
            grade_above(clipped.low, *CLIP_SHARE),
            f"the clip removed {removed}",
            f"{removed} were computed and thrown away",
            (Measurement.of("gradients removed by the clip", clipped, "share"),),
        )
    ]


def _growing_entropy(run: AuditRun) -> list[RateEvidence]:
    """Evidence from the entropy; none where there are too few iterations."""
    entropy = [value for _, value in _positive_entropy(run)]
    if len(entropy) < MIN_ITERATIONS:
        return []
    ratio = ratio_estimate(*thirds(entropy))
    has_grown = ratio.low >= ENTROPY_BLOWUP
    return [
        RateEvidence(
            "alarm" if has_grown else "clear",
            f"entropy grew {ratio.mean:.1f} times" if has_grown else "",
            "responses of the last third are close to random",
            (Measurement.of("entropy, last third over first", ratio),),
        )
    ]


def _positive_entropy(run: AuditRun) -> list[tuple[int, float]]:
    return [(iteration, value) for iteration, value in run.metric("entropy") if value > 0]


def _headline(*, is_reward: bool) -> tuple[str, str]:
    """(what success is measured by, the unit of its measurements)."""
    return ("mean reward", "") if is_reward else ("success", "share")


def entropy_collapse(run: AuditRun) -> AuditFinding:
    """Entropy of the last third far below that of the first, while success does not rise."""
    if run.is_replay:
        return unsupported(
            ENTROPY_TITLE,
            "the run itself, as a replay measures entropy under the model it was given",
            remedy=AUDIT_REPLAYED_RUN,
        )
    points = _positive_entropy(run)
    if not points and run.took_no_step:
        return unsupported(ENTROPY_TITLE, NEEDS_UPDATE)
    if not points:
        return unsupported(
            ENTROPY_TITLE, "entropy in metrics.jsonl", remedy="train with run_folder, or natively"
        )
    values = [value for _, value in points]
    if len(values) < MIN_ITERATIONS:
        return unsupported(
            ENTROPY_TITLE, f"{MIN_ITERATIONS} updates for a trend: there are {len(values)}"
        )
    ratio = ratio_estimate(*thirds(values))
    rising = is_rising(run)
    level: Level = "clear"
    if ratio.high < ENTROPY_RATIO[1]:
        level = "warning" if rising else "alarm"
    elif ratio.high < ENTROPY_RATIO[0] and not rising:
        level = "warning"
    onset = _onset(points)
    measurements = [
        Measurement.of("entropy, last third over first", ratio),
        Measurement("entropy of the first update", values[0], unit="nats"),
        Measurement("entropy of the last update", values[-1], unit="nats"),
    ]
    if onset is not None:
        measurements.append(Measurement("stays below half of its start from iteration", onset))
    mixed = [value for _, value in run.metric("mixed_groups")]
    lost = float(np.mean(thirds(mixed)[1]) - np.mean(thirds(mixed)[0])) if len(mixed) > 2 else 0.0
    when = f", below half from iteration {onset}" if onset is not None else ""
    return AuditFinding(
        title=ENTROPY_TITLE,
        level=level,
        verdict=f"entropy went from {values[0]:.3g} to {values[-1]:.3g} nats{when}",
        measurements=tuple(measurements),
        threshold=f"warning if the interval of the ratio ends below {ENTROPY_RATIO[0]:g}, alarm "
        f"below {ENTROPY_RATIO[1]:g}, one level less while success rises",
        cost=f"the share of groups with unequal rewards changed by {100 * lost:+.0f} points: a "
        "policy without entropy samples the same response again",
        remedy='update.entropy_bonus, a larger update.clip_high, credit.rule = "clip_cov" or '
        '"kl_cov", a lower update.lr, or stop at the onset',
        explains=("rollouts_without_signal",),
    )


def _onset(points: list[tuple[int, float]]) -> int | None:
    """The iteration from which a running median of three stays below half of the start."""
    values = [value for _, value in points]
    half = 0.5 * float(np.mean(thirds(values)[0][:3]))
    onset = None
    for position in range(len(points)):
        window = values[max(0, position - 1) : position + 2]
        if np.median(window) >= half:
            onset = None
        elif onset is None:
            onset = points[position][0]
    return onset


def not_finite_steps(run: AuditRun) -> AuditFinding:
    """Optimizer steps that were skipped because loss or gradient was not finite."""
    steps_taken = run.metric("steps")
    if not steps_taken or not run.metric("skipped_steps"):
        return unsupported(
            FINITE_TITLE, "steps and skipped_steps in metrics.jsonl", remedy="train with run_folder"
        )
    skipped = sum(map(_skipped_as_not_finite, run.metrics))
    attempted = sum(count for _, count in steps_taken) + run.total("skipped_steps")
    # TRL and verl take a step whose loss or gradient they log as no number.
    taken = max(0.0, run.total("not_finite_steps") - skipped)
    not_numbers = taken + sum(
        isinstance(record.get(name), float) and not math.isfinite(record[name])
        for record in run.metrics
        for name in ("loss", "grad_norm")
    )
    share = skipped / attempted if attempted else 0.0
    skipped_in = [record["iteration"] for record in run.metrics if _skipped_as_not_finite(record)]
    gradients = [value for _, value in run.metric("grad_norm")]
    level = grade_above(share, *SKIPPED_SHARE)
    return AuditFinding(
        title=FINITE_TITLE,
        level=worst_level((level, "warning" if not_numbers else "clear")),
        verdict=f"{skipped:,.0f} of {attempted:,.0f} optimizer steps were skipped as not finite"
        + (f"; losses or gradients that are no numbers: {not_numbers:,.0f}" if not_numbers else ""),
        measurements=(
            Measurement("steps skipped as not finite", share, unit="share"),
            Measurement("losses or gradients that are no numbers", not_numbers),
            Measurement("largest gradient norm", max(gradients, default=0.0)),
            Measurement("first iteration with a skipped step", skipped_in[0] if skipped_in else 0),
        ),
        threshold=f"warning for any, alarm from {percent(SKIPPED_SHARE[1])} of the steps",
        cost=f"{skipped:,.0f} optimizer steps and their rollouts",
        remedy='lower update.lr or update.max_grad_norm; model.dtype = "float32" or "bfloat16" '
        "instead of float16; look at the rollouts of these iterations (poise look)",
    )


def _skipped_as_not_finite(record: Mapping[str, Any]) -> int:
    """Steps of an iteration that were skipped because loss or gradient was not finite."""
    skipped = int(record.get("skipped_steps") or 0)
    if (not_finite := record.get("not_finite_steps")) is not None:
        return min(skipped, int(not_finite))
    # Release 0.3.0 did not say why a step was skipped. It is known where all rows of the iteration
    # had signal, or some had and no step was taken at all; elsewhere steps may have had none.
    has_signal = record.get("positive_share", 0.0) is not None
    is_known = not record.get("rows_without_signal") or not record.get("steps")
    return skipped if has_signal and is_known else 0
