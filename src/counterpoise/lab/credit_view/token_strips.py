"""Every token with its weights, the rollouts of a prompt side by side.

The script has parallel lists over rows and over tokens; weights come with four digits. Prompts
with both signs come first; at most about TOKENS tokens are on the page, and a note says what is
missing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from counterpoise.lab.credit_view.result import CreditViewResult
from counterpoise.report.charts.quantities import full_colour_size
from counterpoise.report.charts.render import pack_json, render
from counterpoise.report.panels.panel import Panel
from counterpoise.report.texts import make_visible
from counterpoise.types import Ints, Row

MAX_TOKENS = 40_000
PROMPT_CHARACTERS = 1200  # characters
CAPTION = (
    "The rollouts of a prompt side by side. Blue with an edge above: weighed more than 1; orange "
    "with an edge below: less. By credit A w instead: pulled up, or pushed down."
)


def tokens_panel(result: CreditViewResult) -> Panel:
    rows = result.rows
    groups = groups_that_fit(rows)
    kept = [i for members in groups for i in members]
    pulls = [
        [row.advantage * w_T.astype(np.float64) for row, w_T in zip(rows, one.weights, strict=True)]
        for one in result.weighed
    ]
    weighings = []
    for one, pull in zip(result.weighed, pulls, strict=True):
        coloured = (np.concatenate(one.weights).astype(np.float64) - 1, np.concatenate(pull))
        weighings.append(
            {
                "label": one.asked.label,
                "full": [full_colour_size(x_N) for x_N in coloured],
                "span": [[float(x_N.min()), float(x_N.max())] for x_N in coloured],
            }
        )
    value = {
        "groups": [
            {
                "name": make_visible(rows[members[0]].group, 200),
                "prompt": make_visible(rows[members[0]].content.prompt, PROMPT_CHARACTERS),
                "rows": list(members),
            }
            for members in groups
        ],
        "rows": {
            i: {
                "advantage": round(rows[i].advantage, 4),
                "reward": rows[i].content.reward,
                "index": rows[i].index,
                "token": rows[i].content.response_tokens.tolist(),
                "told": [[at, tokens.tolist()] for at, tokens in rows[i].content.told],
                "weights": [round_weights(one.weights[i]) for one in result.weighed],
            }
            for i in kept
        },
    }
    texts = [t for i in kept for t in row_texts(rows[i])]
    occurring = sorted({token for tokens in texts for token in tokens.tolist()})
    return Panel(
        "Tokens",
        CAPTION,
        render("credit_tokens.html", labels=[w["label"] for w in weighings],
               left_out=describe_omissions(rows, groups, bool(result.vocabulary.texts))),
        data={
            "weighings": weighings,
            "vocabulary": pack_json({token: result.vocabulary[token] for token in occurring}),
            "packed": pack_json(value),
        },
        assets=("tokens.css", "credit.css", "token_text.js", "credit.js"),
    )  # fmt: skip


def row_texts(row: Row) -> list[Ints]:
    """Its own tokens, and what an environment told between them."""
    return [row.content.response_tokens, *(tokens for _, tokens in row.content.told)]


def round_weights(w_T: np.ndarray) -> list[float]:
    return [float(f"{w:.4g}") for w in w_T.tolist()]


def groups_that_fit(rows: Sequence[Row]) -> list[list[int]]:
    """Positions of the rows of each prompt, those with both signs first; never none."""
    found: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        found.setdefault(row.group, []).append(i)
    mixed = sorted(found.values(), key=lambda members: len({rows[i].sign for i in members}) < 2)
    kept: list[list[int]] = []
    room = MAX_TOKENS
    for members in mixed:
        room -= sum(rows[i].num_tokens for i in members)
        if room < 0 and kept:
            break
        kept.append(members)
    return kept


def describe_omissions(rows: Sequence[Row], groups: Sequence[Sequence[int]], known: bool) -> str:
    said = []
    every, kept = len({row.group for row in rows}), len(groups)
    if kept < every:
        said.append(
            f"{every - kept} of {every} prompts are left out: at most about {MAX_TOKENS:,} tokens are "
            "shown; --json has all."
        )
    if not known:
        said.append("There is no vocabulary.json, so tokens are shown by number.")
    return " ".join(said)
