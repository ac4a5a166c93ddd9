"""Panel at the top of a run's page: what was trained, its held-out success, and its cost."""

from __future__ import annotations

from counterpoise.plugins import display_name, is_plugin
from counterpoise.report.charts.render import render
from counterpoise.report.panels.buffer import count_fates
from counterpoise.report.panels.panel import Panel
from counterpoise.report.run_data import RunData

Fact = tuple[str, str]  # value, what it counts
HELD_OUT = ("iteration", "mean", "low", "high", "prompts", "samples")  # fields that are shown


def panel(run: RunData) -> Panel:
    heldout = [{name: record[name] for name in HELD_OUT} for record in run.heldout]
    ordered = sorted(heldout, key=lambda e: e["iteration"])
    return Panel(
        "",
        "",
        render(
            "summary.html",
            config=run.config,
            composer=display_name(run.config.batch.composer),
            reward=display_name(run.config.verify.name)
            if is_plugin(run.config.verify.name)
            else "",
            last=run.last_iteration,
            before=ordered[0] if ordered else None,
            after=ordered[-1] if len(ordered) > 1 else None,
            facts=list_facts(run) if run.metrics else [],
        ),
        assets=("summary.css",),
    )


def list_facts(run: RunData) -> list[Fact]:
    balanced = run.config.balance.tau > 0
    final_fates = count_fates(run)[-1]
    sampled = sum(record["rollouts"] for record in run.metrics)
    updates = sum(record["steps"] > 0 for record in run.metrics)
    skipped = sum(record["skipped_steps"] for record in run.metrics)
    without = sum(record["rows_without_signal"] for record in run.metrics)
    # Without reward balance, rows without signal are part of the batches but teach nothing.
    used = final_fates["used"] if balanced else final_fates["used"] - without
    steps = sum(record["steps"] for record in run.metrics)
    return [
        (_count(sampled), "rollouts sampled"),
        (_count(used), "used in updates"),
        (_count(without), "without signal"),
        *(
            [
                (_count(final_fates["surplus"]), "dropped as surplus"),
                (_count(final_fates["aged"]), "dropped as too old"),
                (_count(final_fates["waiting"]), "still waiting"),
            ]
            if balanced
            else []
        ),
        (_count(steps), "optimizer steps" + (f", {skipped} skipped" if skipped else "")),
        (f"{updates}\u2009/\u2009{len(run.metrics)}", "iterations with an update"),
        (_count(sum(record["rollout_tokens"] for record in run.metrics)), "tokens sampled"),
        (format_duration(wall_seconds(run)), "wall time"),
    ]


def wall_seconds(run: RunData) -> float:
    """Seconds of all iterations and evaluations, without loading and time between resumed runs."""
    iterations = sum(record.get("iteration_seconds", 0.0) for record in run.metrics)
    return float(
        iterations + sum(evaluation.get("evaluate_seconds", 0.0) for evaluation in run.evaluations)
    )


def format_duration(seconds: float) -> str:
    """Write seconds as a person would.

    Example:
        >>> format_duration(8.2), format_duration(75), format_duration(9000)
        ('8 s', '1 min 15 s', '2 h 30 min')
    """
    total = round(seconds)
    if total < 60:
        return f"{total} s"
    if total < 3600:
        return f"{total // 60} min {total % 60} s"
    return f"{total // 3600} h {total % 3600 // 60} min"


def _count(number: int) -> str:
    return f"{number:,}"
