"""Panel of the batch mosaic: a column per optimizer step, a cell per rollout, groups outlined.

Every plan of the run is embedded, compressed to a few bytes per rollout. Texts are much larger, so
only the last updates carry excerpts, up to a total size; a note on the page says what is left out.
"""

from __future__ import annotations

from typing import Any

from counterpoise.plugins import display_name
from counterpoise.report.charts.render import pack_json, render
from counterpoise.report.panels.panel import Panel
from counterpoise.report.run_data import RunData
from counterpoise.report.texts import make_visible
from counterpoise.report.traces import stored_iterations

MAX_EXCERPT_CHARACTERS = 160  # of a prompt or a response
MAX_TEXT_UPDATES = 48  # updates with excerpts
MAX_TEXT_BYTES = 1_500_000  # of all excerpts together, packed


def panel(run: RunData) -> Panel | None:
    plan_by_iteration = {plan["iteration"]: plan for plan in run.plans}
    # The line of metrics.jsonl comes last: an iteration may have a plan before it is finished.
    if not any(record["iteration"] in plan_by_iteration for record in run.metrics):
        return None
    packed_texts = pack_excerpts(run)
    iterations = [
        {
            "iteration": record["iteration"],
            "plan": pack_json(compact_plan(plan_by_iteration[record["iteration"]])),
            "texts": packed_texts.get(record["iteration"]),
        }
        if record["iteration"] in plan_by_iteration
        else {
            "iteration": record["iteration"],
            # Imported runs have no buffer.
            "waiting": [record.get("buffer_positive", 0), record.get("buffer_negative", 0)],
        }
        for record in run.metrics
    ]
    largest_advantage = max(
        (abs(advantage) for plan in run.plans for advantage in plan["advantage"]), default=0.0
    )
    return Panel(
        "Batch mosaic",
        "Which rollouts shared an optimizer step. A column is a step, a row holds the rollouts of "
        "one prompt in that step, a cell is one rollout. Where the rollouts of a prompt are split "
        "over several steps, the row is hatched and lines lead to its other parts.",
        render(
            "mosaic.html",
            last=len(iterations) - 1,
            largest=largest_advantage,
            balanced=run.config.balance.tau > 0,
            tokens=bool(stored_iterations(run.path)),
            left_out=_describe_omissions(run, packed_texts),
        ),
        data={"iterations": iterations, "largest": largest_advantage},
        assets=("mosaic.css", "mosaic_drawing.js", "mosaic.js"),
    )


def compact_plan(plan: dict[str, Any]) -> dict[str, Any]:
    """A plan as parallel lists over its rows, which compress well."""
    step_R = [0] * len(plan["group"])
    for step_index, step_rows in enumerate(plan["steps"]):
        for row in step_rows:
            step_R[row] = step_index
    return {
        "rule": display_name(plan["rule"]),
        "steps": len(plan["steps"]),
        "step": step_R,
        "groups": [
            make_visible(group_name, MAX_EXCERPT_CHARACTERS) for group_name in plan["groups"]
        ],
        "group": plan["group"],
        "index": plan["index"],
        "advantage": [round(advantage, 3) for advantage in plan["advantage"]],
        "tokens": plan["tokens"],
        "born": plan["born"],
        "describe": {
            statistic_name: plan["describe"][statistic_name]
            for statistic_name in ("split_groups", "token_imbalance", "max_abs_group_advantage_sum")
        },
    }


def pack_excerpts(run: RunData) -> dict[int, str]:
    """Pack the texts of the last updates, newest first, until MAX_TEXT_BYTES are used up."""
    packed_texts: dict[int, str] = {}
    bytes_left = MAX_TEXT_BYTES
    for plan in run.plans[: -MAX_TEXT_UPDATES - 1 : -1]:
        excerpts = _excerpts(run, plan)
        if not excerpts["responses"]:
            continue
        packed_excerpts = pack_json(excerpts)
        bytes_left -= len(packed_excerpts)
        if bytes_left < 0:
            break
        packed_texts[plan["iteration"]] = packed_excerpts
    return packed_texts


def _excerpts(run: RunData, plan: dict[str, Any]) -> dict[str, Any]:
    row_texts = run.texts_of_plan(plan)
    prompt_by_group: dict[int, str] = {
        group: make_visible(rollout_text.prompt, MAX_EXCERPT_CHARACTERS)
        for group, rollout_text in zip(plan["group"], row_texts, strict=True)
        if rollout_text
    }
    if not prompt_by_group:
        return {"prompts": [], "responses": [], "rewards": []}
    return {
        "prompts": [prompt_by_group.get(group) for group in range(len(plan["groups"]))],
        "responses": [
            rollout_text and make_visible(rollout_text.response, MAX_EXCERPT_CHARACTERS)
            for rollout_text in row_texts
        ],
        "rewards": [rollout_text and rollout_text.reward for rollout_text in row_texts],
    }


def _describe_omissions(run: RunData, packed_texts: dict[int, str]) -> str:
    if not packed_texts and not any(any(run.texts_of_plan(plan)) for plan in run.plans):
        return "The run stored no rollouts, so no texts are shown."
    updates_without_texts = len(run.plans) - len(packed_texts)
    if not updates_without_texts:
        return ""
    return (
        f"{updates_without_texts} of {len(run.plans)} updates show no texts: only the last "
        f"{MAX_TEXT_UPDATES} can, and only if their rollouts were stored and fit into "
        f"{MAX_TEXT_BYTES / 1e6:g} MB."
    )
