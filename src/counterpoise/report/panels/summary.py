"""What was trained, what it was worth, and what it cost."""

from __future__ import annotations

from counterpoise.plugins import is_own, shown
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
            rule=shown(run.config.batch.composer),
            reward=shown(run.config.verify.name) if is_own(run.config.verify.name) else "",
            last=run.last_iteration,
            before=ordered[0] if ordered else None,
            after=ordered[-1] if len(ordered) > 1 else None,
            facts=list_facts(run) if run.metrics else [],
        ),
        assets=("summary.css",),
    )


def list_facts(run: RunData) -> list[Fact]:
    balanced = run.config.balance.tau > 0
    end = count_fates(run)[-1]
    sampled = sum(record["rollouts"] for record in run.metrics)
    updates = sum(record["steps"] > 0 for record in run.metrics)
    skipped = sum(record["skipped_steps"] for record in run.metrics)
    without = sum(record["rows_without_signal"] for record in run.metrics)
    used = end["used"] if balanced else end["used"] - without  # without RB they are in batches too
    steps = sum(record["steps"] for record in run.metrics)
    return [
        (_count(sampled), "rollouts sampled"),
        (_count(used), "used in updates"),
        (_count(without), "without signal"),
        *(
            [
                (_count(end["surplus"]), "dropped as surplus"),
                (_count(end["aged"]), "dropped as too old"),
                (_count(end["waiting"]), "still waiting"),
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
    """Iterations and evaluations; loading and the time a run lay stopped are not in it."""
    iterations = sum(record.get("iteration_seconds", 0.0) for record in run.metrics)
    return float(iterations + sum(e.get("evaluate_seconds", 0.0) for e in run.evaluations))


def format_duration(seconds: float) -> str:
    """
    Example:
        >>> duration(8.2), duration(75), duration(9000)
        ('8 s', '1 min 15 s', '2 h 30 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _count(number: int) -> str:
    return f"{number:,}"
