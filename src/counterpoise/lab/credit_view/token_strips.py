"""Panel of every token with its weights, the rollouts of a prompt side by side.

The page's script gets parallel lists over rows and over tokens, with weights of four digits.
Prompts with advantages of both signs come first; at most about MAX_TOKENS tokens are on the page,
and a note says what is left out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from counterpoise.lab.credit_view.result import CreditViewResult
from counterpoise.report.charts.quantities import full_colour_size
from counterpoise.report.charts.render import pack_json, render
from counterpoise.report.panels.panel import Panel
from counterpoise.report.texts import make_visible
from counterpoise.types import Ints, Row, rows_by_group
from counterpoise.verify.scores import are_binary

MAX_TOKENS = 40_000
PROMPT_CHARACTERS = 1200
CAPTION = (
    "The rollouts of a prompt side by side. Blue with an edge above: weight above 1; orange with "
    "an edge below: weight below 1. When coloured by credit (advantage times weight): blue tokens "
    "are made more likely, orange ones less likely."
)


def tokens_panel(result: CreditViewResult) -> Panel:
    rows = result.rows
    groups = groups_that_fit(rows)
    is_graded = not are_binary(row.content.reward for row in rows)
    shown_rows = [row_index for members in groups for row_index in members]
    pulls = [
        [
            row.advantage * w_T.astype(np.float64)
            for row, w_T in zip(rows, weighting.weights, strict=True)
        ]
        for weighting in result.weightings
    ]
    weighings = []
    for weighting, pull in zip(result.weightings, pulls, strict=True):
        # A token is coloured by its weight relative to 1, or by its credit A w.
        coloured = (np.concatenate(weighting.weights).astype(np.float64) - 1, np.concatenate(pull))
        weighings.append(
            {
                "label": weighting.choice.label,
                "full": [full_colour_size(values_N) for values_N in coloured],
                "span": [[float(values_N.min()), float(values_N.max())] for values_N in coloured],
            }
        )
    payload = {
        "groups": [
            {
                "name": make_visible(rows[members[0]].group, 200),
                "prompt": make_visible(rows[members[0]].content.prompt, PROMPT_CHARACTERS),
                "outcome": group_outcome(
                    [rows[row_index].content.reward for row_index in members], is_graded=is_graded
                ),
                "rows": list(members),
            }
            for members in groups
        ],
        "rows": {
            row_index: {
                "advantage": round(rows[row_index].advantage, 4),
                "outcome": row_outcome(rows[row_index].content.reward, is_graded=is_graded),
                "index": rows[row_index].index,
                "token": rows[row_index].content.response_tokens.tolist(),
                "environment_tokens": [
                    [start, tokens.tolist()]
                    for start, tokens in rows[row_index].content.observations
                ],
                "weights": [
                    round_weights(weighting.weights[row_index]) for weighting in result.weightings
                ],
            }
            for row_index in shown_rows
        },
    }
    texts = [text for row_index in shown_rows for text in row_texts(rows[row_index])]
    # Only the texts of tokens that occur are embedded, not the whole vocabulary.
    occurring = sorted({token for tokens in texts for token in tokens.tolist()})
    return Panel(
        "Tokens",
        CAPTION,
        render(
            "credit_tokens.html",
            labels=[weighing["label"] for weighing in weighings],
            left_out=describe_omissions(rows, groups, bool(result.vocabulary.texts)),
        ),
        data={
            "weighings": weighings,
            "vocabulary": pack_json({token: result.vocabulary[token] for token in occurring}),
            "packed": pack_json(payload),
        },
        assets=("tokens.css", "credit.css", "token_text.js", "credit.js"),
    )


def group_outcome(rewards: Sequence[float], *, is_graded: bool) -> str:
    """What the rollouts of a prompt got: how many are right, or the mean of graded rewards.

    Example:
        >>> group_outcome([1.0, 0.0, 0.0], is_graded=False)
        '1 ✓ 2 ✗'
        >>> group_outcome([0.75, -0.25], is_graded=True)
        'mean reward 0.25'
    """
    if is_graded:
        return f"mean reward {sum(rewards) / len(rewards):.3g}"
    right = sum(reward > 0 for reward in rewards)
    return f"{right} ✓ {len(rewards) - right} ✗"


def row_outcome(reward: float, *, is_graded: bool) -> str:
    """The reward of a rollout, with a mark for right or wrong unless rewards are graded."""
    mark = "" if is_graded else "✓ " if reward > 0 else "✗ "
    return f"{mark}reward {reward:.4g}"


def row_texts(row: Row) -> list[Ints]:
    """The response's tokens, and those that an environment inserted between them."""
    return [row.content.response_tokens, *(tokens for _, tokens in row.content.observations)]


def round_weights(w_T: np.ndarray) -> list[float]:
    """The weights of a row with four significant digits."""
    return [float(f"{weight:.4g}") for weight in w_T.tolist()]


def groups_that_fit(rows: Sequence[Row]) -> list[list[int]]:
    """Row indices of each prompt, prompts with both signs first; at least one prompt."""
    # False sorts before True: prompts with both signs come first, otherwise the order is kept.
    ordered_groups = sorted(
        rows_by_group(rows).values(),
        key=lambda members: len({rows[row_index].sign for row_index in members}) < 2,
    )
    chosen_groups: list[list[int]] = []
    tokens_left = MAX_TOKENS
    for members in ordered_groups:
        tokens_left -= sum(rows[row_index].num_tokens for row_index in members)
        # One prompt is always shown, however long its rollouts are.
        if tokens_left < 0 and chosen_groups:
            break
        chosen_groups.append(members)
    return chosen_groups


def describe_omissions(
    rows: Sequence[Row], groups: Sequence[Sequence[int]], has_vocabulary: bool
) -> str:
    sentences = []
    num_prompts, num_shown = len({row.group for row in rows}), len(groups)
    if num_shown < num_prompts:
        sentences.append(
            f"{num_prompts - num_shown} of {num_prompts} prompts are left out: at most about "
            f"{MAX_TOKENS:,} tokens are shown; --json has all of them."
        )
    if not has_vocabulary:
        sentences.append("There is no vocabulary.json, so tokens are shown by number.")
    return " ".join(sentences)
