"""One iteration: which rollouts shared an optimizer step, which were dropped; and one group."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

from counterpoise.errors import first_line
from counterpoise.plugins import display_name
from counterpoise.serve.answers import NotFoundError
from counterpoise.serve.index.fates import DROP_REASONS, REASONS_WITHOUT_ADVANTAGE, born_in
from counterpoise.serve.log_tail import Record
from counterpoise.serve.run_reader import RunReader
from counterpoise.store.logs import LOG_CHECKS, row_names
from counterpoise.store.plain_values import plain_text
from counterpoise.store.schema import DESCRIPTION, DROPS
from counterpoise.store.stored_rollouts import RolloutLine, iterate_rollouts
from counterpoise.types import RowName

EXCERPT_CHARACTERS = 300
CELL_CHARACTERS = 160
MOST_GROUP_CHARACTERS = 200_000  # of one response in the side-by-side view
# The rows of one plan may come from many iterations: texts are read for this many, the newest.
MOST_SOURCE_ITERATIONS = 64
LEAST_ITERATIONS_AHEAD = 64  # searched for the fate of a rollout; more if balance.max_age is larger


def iteration_view(reader: RunReader, iteration: int) -> dict[str, Any]:
    reader.follow_batches()
    known = iteration in reader.metrics.spans or iteration in reader.plans.spans
    if not known:
        reader.step_file("rollouts", iteration)  # raises and says what is missing
    plan = read_plan(reader, iteration)
    texts, missing = _texts_of(reader, plan)
    metrics = reader.metrics_of(iteration)
    advantages = [abs(advantage) for advantage in plan["advantage"]] if plan else []
    return {
        "iteration": iteration,
        "previous": max((n for n in reader.iterations if n < iteration), default=None),
        "next": min((n for n in reader.iterations if n > iteration), default=None),
        "metrics": metrics,
        "update": plan is not None or metrics.get("steps", 0) > 0,
        "waiting": {sign: metrics.get(f"buffer_{sign}") for sign in ("positive", "negative")},
        # The composer, under the name that plans.jsonl has for it.
        "rule": display_name(plan["rule"]) if plan and isinstance(plan.get("rule"), str) else None,
        # The largest |advantage|, at which the colour of a cell is full.
        "largest": max((value for value in advantages if value == value), default=0.0),
        "groups": _groups(plan, texts) if plan else [],
        "steps": _steps(reader, plan, texts) if plan else [],
        "describe": plan.get("describe", {}) if plan else {},
        "dropped": {
            reason: [
                {
                    "group": group,
                    "index": index,
                    "place": rollout_address(reader.name, born_in(group, iteration), group, index),
                }
                for group, indices in groups.items()
                for index in indices
            ]
            for reason, groups in _dropped(reader, iteration).items()
        },
        "terms": DESCRIPTION | {f"dropped_{name}": DROPS[name] for name in DROP_REASONS},
        "missing": missing | _missing_plan(reader, iteration, plan, metrics),
    }


def read_plan(reader: RunReader, iteration: int) -> Record | None:
    """The plan of an iteration if its rows were stored and fit together."""
    plan = reader.plans.read_record(iteration)
    if plan is None or "steps" not in plan:
        return None
    try:
        LOG_CHECKS["plans"](plan)
    except (ValueError, RecursionError):
        return None
    return plan


def _missing_plan(
    reader: RunReader, iteration: int, plan: Record | None, metrics: Mapping[str, float]
) -> dict[str, str]:
    if plan:
        return {}
    if iteration in reader.plans.spans:
        return {"steps": "the plan's rows were not stored (store.report = false) or are damaged"}
    if not reader.has_plans:
        return {"steps": "the run has no plans.jsonl: imported rollouts do not tell the steps"}
    if iteration not in reader.metrics.spans:
        return {
            "steps": "metrics.jsonl has no line for this iteration: it is still being written, or "
            "the run ended before it was complete"
        }
    waiting = [metrics.get(f"buffer_{sign}", math.nan) for sign in ("positive", "negative")]
    if any(map(math.isnan, waiting)):
        return {
            "steps": "plans.jsonl has no plan for this iteration, and metrics.jsonl does not count "
            "the rollouts that wait"
        }
    if not any(count > 0 for count in waiting):
        return {"steps": "no update in this iteration: no rollout with signal is left"}
    positive, negative = waiting
    return {
        "steps": f"no update in this iteration: {positive:g} positive and {negative:g} negative "
        "rollouts wait in the buffer until both signs are there (balance.tau)"
    }


class CellText(NamedTuple):
    """What a cell of the mosaic shows of its rollout."""

    prompt_id: str
    prompt: str
    response: str
    reward: float


CellTexts = dict[RowName, CellText]


def _texts_of(reader: RunReader, plan: Record | None) -> tuple[CellTexts, dict[str, str]]:
    """Excerpts of each (group, index) of a plan, from the iterations that sampled them."""
    texts: CellTexts = {}
    missing: dict[str, str] = {}
    group_names = {group for group, _ in row_names(plan)} if plan else set()
    for born in sorted(set(plan["born"]))[-MOST_SOURCE_ITERATIONS:] if plan else ():
        try:
            for rollout in iterate_rollouts(reader.step_file("rollouts", born)):
                if rollout.group in group_names:
                    texts[rollout.group, rollout.index] = CellText(
                        rollout.prompt_id,
                        rollout.prompt[:CELL_CHARACTERS],
                        rollout.response[:CELL_CHARACTERS],
                        rollout.reward,
                    )
        except (NotFoundError, OSError) as fault:
            missing["reward"] = first_line(fault)
    return texts, missing


def _groups(plan: Record, texts: CellTexts) -> list[dict[str, Any]]:
    text_by_group = {group: text for (group, _), text in texts.items()}
    return [
        {
            "group": group,
            "prompt_id": text_by_group[group].prompt_id if group in text_by_group else None,
            "prompt": text_by_group[group].prompt if group in text_by_group else None,
        }
        for group in map(plain_text, plan["groups"])
    ]


def _steps(reader: RunReader, plan: Record, texts: CellTexts) -> list[list[dict[str, Any]]]:
    names = row_names(plan)

    def cell(row: int) -> dict[str, Any]:
        group, index = names[row]
        text = texts.get((group, index))
        return {
            "row": row,
            "group": plan["group"][row],
            "index": index,
            "advantage": plan["advantage"][row],
            "tokens": plan["tokens"][row],
            "born": plan["born"][row],
            "waited": plan["iteration"] - plan["born"][row],
            "reward": text.reward if text else None,
            "response": text.response if text else None,
            "place": rollout_address(reader.name, plan["born"][row], group, index),
        }

    return [[cell(row) for row in rows] for rows in plan["steps"]]


def _dropped(reader: RunReader, iteration: int) -> dict[str, dict[str, list[int]]]:
    """Reason -> group -> indices; what is damaged is left out."""
    record = reader.drops.read_record(iteration) or {}
    reasons = {reason: record.get(reason) for reason in DROP_REASONS}
    return {
        reason: {
            group: [index for index in indices if isinstance(index, int)]
            for group, indices in groups.items()
            if isinstance(indices, list)
        }
        for reason, groups in reasons.items()
        if isinstance(groups, dict)
    }


def group_view(reader: RunReader, iteration: int, group: str) -> dict[str, Any]:
    """The rollouts of a group side by side."""
    born, rollouts = _read_group(reader, iteration, group)
    fates = find_fates(reader, born, group)
    return {
        "iteration": iteration,
        "born": born,
        "group": group,
        "prompt_id": rollouts[0].prompt_id,
        "prompt": rollouts[0].prompt,
        "answer": rollouts[0].answer,
        "rollouts": [
            {
                "index": rollout.index,
                "response": rollout.response_start(MOST_GROUP_CHARACTERS),
                "response_cut": len(rollout.response) > MOST_GROUP_CHARACTERS,
                "reward": rollout.reward,
                "tokens": rollout.num_tokens or 0,
                "finished": rollout.finished is not False,
                **fate_of(rollout, fates),
                "place": rollout_address(reader.name, born, group, rollout.index),
            }
            for rollout in rollouts
        ],
    }


def _read_group(reader: RunReader, iteration: int, group: str) -> tuple[int, list[RolloutLine]]:
    """(iteration that sampled the group, its rollouts); a group may have waited."""
    for born in dict.fromkeys((born_in(group, iteration), iteration)):
        try:
            path = reader.step_file("rollouts", born)
        except NotFoundError:
            continue
        rollouts = [each for each in iterate_rollouts(path) if each.group == group]
        if rollouts:
            return born, rollouts
    raise NotFoundError(f"iteration {iteration} of {reader.name} has no rollouts of {group[:200]}")


NO_FATE: dict[str, Any] = {
    "advantage": None, "step": None, "row": None, "trained_in": None, "dropped": None,
}  # fmt: skip


def fate_of(rollout: RolloutLine, fates: Mapping[int, dict[str, Any]]) -> dict[str, Any]:
    """What a plan says of a rollout; where none does, the advantage in its own line."""
    return fates.get(rollout.index) or NO_FATE | {"advantage": rollout.advantage}


def find_fates(reader: RunReader, born: int, group: str) -> dict[int, dict[str, Any]]:
    """Index in the group -> the plan's advantage, step and row, or why it was dropped."""
    reader.follow_batches()
    fates: dict[int, dict[str, Any]] = {}
    # Plans are long lines: most are passed over because they do not contain the group's key.
    key = quote_json(group)
    num_ahead = max(LEAST_ITERATIONS_AHEAD, reader.longest_wait + 1)
    for iteration in [n for n in sorted(reader.plans.spans) if n >= born][:num_ahead]:
        if key not in reader.plans.read_line(iteration):
            continue
        plan = read_plan(reader, iteration)
        if plan is None:
            continue
        step_of_row = {row: step for step, rows in enumerate(plan["steps"]) for row in rows}
        for row, (row_group, index) in enumerate(row_names(plan)):
            if row_group == group and plan["born"][row] == born:
                fates[index] = {
                    "advantage": plan["advantage"][row],
                    "step": step_of_row.get(row),
                    "row": row,
                    "trained_in": iteration,
                    "dropped": None,
                }
    # An aged rollout is dropped one iteration after the last that could have used it.
    for iteration in [n for n in sorted(reader.drops.spans) if n >= born][: num_ahead + 1]:
        if key not in reader.drops.read_line(iteration):
            continue
        for reason, groups in _dropped(reader, iteration).items():
            advantage = 0.0 if reason in REASONS_WITHOUT_ADVANTAGE else None
            for index in groups.get(group, []):
                if index not in fates:
                    fates[index] = NO_FATE | {"dropped": reason, "advantage": advantage}
    return fates


def quote_json(text: str) -> bytes:
    """A text as the logs spell it."""
    return json.dumps(text).encode("ascii")


def rollout_address(name: str, iteration: int, group: str, index: int) -> str:
    """The address of a rollout, which answers give as its `place`."""
    return f"/runs/{quote(name, safe='')}/rollouts/{iteration}/{quote(group, safe='')}/{index}"


def group_address(name: str, iteration: int, group: str) -> str:
    return f"/runs/{quote(name, safe='')}/iterations/{iteration}/groups/{quote(group, safe='')}"
