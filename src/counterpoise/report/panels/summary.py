"""Panel at the top of a run's page: what was trained or replayed, its success, and its cost."""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from typing import Any

from counterpoise.config.evaluation_settings import EvaluationSetting, group_by_setting
from counterpoise.errors import format_count, format_ranges
from counterpoise.plugins import display_name, is_plugin
from counterpoise.report.charts.render import render
from counterpoise.report.panels.buffer import count_fates, used_with_signal_totals
from counterpoise.report.panels.panel import Panel
from counterpoise.report.run_data import RunData
from counterpoise.store.evaluation_records import reward_estimate
from counterpoise.store.replays import ReplayDescription, describe_replay

Fact = tuple[str, str]  # (number as text, what it counts)
# Fields of an evaluation that the template uses.
HELDOUT_FIELDS = ("iteration", "mean", "low", "high", "prompts", "samples")


def panel(run: RunData) -> Panel:
    evaluations = [headline_record(each) if run.is_graded else each for each in run.heldout]
    heldout_records = [
        {field_name: record[field_name] for field_name in HELDOUT_FIELDS} for record in evaluations
    ]
    ordered_evaluations = sorted(heldout_records, key=itemgetter("iteration"))
    reward_name = run.config.verify.name
    replay = describe_replay(run.path)
    return Panel(
        "",
        "",
        render(
            "summary.html",
            config=run.config,
            composer=display_name(run.config.batch.composer),
            reward=display_name(reward_name) if is_plugin(reward_name) else "",
            last=run.last_iteration,
            replay=replay,
            virtual_updates=_count_virtual_updates(run, replay) if replay else "",
            setting=_describe_setting(run),
            before=ordered_evaluations[0] if ordered_evaluations else None,
            after=ordered_evaluations[-1] if len(ordered_evaluations) > 1 else None,
            graded=run.is_graded,
            facts=list_facts(run, sampled="replayed" if replay else "sampled")
            if run.metrics
            else [],
        ),
        assets=("summary.css",),
    )


def headline_record(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """An evaluation whose mean, low and high are those of the reward, for graded runs.

    Bounds that are not known are None.
    """
    reward = reward_estimate(evaluation)
    bounds = (reward.low, reward.high) if reward.is_bounded else (None, None)
    return {**evaluation, "mean": reward.mean, "low": bounds[0], "high": bounds[1]}


def _count_virtual_updates(run: RunData, replay: ReplayDescription) -> str:
    """How many virtual updates a replay made, and of which iterations of its source."""
    numbers = [record["iteration"] for record in run.metrics]
    count = format_count(sum(record["steps"] > 0 for record in run.metrics), "virtual update")
    if not numbers:
        return f"{count} yet"
    planned = replay.iterations or numbers
    progress = f"; {len(numbers)} of {len(planned)}" if len(planned) > len(numbers) else ""
    noun = "iteration" if len(numbers) == 1 else "iterations"
    return f"{count} ({noun} {format_ranges(numbers)}{progress})"


def _describe_setting(run: RunData) -> str:
    """The sampling setting of the held-out evaluations that are shown."""
    sample_config = run.config.sample
    training_setting = EvaluationSetting(sample_config.temperature, sample_config.top_p)
    # Evaluations without a stored setting were sampled as in training.
    setting = next(iter(group_by_setting(run.evaluations)), None) or training_setting
    if setting == training_setting:
        return "the training temperature"
    return f"temperature {setting.temperature:g} and top-p {setting.top_p:g}"


def list_facts(run: RunData, sampled: str = "sampled") -> list[Fact]:
    """The numbers below the summary; `sampled` says what the run did to get its rollouts."""
    is_balanced = run.config.balance.tau > 0
    final_fates = count_fates(run)[-1]
    sampled_rollouts = sum(record["rollouts"] for record in run.metrics)
    update_count = sum(record["steps"] > 0 for record in run.metrics)
    skipped_steps = sum(record["skipped_steps"] for record in run.metrics)
    without_signal = sum(record["rows_without_signal"] for record in run.metrics)
    used_totals = used_with_signal_totals(run)
    optimizer_steps = sum(record["steps"] for record in run.metrics)
    return [
        (_with_thousands(sampled_rollouts), f"rollouts {sampled}"),
        *([(_with_thousands(used_totals[-1]), "used in updates")] if used_totals else []),
        (_with_thousands(without_signal), "without signal"),
        *(
            [
                (_with_thousands(final_fates["surplus"]), "dropped as surplus"),
                (_with_thousands(final_fates["aged"]), "dropped as too old"),
                (_with_thousands(final_fates["waiting"]), "still waiting"),
            ]
            if is_balanced
            else []
        ),
        (
            _with_thousands(optimizer_steps),
            "optimizer steps" + (f", {skipped_steps} skipped" if skipped_steps else ""),
        ),
        (f"{update_count}\u2009/\u2009{len(run.metrics)}", "iterations with an update"),
        (
            _with_thousands(sum(record["rollout_tokens"] for record in run.metrics)),
            f"tokens {sampled}",
        ),
        (format_duration(wall_seconds(run)), "wall time"),
    ]


def wall_seconds(run: RunData) -> float:
    """Seconds of all iterations and evaluations, without loading and the breaks of resumed runs."""
    iteration_seconds = sum(record.get("iteration_seconds", 0.0) for record in run.metrics)
    return float(
        iteration_seconds
        + sum(evaluation.get("evaluate_seconds", 0.0) for evaluation in run.evaluations)
    )


def format_duration(seconds: float) -> str:
    """Write a duration in its two largest units, rounded to seconds.

    Example:
        >>> format_duration(8.2), format_duration(75), format_duration(9000)
        ('8 s', '1 min 15 s', '2 h 30 min')
    """
    whole_seconds = round(seconds)
    if whole_seconds < 60:
        return f"{whole_seconds} s"
    if whole_seconds < 3600:
        return f"{whole_seconds // 60} min {whole_seconds % 60} s"
    return f"{whole_seconds // 3600} h {whole_seconds % 3600 // 60} min"


def _with_thousands(number: int) -> str:
    return f"{number:,}"
