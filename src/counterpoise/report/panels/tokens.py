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

from counterpoise.report.charts.quantise import LEVELS, STEP, quantised
from counterpoise.report.charts.quantities import available, by_family, full_colour, values_of
from counterpoise.report.charts.render import packed, render
from counterpoise.report.panels.panel import Panel
from counterpoise.report.run_data import RunData
from counterpoise.report.texts import visible
from counterpoise.report.traces import (
    Pushes,
    Trace,
    Vocabulary,
    read_pushes,
    read_trace,
    read_vocabulary,
    stored_iterations,
    unpulled,
)

BYTES = 4_000_000  # of the panel, packed
ITERATIONS = 40  # embedded, at most
TOKENS = 40_000  # of one iteration, at most
PROMPT = 600  # characters
CONTEXT = 8  # tokens on either side of one that pushed
CAPTION = "Every token the update was trained on, rollout by rollout."
PUSHES = (
    " Displacement is what the optimizer step did to its log-probability. Pushes say which tokens "
    "it came from: what each would do through the output layer, to first order and per unit of "
    "learning rate. Pick a token to see those that pushed it most."
)


class View(NamedTuple):
    """What the page holds of one iteration."""

    iteration: int
    packed: str
    rows: int  # whose tokens are in it
    stored: int  # whose tokens the run has
    tokens: frozenset[int]  # token ids that occur
    columns: frozenset[str]


def panel(run: RunData) -> Panel | None:
    plans = {plan["iteration"]: plan for plan in run.plans}
    stored = [i for i in stored_iterations(run.path) if i in plans]
    if not stored:
        return None
    views = choose(run, plans, stored)
    vocabulary = read_vocabulary(run.path)
    shown = available(frozenset.union(*(view.columns for view in views)))
    occurring = sorted(frozenset.union(*(view.tokens for view in views)))
    return Panel(
        "Tokens",
        CAPTION + (PUSHES if any(quantity.name == "push" for quantity in shown) else ""),
        render(
            "tokens.html",
            last=len(views) - 1,
            families=by_family(shown),
            left_out=left_out(views, stored, vocabulary),
        ),
        data={
            "step": STEP,
            "levels": LEVELS,
            "context": CONTEXT,
            "quantities": [quantity._asdict() for quantity in shown],
            "vocabulary": packed({token: vocabulary[token] for token in occurring}),
            "iterations": [{"iteration": v.iteration, "packed": v.packed} for v in views],
        },
        assets=("tokens.css", "token_text.js", "tokens_data.js", "tokens_card.js", "tokens.js"),
    )


def choose(run: RunData, plans: dict[int, Any], stored: Sequence[int]) -> list[View]:
    """As many iterations as fit, first and last among them; never none."""
    made = {stored[-1]: view_of(run, plans[stored[-1]])}
    like_the_last = BYTES // len(made[stored[-1]].packed)
    number = max(1, min(len(stored), ITERATIONS, like_the_last))
    while True:
        chosen = spread(stored, number)
        made |= {i: view_of(run, plans[i]) for i in chosen if i not in made}
        size = sum(len(made[i].packed) for i in chosen)
        if size <= BYTES or number == 1:
            return [made[i] for i in chosen]
        number -= 1


def spread(stored: Sequence[int], number: int) -> list[int]:
    """`number` of them, evenly; one alone is the last.

    Example:
        >>> spread([1, 2, 3, 4, 5], 3), spread([1, 2, 3], 1)
        ([1, 3, 5], [3])
    """
    if number == 1:
        return [stored[-1]]
    places = np.linspace(0, len(stored) - 1, number).round().astype(int)
    return [stored[place] for place in dict.fromkeys(places.tolist())]


def view_of(run: RunData, plan: dict[str, Any]) -> View:
    trace = read_trace(run.path, plan["iteration"])
    pushes = read_pushes(run.path, plan["iteration"])
    kept = rows_that_fit(trace, pushes, plan)
    ids = trace.columns["token"]
    place_N = np.concatenate([np.arange(len(ids))[trace.spans[row]] for row in kept])
    shown = available(trace.columns)
    needed = dict.fromkeys(name for quantity in shown for name in quantity.columns)
    snippets, pushed = _pushes(trace, pushes, kept, plan)
    value = {
        **_rows(run, plan, trace, kept),
        "token": ids[place_N].tolist(),
        "columns": {name: quantised(trace.columns[name][place_N]) for name in needed},
        "unpulled": np.flatnonzero(unpulled(trace.columns)[place_N]).tolist(),
        "full": {q.name: full_colour(values_of(q, trace.columns)) for q in shown},
        "pushes": pushed,
    }
    said = [token for told in value["told"] for _, tokens in told for token in tokens]
    occurring = {*value["token"], *said, *(t for _, _, around in snippets for t in around)}
    return View(
        plan["iteration"],
        packed(value),
        len(kept),
        len(trace.spans),
        frozenset(occurring),
        frozenset(needed),
    )


def rows_that_fit(trace: Trace, pushes: Pushes | None, plan: dict[str, Any]) -> list[int]:
    """Rows of the plan in order; where they are too many, those of watched groups first, then
    those that the monitor looked at.
    """
    group_of = plan["group"]
    watched = {group_of[row] for row in pushes.rows} if pushes else set()
    taken: list[int] = []
    room = TOKENS
    moved = trace.columns.get("displacement")
    blank = {
        r for r, span in trace.spans.items() if moved is not None and np.isnan(moved[span]).all()
    }

    def rank(r: int) -> tuple[bool, bool, int, int]:
        return group_of[r] not in watched, r in blank, group_of[r], r

    for row in sorted(trace.spans, key=rank):
        span = trace.spans[row]
        room -= span.stop - span.start
        if room < 0 and taken:
            break
        taken.append(row)
    return sorted(taken, key=lambda row: (group_of[row], row))


def _rows(run: RunData, plan: dict[str, Any], trace: Trace, kept: list[int]) -> dict[str, Any]:
    """Parallel lists over all rows of the plan, so that a push from any of them can be named."""
    texts = run.texts_of(plan)
    prompts = {
        group: visible(text.prompt, PROMPT)
        for group, text in zip(plan["group"], texts, strict=True)
        if text
    }
    step_of = {row: s for s, rows in enumerate(plan["steps"]) for row in rows}
    return {
        "kept": kept,
        "lengths": [trace.spans[row].stop - trace.spans[row].start for row in kept],
        "told": [text.told if (text := texts[row]) else () for row in kept],
        "signal": sorted(trace.spans),
        "groups": [visible(name, PROMPT) for name in plan["groups"]],
        "prompts": [prompts.get(group) for group in range(len(plan["groups"]))],
        "group": plan["group"],
        "index": plan["index"],
        "step": [step_of[row] for row in range(len(plan["group"]))],
        "advantage": [round(A, 4) for A in plan["advantage"]],
        "reward": [text and text.reward for text in texts],
    }


def _pushes(
    trace: Trace, pushes: Pushes | None, kept: list[int], plan: dict[str, Any]
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
            ids = trace.of(row)["token"]
            start = max(0, position - CONTEXT)
            snippets[row, position] = [start, ids[start : position + CONTEXT + 1].tolist()]
    listed = [(f"{r}:{p}", start, around) for (r, p), (start, around) in snippets.items()]
    return listed, {**column, "push": quantised(c["push"][mine]), "snippets": listed}


def left_out(views: Sequence[View], stored: Sequence[int], vocabulary: Vocabulary) -> str:
    said = []
    if len(views) < len(stored):
        said.append(
            f"{len(views)} of {len(stored)} updates are shown: the first, the last and evenly "
            f"spaced ones, as many as fit into {BYTES / 1e6:g} MB."
        )
    if rows := sum(view.stored - view.rows for view in views):
        said.append(
            f"{rows} of {sum(view.stored for view in views)} rollouts of these are left out: at "
            f"most about {TOKENS:,} tokens of an update are shown."
        )
    if said:
        said.append("`poise look` shows the others.")
    if not vocabulary.texts:
        said.append("The run has no vocabulary.json, so tokens are shown by number.")
    return " ".join(said)
