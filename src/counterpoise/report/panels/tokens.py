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
from markupsafe import Markup

from counterpoise.report.charts.quantise import LEVELS, STEP, quantise
from counterpoise.report.charts.quantities import (
    available_quantities,
    full_colour_size,
    group_by_family,
    quantity_values,
)
from counterpoise.report.charts.render import pack_json, render
from counterpoise.report.missing_pushes import replay_command
from counterpoise.report.not_measured import NO_UPDATE, took_no_step
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

MAX_PANEL_BYTES = 4_000_000  # of all packed iterations together
MAX_ITERATIONS = 40
MAX_TOKENS = 40_000  # of one iteration
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
    rows_shown: int  # number of rows whose tokens are embedded
    rows_stored: int  # number of rows whose tokens the run stored
    token_ids: frozenset[int]  # ids whose texts the page needs
    columns: frozenset[str]  # columns of tokens/ that are embedded
    known_columns: frozenset[str]  # those with a value: other trainers may not write the entropy


def panel(run: RunData) -> Panel | None:
    plan_by_iteration = {plan["iteration"]: plan for plan in run.plans}
    iterations = [
        iteration for iteration in stored_iterations(run.path) if iteration in plan_by_iteration
    ]
    if not iterations:
        return _why_no_tokens(run) if run.plans else None
    packed_iterations = choose_iterations(run, plan_by_iteration, iterations)
    vocabulary = read_vocabulary(run.path)
    quantities = available_quantities(
        frozenset.union(*(packed.columns for packed in packed_iterations))
    )
    # Only quantities with a value are offered to colour by.
    offered_quantities = available_quantities(
        frozenset.union(*(packed.known_columns for packed in packed_iterations))
    )
    token_ids = sorted(frozenset.union(*(packed.token_ids for packed in packed_iterations)))
    return Panel(
        "Tokens",
        CAPTION + (PUSH_CAPTION if any(quantity.name == "push" for quantity in quantities) else ""),
        render(
            "tokens.html",
            last=len(packed_iterations) - 1,
            families=group_by_family(offered_quantities),
            left_out=describe_omissions(packed_iterations, iterations, vocabulary),
        ),
        data={
            "step": STEP,
            "levels": LEVELS,
            "context": CONTEXT_TOKENS,
            "quantities": [quantity._asdict() for quantity in quantities],
            "vocabulary": pack_json({token: vocabulary[token] for token in token_ids}),
            "iterations": [
                {
                    "iteration": packed.iteration,
                    "packed": packed.packed,
                    "replay": _replay_lines(run, plan_by_iteration[packed.iteration]),
                }
                for packed in packed_iterations
            ],
        },
        assets=("tokens.css", "token_text.js", "tokens_data.js", "tokens_card.js", "tokens.js"),
    )


def _why_no_tokens(run: RunData) -> Panel:
    """What to do for a run without tokens."""
    if took_no_step(run.metrics):
        return Panel("Tokens", f"The run {NO_UPDATE}, so there are no trained tokens.", Markup())
    return Panel(
        "Tokens",
        Markup(
            "The run stored no tokens: train with store.tokens = true (in TRL, monitor_every). "
            "{} <code>{}</code>"
        ).format(*_replay_lines(run, run.plans[-1])),
        Markup(),
    )


def _replay_lines(run: RunData, plan: dict[str, Any]) -> tuple[str, str]:
    """(what the command does, the command) to get what the run does not store of one update."""
    command = replay_command(
        run.path,
        plan["iteration"],
        len(plan["groups"]),
        shown_as=make_visible(run.name, PROMPT_CHARACTERS),
        model=run.model_name,
    )
    return command.explanation, command.text


def choose_iterations(
    run: RunData, plan_by_iteration: dict[int, Any], iterations: Sequence[int]
) -> list[PackedIteration]:
    """Pack as many evenly spaced iterations as fit into the panel; at least the last."""
    packed_by_iteration = {iterations[-1]: pack_iteration(run, plan_by_iteration[iterations[-1]])}
    # Start with the number that would fit if all were as large as the last, then reduce it.
    fitting_count = MAX_PANEL_BYTES // len(packed_by_iteration[iterations[-1]].packed)
    iteration_count = max(1, min(len(iterations), MAX_ITERATIONS, fitting_count))
    while True:
        selection = spread_evenly(iterations, iteration_count)
        packed_by_iteration |= {
            iteration: pack_iteration(run, plan_by_iteration[iteration])
            for iteration in selection
            if iteration not in packed_by_iteration
        }
        packed_size = sum(len(packed_by_iteration[iteration].packed) for iteration in selection)
        if packed_size <= MAX_PANEL_BYTES or iteration_count == 1:
            return [packed_by_iteration[iteration] for iteration in selection]
        iteration_count -= 1


def spread_evenly(iterations: Sequence[int], iteration_count: int) -> list[int]:
    """Choose `iteration_count` evenly spaced iterations; if only one, the last.

    Example:
        >>> spread_evenly([1, 2, 3, 4, 5], 3), spread_evenly([1, 2, 3], 1)
        ([1, 3, 5], [3])
    """
    if iteration_count == 1:
        return [iterations[-1]]
    positions = np.linspace(0, len(iterations) - 1, iteration_count).round().astype(int)
    return [iterations[position] for position in dict.fromkeys(positions.tolist())]


def pack_iteration(run: RunData, plan: dict[str, Any]) -> PackedIteration:
    """Read the tokens of one plan and encode them for the page's script."""
    trace = read_trace(run.path, plan["iteration"])
    pushes = read_pushes(run.path, plan["iteration"])
    rows_shown = rows_that_fit(trace, pushes, plan)
    token_ids = trace.columns["token"]
    token_index_N = np.concatenate(
        [np.arange(len(token_ids))[trace.row_spans[row]] for row in rows_shown]
    )
    quantities = available_quantities(trace.columns)
    # Several quantities share columns; each column is embedded once.
    column_names = dict.fromkeys(
        column_name for quantity in quantities for column_name in quantity.columns
    )
    snippets, push_columns = _pack_pushes(trace, pushes, rows_shown)
    payload = {
        **_row_lists(run, plan, trace, rows_shown),
        "token": token_ids[token_index_N].tolist(),
        "columns": {
            column_name: quantise(trace.columns[column_name][token_index_N])
            for column_name in column_names
        },
        "without_gradient": np.flatnonzero(
            tokens_without_gradient(trace.columns)[token_index_N]
        ).tolist(),
        "full": {
            quantity.name: full_colour_size(quantity_values(quantity, trace.columns))
            for quantity in quantities
        },
        "pushes": push_columns,
    }
    environment_ids = [
        token_id
        for row_turns in payload["environment_tokens"]
        for _, turn_tokens in row_turns
        for token_id in turn_tokens
    ]
    occurring_ids = {
        *payload["token"],
        *environment_ids,
        *(token_id for _, _, nearby_ids in snippets for token_id in nearby_ids),
    }
    return PackedIteration(
        plan["iteration"],
        pack_json(payload),
        len(rows_shown),
        len(trace.row_spans),
        frozenset(occurring_ids),
        frozenset(column_names),
        frozenset(name for name in column_names if np.isfinite(trace.columns[name]).any()),
    )


def rows_that_fit(
    trace: IterationTrace, pushes: StoredPushes | None, plan: dict[str, Any]
) -> list[int]:
    """Rows to show, sorted by group.

    If not all of them fit, rows of groups with stored pushes are taken first, then rows whose
    displacement was measured.
    """
    group_of_row = plan["group"]
    watched_groups = {group_of_row[row] for row in pushes.rows} if pushes else set()
    chosen_rows: list[int] = []
    tokens_left = MAX_TOKENS
    displacements = trace.columns.get("displacement")
    # Rows that the monitor did not measure have only NaN as displacement.
    unmeasured_rows = {
        candidate
        for candidate, span in trace.row_spans.items()
        if displacements is not None and np.isnan(displacements[span]).all()
    }

    def rank(candidate: int) -> tuple[bool, bool, int, int]:
        group = group_of_row[candidate]
        return group not in watched_groups, candidate in unmeasured_rows, group, candidate

    for row in sorted(trace.row_spans, key=rank):
        span = trace.row_spans[row]
        tokens_left -= span.stop - span.start
        # One row is always shown, however long it is.
        if tokens_left < 0 and chosen_rows:
            break
        chosen_rows.append(row)
    return sorted(chosen_rows, key=lambda row: (group_of_row[row], row))


def _row_lists(
    run: RunData, plan: dict[str, Any], trace: IterationTrace, rows_shown: list[int]
) -> dict[str, Any]:
    """Parallel lists over all rows of the plan: a push may come from a row that is not shown."""
    row_texts = run.texts_of_plan(plan)
    prompt_by_group = {
        group: make_visible(rollout_text.prompt, PROMPT_CHARACTERS)
        for group, rollout_text in zip(plan["group"], row_texts, strict=True)
        if rollout_text
    }
    step_of_row = {
        row: step_index for step_index, step_rows in enumerate(plan["steps"]) for row in step_rows
    }
    return {
        "rows_shown": rows_shown,
        "lengths": [trace.row_spans[row].stop - trace.row_spans[row].start for row in rows_shown],
        "environment_tokens": [
            rollout_text.environment_tokens if (rollout_text := row_texts[row]) else ()
            for row in rows_shown
        ],
        "rows_stored": sorted(trace.row_spans),
        "groups": [make_visible(group_name, PROMPT_CHARACTERS) for group_name in plan["groups"]],
        "prompts": [prompt_by_group.get(group) for group in range(len(plan["groups"]))],
        "group": plan["group"],
        "index": plan["index"],
        "born": plan["born"],
        "step": [step_of_row[row] for row in range(len(plan["group"]))],
        "advantage": [round(advantage, 4) for advantage in plan["advantage"]],
        "reward": [rollout_text and rollout_text.reward for rollout_text in row_texts],
    }


def _pack_pushes(
    trace: IterationTrace, pushes: StoredPushes | None, rows_shown: list[int]
) -> tuple[list[Any], dict[str, Any] | None]:
    """(snippets, pushes on the shown rows as JSON lists).

    A snippet holds the token ids around a pushing token whose row is not shown.
    """
    if pushes is None:
        return [], None
    columns = pushes.columns
    push_index_N = np.flatnonzero(np.isin(columns["row"], rows_shown))
    push_index_N = push_index_N[
        np.lexsort((columns["position"][push_index_N], columns["row"][push_index_N]))
    ]
    column_lists = {
        column_name: columns[column_name][push_index_N].tolist()
        for column_name in columns
        if column_name != "push"
    }
    shown_rows, snippets = set(rows_shown), {}
    # The page can show the context of a pushing token only if it has the tokens around it.
    for row, position in zip(column_lists["by_row"], column_lists["by_position"], strict=True):
        if row not in shown_rows and (row, position) not in snippets:
            token_ids = trace.row_columns(row)["token"]
            first_position = max(0, position - CONTEXT_TOKENS)
            snippets[row, position] = [
                first_position,
                token_ids[first_position : position + CONTEXT_TOKENS + 1].tolist(),
            ]
    snippet_list = [
        (f"{source_row}:{source_position}", first_position, nearby_ids)
        for (source_row, source_position), (first_position, nearby_ids) in snippets.items()
    ]
    return snippet_list, {
        **column_lists,
        "push": quantise(columns["push"][push_index_N]),
        "snippets": snippet_list,
    }


def describe_omissions(
    packed_iterations: Sequence[PackedIteration], iterations: Sequence[int], vocabulary: Vocabulary
) -> str:
    """Sentences about what the run stored and the page does not show; empty if nothing."""
    sentences = []
    if (shown := len(packed_iterations)) < len(iterations):
        which = "the first, the last and evenly spaced ones between" if shown > 1 else "the last"
        limit = (
            f"at most {MAX_ITERATIONS}"
            if shown == MAX_ITERATIONS
            else f"as many as fit into {MAX_PANEL_BYTES / 1e6:g} MB"
        )
        sentences.append(f"{shown} of {len(iterations)} updates are shown: {which}, {limit}.")
    stored_rows = sum(packed.rows_stored for packed in packed_iterations)
    omitted_rows = stored_rows - sum(packed.rows_shown for packed in packed_iterations)
    if omitted_rows:
        sentences.append(
            f"{omitted_rows} of {stored_rows} rollouts of these updates are left out: at most "
            f"about {MAX_TOKENS:,} tokens of an update are shown."
        )
    if sentences:
        sentences.append("`poise look` shows what is left out here.")
    if not vocabulary.texts:
        sentences.append("The run has no vocabulary.json, so tokens are shown by number.")
    return " ".join(sentences)
