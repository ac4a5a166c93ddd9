"""A few rollouts of the last iteration: for some prompts, one right and one wrong response."""

from __future__ import annotations

from counterpoise.report.charts.render import render
from counterpoise.report.panels.panel import Panel
from counterpoise.report.run_data import RunData
from counterpoise.report.texts import RolloutText

MAX_PROMPTS = 4


def panel(run: RunData) -> Panel | None:
    stored = next((r for r in reversed(run.metrics) if run.rollouts(r["iteration"])), None)
    if stored is None:
        return None
    shown = choose_examples(run.rollouts(stored["iteration"]))
    return Panel(
        "Rollouts",
        f"From iteration {stored['iteration']}: prompts with both outcomes first.",
        render("rollouts.html", prompts=shown),
    )


def choose_examples(rollouts: tuple[RolloutText, ...]) -> list[tuple[RolloutText, ...]]:
    """For at most PROMPTS groups, the first right and the first wrong response there is."""
    groups: dict[str, dict[bool, RolloutText]] = {}
    for rollout in rollouts:
        groups.setdefault(rollout.group, {}).setdefault(rollout.reward > 0, rollout)
    pairs = [tuple(g[right] for right in (True, False) if right in g) for g in groups.values()]
    return sorted(pairs, key=len, reverse=True)[:MAX_PROMPTS]
