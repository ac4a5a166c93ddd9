"""Findings about rollouts that taught nothing: equal rewards, no signal, dropped, waiting."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from counterpoise.config import RunConfig
from counterpoise.report.audit.audited_run import AuditRun
from counterpoise.report.audit.needs import ROLLOUTS, needs
from counterpoise.report.audit.records import (
    AuditFinding,
    Example,
    Level,
    Measurement,
    grade_above,
    percent,
    unsupported,
    worst_level,
)
from counterpoise.report.audit.rollout_scan import IterationTally, PromptTally
from counterpoise.report.audit.run_files import thirds
from counterpoise.report.audit.thresholds import (
    DROPPED_SHARE,
    FIRST_MIXED_GROUPS,
    IDLE_SHARE,
    MIXED_GROUPS,
    WITHOUT_SIGNAL,
)
from counterpoise.statistics.prompt_intervals import share_estimate, wilson_interval
from counterpoise.store.logs import iterate_log

EQUAL_TITLE = "Rewards are all equal"
SIGNAL_TITLE = "Rollouts without signal"
UNUSED_TITLE = "Rollouts sampled and not used"


@needs(EQUAL_TITLE, ROLLOUTS)
def equal_rewards(run: AuditRun) -> AuditFinding:
    """Hardly any group has unequal rewards from the first iteration on: nothing can be learned."""
    tallies = run.rollout_totals.iterations
    groups, mixed = sum(t.groups for t in tallies), sum(t.mixed_groups for t in tallies)
    if not groups:
        return unsupported(EQUAL_TITLE, "groups in rollouts/: there are 0")
    # A run that learned or collapsed had signal once; a bad reward never has.
    first_third, _ = thirds(tallies)
    first_groups = sum(t.groups for t in first_third)
    first_share = sum(t.mixed_groups for t in first_third) / first_groups
    _, first_high = wilson_interval(first_share, first_groups)
    low, high = wilson_interval(mixed / groups, groups)
    is_equal = high < MIXED_GROUPS and first_high < FIRST_MIXED_GROUPS
    # No group at all is a fault of its own, from as many groups as make 20 % unlikely.
    has_none = not mixed and high < FIRST_MIXED_GROUPS
    level: Level = "alarm" if is_equal else "warning" if has_none else "clear"
    if level == "clear" and mixed / groups < MIXED_GROUPS and first_share < FIRST_MIXED_GROUPS:
        return unsupported(
            EQUAL_TITLE, f"more groups: so far {mixed:,} of {groups:,} have unequal rewards"
        )
    mean_reward = float(
        np.average([t.reward for t in tallies], weights=[t.rollouts for t in tallies])
    )
    right = [t.right for t in tallies if t.right is not None]
    measurements = [
        Measurement("groups with unequal rewards", mixed / groups, low, high, "share"),
        Measurement("mean reward", mean_reward),
    ]
    if right:
        measurements.append(
            Measurement("final answers right by our verifier", float(np.mean(right)), unit="share")
        )
    return AuditFinding(
        title=EQUAL_TITLE,
        level=level,
        verdict=f"{mixed:,} of {groups:,} groups have unequal rewards; the mean reward is "
        f"{mean_reward:.3g}",
        measurements=tuple(measurements),
        threshold=f"alarm if the interval of groups with unequal rewards ends below "
        f"{percent(MIXED_GROUPS)}, and that of the first third below "
        f"{percent(FIRST_MIXED_GROUPS)}; warning if no group has them, and the interval ends below "
        f"{percent(FIRST_MIXED_GROUPS)}",
        cost=f"{sum(t.without_signal for t in tallies):,} of "
        f"{run.rollout_totals.num_rollouts:,} rollouts had advantage 0",
        remedy="check verify.name and the columns it reads (poise train --dry-run shows a prompt); "
        "with a sound reward take easier or harder problems, or warm up (poise warmup)",
        examples=tuple(
            Example(tally.first_group, None, f"{tally.solved} of {tally.rollouts} scored above 0")
            for tally in _equally_rewarded(run)
        )
        if level != "clear"
        else (),
        explains=(
            "rollouts_without_signal", "rejected_answers", "accepted_answers",
            "unusable_prompts", "unused_rollouts", "reward_gap", "learning_rate",
        ),
    )  # fmt: skip


def _equally_rewarded(run: AuditRun, most: int = 3) -> list[PromptTally]:
    """Some prompts that were never or always solved."""
    tallies = run.rollout_totals.prompts.values()
    return [tally for tally in tallies if tally.solved in (0, tally.rollouts)][:most]


@needs(SIGNAL_TITLE, ROLLOUTS)
def rollouts_without_signal(run: AuditRun) -> AuditFinding:
    """Rollouts in groups whose rewards are equal."""
    tallies = run.rollout_totals.iterations
    rollouts = sum(t.rollouts for t in tallies)
    without = sum(t.without_signal for t in tallies)
    if not rollouts:
        return unsupported(SIGNAL_TITLE, "rollouts in rollouts/: there are 0")
    groups = sum(t.groups for t in tallies)
    # Rollouts of a group share their fate, so groups are counted.
    low, high = wilson_interval(without / rollouts, groups)
    seconds = run.total("sample_seconds") + run.total("verify_seconds")
    cost = f"{without:,} of {rollouts:,} rollouts were sampled and verified for nothing"
    if seconds:
        cost += f", about {seconds * without / rollouts:,.0f} of {seconds:,.0f} seconds of sampling"
    return AuditFinding(
        title=SIGNAL_TITLE,
        level=grade_above(low, *WITHOUT_SIGNAL),
        verdict=f"{percent(without / rollouts, 1)} of the rollouts are in groups with equal "
        f"rewards",
        measurements=(
            Measurement("rollouts without signal", without / rollouts, low, high, "share"),
            *(
                Measurement(f"in the {name} third", _share_without(third), unit="share")
                for name, third in zip(("first", "last"), thirds(tallies), strict=True)
            ),
        ),
        threshold=f"warning from {percent(WITHOUT_SIGNAL[0])}, alarm from "
        f"{percent(WITHOUT_SIGNAL[1])}, by "
        "the lower end of the interval over groups",
        cost=cost,
        remedy="sample.refills replaces such groups; leave out prompts that are never or always "
        "solved; raise sample.group_size or sample.temperature",
    )


def _share_without(tallies: Sequence[IterationTally]) -> float:
    rollouts = sum(t.rollouts for t in tallies)
    return sum(t.without_signal for t in tallies) / rollouts if rollouts else 0.0


def _group_size(run: AuditRun) -> float:
    """Mean rollouts of a group; that of the options where no rollouts are stored."""
    tallies = run.rollout_totals.iterations if run.rollout_files else []
    groups = sum(tally.groups for tally in tallies)
    if groups:
        return sum(tally.rollouts for tally in tallies) / groups
    return float((run.config or RunConfig()).sample.group_size)


def _read_drops(run: AuditRun) -> tuple[dict[str, int], list[Example]]:
    """(rollouts dropped by reason, some that were dropped as too old)."""
    drops = dict.fromkeys(("no_spread", "surplus", "aged"), 0)
    examples: list[Example] = []
    for record in iterate_log(run.path / "drops.jsonl", "drops"):
        for reason in drops:
            dropped_groups = record.get(reason) or {}
            drops[reason] += sum(len(indices) for indices in dropped_groups.values())
            if reason == "aged" and dropped_groups and len(examples) < 5:
                group, indices = next(iter(dropped_groups.items()))
                examples.append(
                    Example(group, indices[0], f"dropped in iteration {record['iteration']}")
                )
    return drops, examples


def _droppable_rollouts(run: AuditRun, replaced: int) -> tuple[str, float]:
    """(what kind of rollouts an update can use, how many of them there were)."""
    sampled = run.total("rollouts")
    balance = run.config.balance if run.config is not None else None
    # Balanced by reward, rows without signal wait and are dropped like any others.
    if balance is not None and balance.tau > 0 and balance.sign == "reward":
        return "scored rollouts", max(0.0, sampled - run.total("unscored") - replaced)
    left_out = run.total("rows_without_signal")
    return "rollouts with signal", max(0.0, sampled - left_out - replaced)


def _describe_missing_updates(run: AuditRun) -> str:
    """How many iterations had no batch, or took no step on it.

    Example:
        "2 of 12 iterations made no update"
    """
    steps = dict(run.metric("steps"))
    rows = run.metric("batch_rows")
    without = sum(not count or steps.get(iteration) == 0 for iteration, count in rows)
    return f"{without} of {len(rows)} iterations made no update"


def unused_rollouts(run: AuditRun) -> AuditFinding:
    """Rollouts with signal that were dropped, and iterations that made no update."""
    if not run.metric("batch_rows"):
        return unsupported(
            UNUSED_TITLE, "batch_rows in metrics.jsonl", remedy="run_folder of counterpoise.trl"
        )
    drops, examples = _read_drops(run)
    kind, droppable = _droppable_rollouts(run, drops["no_spread"])
    dropped = drops["surplus"] + drops["aged"]
    in_no_plan = 0
    if run.has_plans_without_buffer:
        planned = [t for t in run.rollout_totals.iterations if t.in_no_plan is not None]
        in_no_plan = max(0, sum(t.in_no_plan or 0 for t in planned) - dropped)
        droppable = float(sum(t.rollouts - t.without_signal for t in planned))
        dropped += in_no_plan
    fate = "are in no plan" if in_no_plan == dropped > 0 else "were dropped"
    has_balance = run.config is not None and run.config.balance.tau > 0
    updates = _describe_missing_updates(run)
    idle = [float(rows == 0) for _, rows in run.metric("batch_rows")]
    idle_estimate = share_estimate(idle)
    # Rollouts of a group are dropped together more often than not, so groups are counted.
    dropped_low, dropped_high = wilson_interval(
        min(1.0, dropped / max(1.0, droppable)), max(1.0, droppable) / _group_size(run)
    )
    waited = run.plan_totals.waited_rows if run.has_plans else 0
    waiting = [
        values[-1][1] if (values := run.metric(name)) else 0.0
        for name in ("buffer_positive", "buffer_negative")
    ]
    # Without RB, only iterations without signal make no update, which another finding reports.
    level = worst_level(
        (
            grade_above(dropped_low, *DROPPED_SHARE),
            grade_above(idle_estimate.low, *IDLE_SHARE) if has_balance else "clear",
        )
    )
    if level == "clear" and not droppable:
        return unsupported(UNUSED_TITLE, f"{kind}: there are 0, and {updates}")
    return AuditFinding(
        title=UNUSED_TITLE,
        level=level,
        verdict=f"{dropped:,} of {droppable:,.0f} {kind} {fate}, and {updates}",
        measurements=(
            Measurement(
                f"dropped, of {kind}",
                min(1.0, dropped / max(1.0, droppable)),
                dropped_low,
                dropped_high,
                "share",
            ),
            Measurement("dropped as surplus of their sign", drops["surplus"], unit="rollouts"),
            Measurement("dropped as too old", drops["aged"], unit="rollouts"),
            Measurement("replaced by dynamic sampling", drops["no_spread"], unit="rollouts"),
            *([Measurement("in no plan", in_no_plan, unit="rollouts")] if in_no_plan else []),
            Measurement("trained after waiting", waited, unit="rollouts"),
            Measurement("still waiting at the end", sum(waiting), unit="rollouts"),
            Measurement.of("iterations without a batch", idle_estimate, "share"),
        ),
        threshold=f"rollouts dropped: warning from {percent(DROPPED_SHARE[0])}, alarm from "
        f"{percent(DROPPED_SHARE[1])}; with RB, iterations without a batch: warning from "
        f"{percent(IDLE_SHARE[0])}, alarm from {percent(IDLE_SHARE[1])}",
        cost=f"{dropped:,} rollouts, {percent(dropped / max(1.0, run.total('rollouts')))} of all "
        "that were sampled",
        remedy=f"see what {run.source} left out of its batches: a mask, a filter or a limit"
        if in_no_plan
        else "lower balance.target or balance.tau, raise balance.max_age, or sample more prompts "
        "(sample.prompts)",
        examples=tuple(examples),
    )
