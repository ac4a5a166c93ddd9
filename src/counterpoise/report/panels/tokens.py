"""Every trained token, coloured by what the update did to it, and the tokens that pushed it.

The script has, for each iteration that is embedded, parallel lists over rows and over tokens; the
numbers come in one percent steps (quantise.py). A run stores far more than a page should carry:
iterations are the first, the last and evenly spaced ones between, as many as fit; of a large batch
the rows come that were watched, then others. A note says what was left out.
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

MAX_PANEL_BYTES = 4_000_000  # of the panel, packed
MAX_ITERATIONS = 40  # embedded, at most
MAX_TOKENS = 40_000  # of one iteration, at most
PROMPT_CHARACTERS = 600  # characters
CONTEXT_TOKENS = 8  # tokens on either side of one that pushed
CAPTION = "Every token the update was trained on, rollout by rollout."
PUSH_CAPTION = (
    " Displacement is what the optimizer step did to its log-probability. Pushes say which tokens "
    "it came from: what each would do through the output layer, to first order and per unit of "
    "learning rate. Pick a token to see those that pushed it most."
)


class PackedIteration(NamedTuple):
    """What the page holds of one iteration."""

    iteration: int
    packed: str
    rows_shown: int  # whose tokens are in it
    rows_stored: int  # whose tokens the run has
    token_ids: frozenset[int]  # token ids that occur
    columns: frozenset[str]


def panel(run: RunData) -> Panel | None:
    plans = {plan["iteration"]: plan for plan in run.plans}
    stored = [i for i in stored_iterations(run.path) if i in plans]
    if not stored:
        return None
    views = choose_iterations(run, plans, stored)
    vocabulary = read_vocabulary(run.path)
    shown = available_quantities(frozenset.union(*(view.columns for view in views)))
    occurring = sorted(frozenset.union(*(view.token_ids for view in views)))
    return Panel(
        "Tokens",
        CAPTION + (PUSH_CAPTION if any(quantity.name == "push" for quantity in shown) else ""),
        render(
            "tokens.html",
            last=len(views) - 1,
            families=group_by_family(shown),
            left_out=describe_omissions(views, stored, vocabulary),
        ),
        data={
            "step": STEP,
            "levels": LEVELS,
            "context": CONTEXT_TOKENS,
            "quantities": [quantity._asdict() for quantity in shown],
            "vocabulary": pack_json({token: vocabulary[token] for token in occurring}),
            "iterations": [{"iteration": v.iteration, "packed": v.packed} for v in views],
        },
        assets=("tokens.css", "token_text.js", "tokens_data.js", "tokens_card.js", "tokens.js"),
    )


def choose_iterations(
    run: RunData, plans: dict[int, Any], stored: Sequence[int]
) -> list[PackedIteration]:
    """As many iterations as fit, first and last among them; never none."""
    made = {stored[-1]: pack_iteration(run, plans[stored[-1]])}
    like_the_last = MAX_PANEL_BYTES // len(made[stored[-1]].packed)
    number = max(1, min(len(stored), MAX_ITERATIONS, like_the_last))
    while True:
        chosen = spread_evenly(stored, number)
        made |= {i: pack_iteration(run, plans[i]) for i in chosen if i not in made}
        size = sum(len(made[i].packed) for i in chosen)
        if size <= MAX_PANEL_BYTES or number == 1:
            return [made[i] for i in chosen]
        number -= 1


def spread_evenly(stored: Sequence[int], number: int) -> list[int]:
    """`number` of them, evenly; one alone is the last.

    Example:
        >>> spread([1, 2, 3, 4, 5], 3), spread([1, 2, 3], 1)
        ([1, 3, 5], [3])
    """
    if number == 1:
        return [stored[-1]]
    places = np.linspace(0, len(stored) - 1, number).round().astype(int)
    return [stored[place] for place in dict.fromkeys(places.tolist())]


def pack_iteration(run: RunData, plan: dict[str, Any]) -> PackedIteration:
    trace = read_trace(run.path, plan["iteration"])
    pushes = read_pushes(run.path, plan["iteration"])
    kept = rows_that_fit(trace, pushes, plan)
    ids = trace.columns["token"]
    place_N = np.concatenate([np.arange(len(ids))[trace.row_spans[row]] for row in kept])
    shown = available_quantities(trace.columns)
    needed = dict.fromkeys(name for quantity in shown for name in quantity.columns)
    snippets, pushed = _pushes(trace, pushes, kept, plan)
    value = {
        **_rows(run, plan, trace, kept),
        "token": ids[place_N].tolist(),
        "columns": {name: quantise(trace.columns[name][place_N]) for name in needed},
        "unpulled": np.flatnonzero(tokens_without_gradient(trace.columns)[place_N]).tolist(),
        "full": {q.name: full_colour_size(quantity_values(q, trace.columns)) for q in shown},
        "pushes": pushed,
    }
    said = [token for told in value["told"] for _, tokens in told for token in tokens]
    occurring = {*value["token"], *said, *(t for _, _, around in snippets for t in around)}
    return PackedIteration(
        plan["iteration"],
        pack_json(value),
        len(kept),
        len(trace.row_spans),
        frozenset(occurring),
        frozenset(needed),
    )


def rows_that_fit(
    trace: IterationTrace, pushes: StoredPushes | None, plan: dict[str, Any]
) -> list[int]:
    """Rows of the plan in order; where they are too many, those of watched groups first, then
    those that the monitor looked at.
    """
    group_of = plan["group"]
    watched = {group_of[row] for row in pushes.rows} if pushes else set()
    taken: list[int] = []
    room = MAX_TOKENS
    moved = trace.columns.get("displacement")
    blank = {
        r
        for r, span in trace.row_spans.items()
        if moved is not None and np.isnan(moved[span]).all()
    }

    def rank(r: int) -> tuple[bool, bool, int, int]:
        return group_of[r] not in watched, r in blank, group_of[r], r

    for row in sorted(trace.row_spans, key=rank):
        span = trace.row_spans[row]
        room -= span.stop - span.start
        if room < 0 and taken:
            break
        taken.append(row)
    return sorted(taken, key=lambda row: (group_of[row], row))


def _rows(
    run: RunData, plan: dict[str, Any], trace: IterationTrace, kept: list[int]
) -> dict[str, Any]:
    """Parallel lists over all rows of the plan, so that a push from any of them can be named."""
    texts = run.texts_of_plan(plan)
    prompts = {
        group: make_visible(text.prompt, PROMPT_CHARACTERS)
        for group, text in zip(plan["group"], texts, strict=True)
        if text
    }
    step_of = {row: s for s, rows in enumerate(plan["steps"]) for row in rows}
    return {
        "kept": kept,
        "lengths": [trace.row_spans[row].stop - trace.row_spans[row].start for row in kept],
        "told": [text.environment_tokens if (text := texts[row]) else () for row in kept],
        "signal": sorted(trace.row_spans),
        "groups": [make_visible(name, PROMPT_CHARACTERS) for name in plan["groups"]],
        "prompts": [prompts.get(group) for group in range(len(plan["groups"]))],
        "group": plan["group"],
        "index": plan["index"],
        "step": [step_of[row] for row in range(len(plan["group"]))],
        "advantage": [round(A, 4) for A in plan["advantage"]],
        "reward": [text and text.reward for text in texts],
    }


def _pushes(
    trace: IterationTrace, pushes: StoredPushes | None, kept: list[int], plan: dict[str, Any]
) -> tuple[list[Any], dict[str, Any] | None]:
    """Pushes on the kept rows; a token that pushed from a row left out brings its neighbours."""
    if pushes is None:
        return [], None
    c = pushes.columns
    mine = np.flatnonzero(np.isin(c["row"], kept))
    mine = mine[np.lexsort((c["position"][mine], c["row"][mine]))]
    column = {name: c[name][mine].tolist() for name in c if name != "push"}
    here, snippets = set(kept), {}
    for row, position in zip(column["by_row"], column["by_position"], strict=True):
        if row not in here and (row, position) not in snippets:
            ids = trace.row_columns(row)["token"]
            start = max(0, position - CONTEXT_TOKENS)
            snippets[row, position] = [start, ids[start : position + CONTEXT_TOKENS + 1].tolist()]
    listed = [(f"{r}:{p}", start, around) for (r, p), (start, around) in snippets.items()]
    return listed, {**column, "push": quantise(c["push"][mine]), "snippets": listed}


def describe_omissions(
    views: Sequence[PackedIteration], stored: Sequence[int], vocabulary: Vocabulary
) -> str:
    said = []
    if len(views) < len(stored):
        said.append(
            f"{len(views)} of {len(stored)} updates are shown: the first, the last and evenly "
            f"spaced ones, as many as fit into {MAX_PANEL_BYTES / 1e6:g} MB."
        )
    if rows := sum(view.rows_stored - view.rows_shown for view in views):
        said.append(
            f"{rows} of {sum(view.rows_stored for view in views)} rollouts of these are left out: at "
            f"most about {MAX_TOKENS:,} tokens of an update are shown."
        )
    if said:
        said.append("`poise look` shows the others.")
    if not vocabulary.texts:
        said.append("The run has no vocabulary.json, so tokens are shown by number.")
    return " ".join(said)
