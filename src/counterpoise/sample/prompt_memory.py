"""Prompt memory: how often every training prompt was solved, iteration by iteration.

    p(q)      right / scored rollouts over the last `sample.memory_visits` groups of prompt q
    settled   the last `sample.memory_visits` groups of q have no reward spread and are all right,
              or all wrong; until `sample.retry_after` iterations have passed since the last of them

A settled prompt would most likely give a group without signal again, so it can be left out before
anything is sampled; dynamic sampling finds out only afterwards. The policy changes, so a prompt is
settled for a while only. Anchors and rollouts without a reward do not count as right or scored;
right is a reward above 0, as in `success`. A group whose rewards differ has given a signal and
never settles its prompt, even if all its graded rewards are above 0 or only an anchor's differs.

With `sample.choose=aligned` it also keeps what the prompt's latest update did to held-out answers.
The memory has a line in memory.jsonl for every iteration and is part of every checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from counterpoise.sample.dynamic_sampling import has_spread
from counterpoise.types import Group

SOLVED, UNSOLVED = "solved", "unsolved"


@dataclass(frozen=True, slots=True)
class Visit:
    """One group of a prompt.

    Example:
        Visit(iteration=7, right=5, scored=8, mixed=True)
    """

    iteration: int
    right: int
    scored: int
    mixed: bool  # its rewards differ

    def to_list(self) -> list[int]:
        """As in memory.jsonl; in a checkpoint the iteration comes before these."""
        return [self.right, self.scored, int(self.mixed)]


@dataclass(slots=True)
class PromptMemory:
    """The visits of every prompt, and how far the shuffled epochs have been used up."""

    num_visits: int = 2  # sample.memory_visits
    retry_after: int = 20  # sample.retry_after
    visits: dict[str, list[Visit]] = field(default_factory=dict)  # by prompt id, oldest first
    next_position: int = 0  # in the sequence of all shuffled epochs
    influence: dict[str, float] = field(default_factory=dict)  # latest, by prompt id

    def record(self, groups: Sequence[Group], iteration: int) -> dict[str, list[int]]:
        """Remember the groups of an iteration; returns [right, scored, mixed] by prompt id."""
        recorded = {}
        for group in groups:
            answers = [rollout for rollout in group.rollouts if not rollout.anchor]
            rewards = [answer.reward for answer in answers if not math.isnan(answer.reward)]
            num_right = sum(reward > 0 for reward in rewards)
            visit = Visit(iteration, num_right, len(rewards), has_spread(group))
            prompt_id = group.rollouts[0].prompt_id
            self.visits.setdefault(prompt_id, []).append(visit)
            recorded[prompt_id] = visit.to_list()
        return recorded

    def success_rate(self, prompt_id: str) -> float | None:
        """p of the prompt; None if it was never sampled, or had no reward."""
        visits = self.visits.get(prompt_id, [])[-self.num_visits :]
        num_scored = sum(visit.scored for visit in visits)
        return sum(visit.right for visit in visits) / num_scored if num_scored else None

    def settled_as(self, prompt_id: str, iteration: int) -> str:
        """Whether the prompt is "solved" or "unsolved" before `iteration`; "" if it is open."""
        visits = self.visits.get(prompt_id, [])[-self.num_visits :]
        is_recent = visits and iteration - visits[-1].iteration <= self.retry_after
        if not is_recent or len(visits) < self.num_visits:
            return ""
        if any(visit.mixed or not visit.scored for visit in visits):
            return ""
        rates = {visit.right / visit.scored for visit in visits}
        return {1.0: SOLVED, 0.0: UNSOLVED}.get(rates.pop(), "") if len(rates) == 1 else ""

    def last_visit(self, prompt_id: str) -> int:
        """The iteration of the prompt's last group; 0 if there was none."""
        visits = self.visits.get(prompt_id)
        return visits[-1].iteration if visits else 0

    def num_uniform(self, iteration: int) -> int:
        """How many groups of an iteration had no reward spread."""
        return sum(
            not visit.mixed
            for visits in self.visits.values()
            for visit in visits[-1:]
            if visit.iteration == iteration
        )

    def to_state(self) -> dict[str, Any]:
        """All that a checkpoint holds of it."""
        return {
            "next_position": self.next_position,
            "visits": {
                prompt_id: [[visit.iteration, *visit.to_list()] for visit in visits]
                for prompt_id, visits in self.visits.items()
            },
            **({"influence": dict(self.influence)} if self.influence else {}),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Set the memory to what `to_state` returned."""
        self.next_position = state["next_position"]
        self.visits = {
            prompt_id: [
                Visit(iteration, right, scored, bool(mixed))
                for iteration, right, scored, mixed in visits
            ]
            for prompt_id, visits in state["visits"].items()
        }
        self.influence = dict(state.get("influence", {}))
