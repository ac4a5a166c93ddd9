"""Panel of every trained token, coloured by what the update did to it, with what pushed it.

For each embedded iteration the page's script gets parallel lists over rows and over tokens, with
numbers in steps of one percent (quantise.py). A run stores far more than a page should carry: it
shows the first, the last and evenly spaced iterations between, as many as fit; of a large batch it
shows the rows with stored pushes first, then others. A note on the page says what is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from counterpoise.report.charts.quantise import LEVELS, STEP, quantise
from counterpoise.report.charts.quantities import (
    available_quantities,
    full_colour_size,
    group_by_family,
    quantity_values,
)
from counterpoise.report.charts.render import pack_json, render
from counterpoise.report.panels.panel import Panel
from counterpoise.report.run_data import RunData
from counterpoise.report.texts import make_visible
from counterpoise.report.traces import (
    IterationTrace,
    StoredPushes,
    Vocabulary,
    read_pushes,
    read_trace,
    read_vocabulary,
    stored_iterations,
    tokens_without_gradient,
)

MAX_PANEL_BYTES = 4_000_000  # size of the packed panel
MAX_ITERATIONS = 40  # embedded, at most
MAX_TOKENS = 40_000  # of one iteration, at most
PROMPT_CHARACTERS = 600
CONTEXT_TOKENS = 8  # tokens on either side of one that pushed
CAPTION = "Every token the update was trained on, rollout by rollout."
PUSH_CAPTION = (
    " Displacement is the change of its log-probability by the optimizer step. A push estimates "
    "how much of that change another token caused: its effect through the output layer, to first "
    "order and per unit of learning rate. Pick a token to see those that pushed it most."
)


class PackedIteration(NamedTuple):
    """One iteration as it is embedded in the page."""

    iteration: int
    packed: str
    rows_shown: int  # whose tokens are in it
    rows_stored: int  # whose tokens the run has
    token_ids: frozenset[int]  # token ids that occur
    columns: frozenset[str]


def panel(run: RunData) -> Panel | None:
    plans = {plan["iteration"]: plan for plan in run.plans}
    iterations = [iteration for iteration in stored_iterations(run.path) if iteration in plans]
    if not iterations:
        return None
    views = choose_iterations(run, plans, iterations)
    vocabulary = read_vocabulary(run.path)
    quantities = available_quantities(frozenset.union(*(view.columns for view in views)))
    token_ids = sorted(frozenset.union(*(view.token_ids for view in views)))
    return Panel(
        "Tokens",
        CAPTION + (PUSH_CAPTION if any(quantity.name == "push" for quantity in quantities) else ""),
        render(
            "tokens.html",
            last=len(views) - 1,
            families=group_by_family(quantities),
            left_out=describe_omissions(views, iterations, vocabulary),
        ),
        data={
            "step": STEP,
            "levels": LEVELS,
            "context": CONTEXT_TOKENS,
            "quantities": [quantity._asdict() for quantity in quantities],
            "vocabulary": pack_json({token: vocabulary[token] for token in token_ids}),
            "iterations": [{"iteration": view.iteration, "packed": view.packed} for view in views],
        },
        assets=("tokens.css", "token_text.js", "tokens_data.js", "tokens_card.js", "tokens.js"),
    )


def choose_iterations(
    run: RunData, plans: dict[int, Any], iterations: Sequence[int]
) -> list[PackedIteration]:
    """As many iterations as fit into the panel, with the first and the last; at least one."""
    packed_by_iteration = {iterations[-1]: pack_iteration(run, plans[iterations[-1]])}
    # Start with the number that would fit if all were as large as the last one, then reduce it.
    like_the_last = MAX_PANEL_BYTES // len(packed_by_iteration[iterations[-1]].packed)
    number = max(1, min(len(iterations), MAX_ITERATIONS, like_the_last))
    while True:
        selection = spread_evenly(iterations, number)
        packed_by_iteration |= {
            iteration: pack_iteration(run, plans[iteration])
            for iteration in selection
            if iteration not in packed_by_iteration
        }
        size = sum(len(packed_by_iteration[iteration].packed) for iteration in selection)
        if size <= MAX_PANEL_BYTES or number == 1:
            return [packed_by_iteration[iteration] for iteration in selection]
        number -= 1


def spread_evenly(iterations: Sequence[int], number: int) -> list[int]:
    """Choose `number` evenly spaced iterations; if only one, the last.

    Example:
        >>> spread_evenly([1, 2, 3, 4, 5], 3), spread_evenly([1, 2, 3], 1)
        ([1, 3, 5], [3])
    """
    if number == 1:
        return [iterations[-1]]
    positions = np.linspace(0, len(iterations) - 1, number).round().astype(int)
    return [iterations[position] for position in dict.fromkeys(positions.tolist())]


def pack_iteration(run: RunData, plan: dict[str, Any]) -> PackedIteration:
    trace = read_trace(run.path, plan["iteration"])
    pushes = read_pushes(run.path, plan["iteration"])
    rows_shown = rows_that_fit(trace, pushes, plan)
    token_ids = trace.columns["token"]
    token_N = np.concatenate(
        [np.arange(len(token_ids))[trace.row_spans[row]] for row in rows_shown]
    )
    quantities = available_quantities(trace.columns)
    # Several quantities share columns; each column is embedded once.
    needed = dict.fromkeys(name for quantity in quantities for name in quantity.columns)
    snippets, push_columns = _pushes(trace, pushes, rows_shown)
    payload = {
        **_rows(run, plan, trace, rows_shown),
        "token": token_ids[token_N].tolist(),
        "columns": {name: quantise(trace.columns[name][token_N]) for name in needed},
        "unpulled": np.flatnonzero(tokens_without_gradient(trace.columns)[token_N]).tolist(),
        "full": {
            quantity.name: full_colour_size(quantity_values(quantity, trace.columns))
            for quantity in quantities
        },
        "pushes": push_columns,
    }
    environment_ids = [
        token for turns in payload["told"] for _, tokens in turns for token in tokens
    ]
    occurring = {
        *payload["token"],
        *environment_ids,
        *(token_id for _, _, around in snippets for token_id in around),
    }
    return PackedIteration(
        plan["iteration"],
        pack_json(payload),
        len(rows_shown),
        len(trace.row_spans),
        frozenset(occurring),
        frozenset(needed),
    )


def rows_that_fit(
    trace: IterationTrace, pushes: StoredPushes | None, plan: dict[str, Any]
) -> list[int]:
    """Rows to show, in the order of the plan.

    Where they are too many, rows of groups with stored pushes are taken first, then rows whose
    displacement was measured.
    """
    group_of = plan["group"]
    watched = {group_of[row] for row in pushes.rows} if pushes else set()
    chosen_rows: list[int] = []
    tokens_left = MAX_TOKENS
    displacements = trace.columns.get("displacement")
    # Rows that the monitor did not measure have only NaN as displacement.
    unmeasured = {
        candidate
        for candidate, span in trace.row_spans.items()
        if displacements is not None and np.isnan(displacements[span]).all()
    }

    def rank(r: int) -> tuple[bool, bool, int, int]:
        return group_of[r] not in watched, r in unmeasured, group_of[r], r

    for row in sorted(trace.row_spans, key=rank):
        span = trace.row_spans[row]
        tokens_left -= span.stop - span.start
        # One row is always shown, however long it is.
        if tokens_left < 0 and chosen_rows:
            break
        chosen_rows.append(row)
    return sorted(chosen_rows, key=lambda row: (group_of[row], row))


def _rows(
    run: RunData, plan: dict[str, Any], trace: IterationTrace, rows_shown: list[int]
) -> dict[str, Any]:
    """Parallel lists over all rows of the plan: a push may come from a row that is not shown."""
    texts = run.texts_of_plan(plan)
    prompts = {
        group: make_visible(text.prompt, PROMPT_CHARACTERS)
        for group, text in zip(plan["group"], texts, strict=True)
        if text
    }
    step_of = {row: step for step, rows in enumerate(plan["steps"]) for row in rows}
    return {
        "kept": rows_shown,
        "lengths": [trace.row_spans[row].stop - trace.row_spans[row].start for row in rows_shown],
        "told": [text.environment_tokens if (text := texts[row]) else () for row in rows_shown],
        "signal": sorted(trace.row_spans),
        "groups": [make_visible(name, PROMPT_CHARACTERS) for name in plan["groups"]],
        "prompts": [prompts.get(group) for group in range(len(plan["groups"]))],
        "group": plan["group"],
        "index": plan["index"],
        "step": [step_of[row] for row in range(len(plan["group"]))],
        "advantage": [round(advantage, 4) for advantage in plan["advantage"]],
        "reward": [text and text.reward for text in texts],
    }


def _pushes(
    trace: IterationTrace, pushes: StoredPushes | None, rows_shown: list[int]
) -> tuple[list[Any], dict[str, Any] | None]:
    """Pushes on the shown rows, with the neighbours of tokens in rows that are not shown."""
    if pushes is None:
        return [], None
    columns = pushes.columns
    pushed_N = np.flatnonzero(np.isin(columns["row"], rows_shown))
    pushed_N = pushed_N[np.lexsort((columns["position"][pushed_N], columns["row"][pushed_N]))]
    column = {name: columns[name][pushed_N].tolist() for name in columns if name != "push"}
    shown_rows, snippets = set(rows_shown), {}
    # The page can show the context of a pushing token only if it has the tokens around it.
    for row, position in zip(column["by_row"], column["by_position"], strict=True):
        if row not in shown_rows and (row, position) not in snippets:
            token_ids = trace.row_columns(row)["token"]
            start = max(0, position - CONTEXT_TOKENS)
            snippets[row, position] = [
                start,
                token_ids[start : position + CONTEXT_TOKENS + 1].tolist(),
            ]
    listed = [
        (f"{source_row}:{source_position}", start, around)
        for (source_row, source_position), (start, around) in snippets.items()
    ]
    return listed, {**column, "push": quantise(columns["push"][pushed_N]), "snippets": listed}


def describe_omissions(
    views: Sequence[PackedIteration], iterations: Sequence[int], vocabulary: Vocabulary
) -> str:
    sentences = []
    if len(views) < len(iterations):
        sentences.append(
            f"{len(views)} of {len(iterations)} updates are shown: the first, the last and evenly "
            f"spaced ones between, as many as fit into {MAX_PANEL_BYTES / 1e6:g} MB."
        )
    if omitted_rows := sum(view.rows_stored - view.rows_shown for view in views):
        sentences.append(
            f"{omitted_rows} of {sum(view.rows_stored for view in views)} rollouts of these are "
            f"left out: at most about {MAX_TOKENS:,} tokens of an update are shown."
        )
    if sentences:
        sentences.append("`poise look` shows the others.")
    if not vocabulary.texts:
        sentences.append("The run has no vocabulary.json, so tokens are shown by number.")
    return " ".join(sentences)
