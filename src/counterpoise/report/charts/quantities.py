"""Quantities that tokens can be coloured by, on the page and in the terminal.

    displacement    log p after the optimizer step the token was in, minus log p before
    push            what the output layer alone would do, to first order, per unit of SGD learning
                    rate (eq. 9)
                    = own + 8 parts, (same | other token) x (same | other query) x (+ | - rollouts)

Colour strength grows with the square root of |x|, because most tokens hardly move and a few move a
lot. It is full from the 98th percentile of the iteration's tokens.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

RELATIONS, SIGNS = ("same", "other"), ("positive", "negative")
# Columns of tokens/, one for each of the eight parts of the push.
PUSH_PARTS = tuple(
    f"{token}_token_{query}_query_{sign}"
    for token, query, sign in product(RELATIONS, RELATIONS, SIGNS)
)
FULL_COLOUR_QUANTILE = 0.98  # quantile of |x| from which the colour is full


class TokenQuantity(NamedTuple):
    """A number that every token has: the sum of some columns of tokens/.

    Example:
        TokenQuantity("from_negative", "Pushes", "from negative rollouts", "...", (...4 parts))
    """

    name: str  # what `poise look --by` calls it
    family: str
    title: str
    meaning: str
    columns: tuple[str, ...]
    signed: bool = True  # False: never changes sign, drawn in one colour


def _push_parts_with(name_fragment: str) -> tuple[str, ...]:
    """The parts of the push whose name contains `name_fragment`."""
    return tuple(push_part for push_part in PUSH_PARTS if name_fragment in push_part)


def _push_part_title(push_part: str) -> str:
    """same_token_other_query_negative -> same token, other prompt, from −"""
    token_relation, _, query_relation, _, sign = push_part.split("_")
    sign_mark = "+" if sign == "positive" else "−"
    return f"{token_relation} token, {query_relation} prompt, from {sign_mark}"


QUANTITIES = (
    TokenQuantity(
        "displacement",
        "Change",
        "displacement",
        "How the optimizer step that trained on the token changed its log-probability.",
        ("displacement",),
    ),
    TokenQuantity(
        "push",
        "Pushes",
        "all pushes",
        "Effect of all tokens of the optimizer step on this token's log-probability, through the "
        "output layer, to first order and per unit of learning rate.",
        ("own", *PUSH_PARTS),
    ),
    TokenQuantity(
        "own", "Pushes", "own", "The token's push on itself, from its own advantage.", ("own",)
    ),
    TokenQuantity(
        "others", "Pushes", "from others", "All pushes except the token's own.", PUSH_PARTS
    ),
    *(
        TokenQuantity(
            f"{relation}_token",
            "Pushes",
            "from equal tokens" if relation == "same" else "from different tokens",
            f"Push from tokens with {'the same' if relation == 'same' else 'a different'} id.",
            _push_parts_with(f"{relation}_token"),
        )
        for relation in RELATIONS
    ),
    *(
        TokenQuantity(
            f"{relation}_query",
            "Pushes",
            "from the same prompt" if relation == "same" else "from other prompts",
            f"Push from rollouts of {'the same' if relation == 'same' else 'another'} prompt.",
            _push_parts_with(f"{relation}_query"),
        )
        for relation in RELATIONS
    ),
    *(
        TokenQuantity(
            f"from_{sign}",
            "Pushes",
            f"from {sign} rollouts",
            f"Push from tokens whose advantage is {sign}.",
            _push_parts_with(sign),
        )
        for sign in SIGNS
    ),
    *(
        TokenQuantity(
            push_part,
            "Single parts of the push",
            _push_part_title(push_part),
            "One of the eight parts whose sum is the push from all other tokens.",
            (push_part,),
        )
        for push_part in PUSH_PARTS
    ),
    TokenQuantity(
        "entropy",
        "Policy",
        "entropy",
        "Entropy of the distribution that the token was sampled from, in nats.",
        ("entropy",),
        signed=False,
    ),
    TokenQuantity(
        "logprob",
        "Policy",
        "log-probability",
        "Log-probability of the token before the step; 0 means certain.",
        ("logprob",),
        signed=False,
    ),
    TokenQuantity(
        "advantage", "Credit", "advantage", "Advantage of the token in the loss.", ("advantage",)
    ),
)


def available_quantities(columns: Collection[str]) -> list[TokenQuantity]:
    """Quantities that can be computed from these columns."""
    return [
        quantity for quantity in QUANTITIES if all(column in columns for column in quantity.columns)
    ]


def quantity_values(
    quantity: TokenQuantity, columns: Mapping[str, NDArray[Any]]
) -> NDArray[np.float64]:
    """The quantity of every token: [N]."""
    return np.sum(
        [columns[column_name] for column_name in quantity.columns], axis=0, dtype=np.float64
    )


def full_colour_size(values_N: NDArray[np.float64]) -> float:
    """The |value| from which the colour is full; 0 when all values are 0 or not finite."""
    sizes = np.abs(values_N[np.isfinite(values_N)])
    if not len(sizes):
        return 0.0
    # Where more than 98 % of the values are 0 the quantile is 0 too: use the largest value.
    return float(np.quantile(sizes, FULL_COLOUR_QUANTILE)) or float(sizes.max())


def colour_strength(values: NDArray[np.float64], full_size: float) -> NDArray[np.float64]:
    """Colour strength of each value, from 0 to 1."""
    if not full_size:
        return np.zeros_like(values)
    return np.sqrt(np.minimum(np.abs(np.nan_to_num(values)) / full_size, 1.0))


def group_by_family(quantities: Iterable[TokenQuantity]) -> dict[str, list[TokenQuantity]]:
    """Quantities by family, in the order in which the page lists them."""
    families: dict[str, list[TokenQuantity]] = {}
    for quantity in quantities:
        families.setdefault(quantity.family, []).append(quantity)
    return families
