"""Panel of example rollouts: for a few prompts, one right and one wrong response.

Where rewards are graded no response is right or wrong: of a prompt those with the highest and the
lowest reward are shown.
"""

from __future__ import annotations

import math

from counterpoise.report.charts.render import render
from counterpoise.report.panels.panel import Panel
from counterpoise.report.run_data import RunData
from counterpoise.store.stored_rollouts import RolloutLine

MAX_PROMPTS = 4


def panel(run: RunData) -> Panel | None:
    # The latest iteration whose rollouts were stored.
    iterations = (record["iteration"] for record in reversed(run.metrics))
    iteration = next((number for number in iterations if run.rollouts(number)), None)
    if iteration is None:
        return None
    examples = choose_examples(run.rollouts(iteration), is_graded=run.is_graded)
    kinds = "with unequal rewards" if run.is_graded else "with right and wrong responses"
    return Panel(
        "Rollouts",
        f"Examples from iteration {iteration}; prompts {kinds} come first.",
        render("rollouts.html", prompts=examples, is_graded=run.is_graded),
    )


def choose_examples(
    rollouts: tuple[RolloutLine, ...], *, is_graded: bool = False
) -> list[tuple[RolloutLine, ...]]:
    """For at most MAX_PROMPTS groups: the first right and the first wrong response.

    With graded rewards: the first of the highest reward and, if it differs, of the lowest.
    """
    if is_graded:
        return _extreme_examples(rollouts)
    # setdefault keeps the first response of each outcome.
    outcomes_by_group: dict[str, dict[bool, RolloutLine]] = {}
    for rollout in rollouts:
        if not math.isnan(rollout.reward):  # not scored: neither right nor wrong
            outcomes_by_group.setdefault(rollout.group, {}).setdefault(rollout.reward > 0, rollout)
    examples = [
        tuple(by_outcome[is_right] for is_right in (True, False) if is_right in by_outcome)
        for by_outcome in outcomes_by_group.values()
    ]
    return sorted(examples, key=len, reverse=True)[:MAX_PROMPTS]


def _extreme_examples(rollouts: tuple[RolloutLine, ...]) -> list[tuple[RolloutLine, ...]]:
    members_by_group: dict[str, list[RolloutLine]] = {}
    for rollout in rollouts:
        if not math.isnan(rollout.reward):
            members_by_group.setdefault(rollout.group, []).append(rollout)
    examples: list[tuple[RolloutLine, ...]] = []
    for members in members_by_group.values():
        highest = max(members, key=lambda member: member.reward)
        lowest = min(members, key=lambda member: member.reward)
        examples.append((highest,) if highest.reward == lowest.reward else (highest, lowest))
    return sorted(examples, key=len, reverse=True)[:MAX_PROMPTS]
