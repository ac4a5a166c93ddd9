"""Your own rewards and composer: functions in a file, each named by an option.

    F=examples/own_reward_and_composer.py
    poise train demo --set verify.name=$F:nearness --set batch.composer=$F:easy_first --dry-run
    poise train demo --set verify.name=$F:nearness --set batch.composer=$F:easy_first --out out/own
    poise plan out/own/rollouts/step_00001.jsonl --composer $F:easy_first
    poise train demo --set "verify.also=['$F:numbers_used=0.2']" --out out/beside  # besides `math`

In a run file, `name = "own_reward_and_composer.py:nearness"` means a file in the same folder.
"""

from __future__ import annotations

import re
from itertools import pairwise

from counterpoise.types import Row
from counterpoise.verify.math.boxed import extract_boxed


def nearness(responses: list[str], answers: list[str]) -> list[float]:
    """r = 1 if the box holds the answer, else -|box - answer| / |answer|, -1 at the least.

    Only right answers are above 0, which is what the success rate counts. Wrong answers differ in
    reward, so a group without a right one still has signal.
    """
    return [_nearness(extract_boxed(r), float(a)) for r, a in zip(responses, answers, strict=True)]


def _nearness(box: str | None, answer: float) -> float:
    try:
        error = abs(float(box or "") - answer)
    except ValueError:  # no box, or no number in it
        return -1.0
    return 1.0 if error == 0 else -min(1.0, error / max(1.0, abs(answer)))


def numbers_used(prompts: list[str], completions: list[str], **_: object) -> list[float]:
    """r = share of the problem's numbers that the response writes down; 1 where it has none.

    The parameter names are TRL's, so the function also works as a reward of TRL's.
    """
    rewards = []
    for prompt, completion in zip(prompts, completions, strict=True):
        numbers, written = (set(re.findall(r"\d+", text)) for text in (prompt, completion))
        rewards.append(len(numbers & written) / len(numbers) if numbers else 1.0)
    return rewards


def easy_first(rows: list[Row], num_steps: int, seed: int) -> list[list[int]]:
    """Whole groups; those with the largest share of positive rollouts go into the first step."""
    members: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        members.setdefault(row.group, []).append(i)
    groups = sorted(members.values(), key=lambda g: -sum(rows[i].sign > 0 for i in g) / len(g))
    cuts = [len(groups) * step // num_steps for step in range(num_steps + 1)]
    return [[i for group in groups[a:b] for i in group] for a, b in pairwise(cuts)]
