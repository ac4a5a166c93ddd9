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

EXCERPT = 160  # characters of a prompt or a response
TEXT_UPDATES = 48  # updates that carry excerpts, at most
TEXT_BYTES = 1_500_000  # of all excerpts, deflated


def panel(run: RunData) -> Panel | None:
    if not run.plans:
        return None
    texts = pack_excerpts(run)
    plans = {plan["iteration"]: plan for plan in run.plans}
    iterations = [
        {
            "iteration": record["iteration"],
            "plan": pack_json(compact_plan(plans[record["iteration"]])),
            "texts": texts.get(record["iteration"]),
        }
        if record["iteration"] in plans
        else {
            "iteration": record["iteration"],
            "waiting": [record["buffer_positive"], record["buffer_negative"]],
        }
        for record in run.metrics
    ]
    largest = max(
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
            largest=largest,
            balanced=run.config.balance.tau > 0,
            tokens=bool(stored_iterations(run.path)),
            left_out=_left_out(run, texts),
        ),
        data={"iterations": iterations, "largest": largest},
        assets=("mosaic.css", "mosaic.js"),
    )


def compact_plan(plan: dict[str, Any]) -> dict[str, Any]:
    """A plan as parallel lists over its rows, which compress well; `step` has the step of a row."""
    step_R = [0] * len(plan["group"])
    for number, step in enumerate(plan["steps"]):
        for row in step:
            step_R[row] = number
    return {
        "rule": display_name(plan["rule"]),
        "steps": len(plan["steps"]),
        "step": step_R,
        "groups": [make_visible(name, EXCERPT) for name in plan["groups"]],
        "group": plan["group"],
        "index": plan["index"],
        "advantage": [round(advantage, 3) for advantage in plan["advantage"]],
        "tokens": plan["tokens"],
        "born": plan["born"],
        "describe": {
            name: plan["describe"][name]
            for name in ("split_groups", "token_imbalance", "max_abs_group_advantage_sum")
        },
    }


def pack_excerpts(run: RunData) -> dict[int, str]:
    """Pack the texts of the last updates, newest first, until TEXT_BYTES are used up."""
    packed_texts: dict[int, str] = {}
    bytes_left = TEXT_BYTES
    # Newest first: the last updates are the ones readers look at.
    for plan in run.plans[: -TEXT_UPDATES - 1 : -1]:
        excerpts = _texts_of(run, plan)
        if not excerpts["responses"]:
            continue
        text = pack_json(excerpts)
        bytes_left -= len(text)
        if bytes_left < 0:
            break
        packed_texts[plan["iteration"]] = text
    return packed_texts


def _texts_of(run: RunData, plan: dict[str, Any]) -> dict[str, Any]:
    rows = run.texts_of_plan(plan)
    prompts: dict[int, str] = {
        group: make_visible(text.prompt, EXCERPT)
        for group, text in zip(plan["group"], rows, strict=True)
        if text
    }
    if not prompts:
        return {"prompts": [], "responses": [], "rewards": []}
    return {
        "prompts": [prompts.get(group) for group in range(len(plan["groups"]))],
        "responses": [text and make_visible(text.response, EXCERPT) for text in rows],
        "rewards": [text and text.reward for text in rows],
    }


def _left_out(run: RunData, texts: dict[int, str]) -> str:
    if not texts:
        return "The run stored no rollouts, so no texts are shown."
    without = len(run.plans) - len(texts)
    if not without:
        return ""
    return (
        f"{without} of {len(run.plans)} updates show no texts: only the last {TEXT_UPDATES} can, "
        f"and only if their rollouts were stored and fit into {TEXT_BYTES / 1e6:g} MB."
    )
