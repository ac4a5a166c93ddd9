"""What a token can be coloured by, on the page and in the terminal.

    displacement    log p after the optimizer step the token was in, minus log p before
    push            what the output layer alone would do, to first order, per unit of SGD learning
                    rate (eq. 9)
                    = own + 8 parts, (same | other token) x (same | other query) x (+ | - rollouts)

Colour grows with the square root of |x|, because most tokens hardly move and a few move a lot; it
is full at the 98th percentile of the iteration's tokens.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

SAME, SIGNS = ("same", "other"), ("positive", "negative")
PARTS = tuple(f"{t}_token_{q}_query_{s}" for t, q, s in product(SAME, SAME, SIGNS))
FULL = 0.98  # quantile of |x| from which the colour is full


class Quantity(NamedTuple):
    """A number of every token: the sum of `columns` of tokens/.

    Example:
        Quantity("from_negative", "Pushes", "from negative rollouts", "...", columns=(...4 parts))
    """

    name: str  # what `poise look --by` calls it
    family: str
    title: str
    meaning: str
    columns: tuple[str, ...]
    signed: bool = True  # False: a size, drawn in one colour


def _parts(word: str) -> tuple[str, ...]:
    return tuple(part for part in PARTS if word in part)


def _title(part: str) -> str:
    """same_token_other_query_negative -> same token, other prompt, from −"""
    token, _, query, _, sign = part.split("_")
    return f"{token} token, {query} prompt, from {'+' if sign == 'positive' else '−'}"


QUANTITIES = (
    Quantity(
        "displacement",
        "Change",
        "displacement",
        "Change of the token's log-probability by the optimizer step it was in.",
        ("displacement",),
    ),
    Quantity(
        "push",
        "Pushes",
        "all pushes",
        "What the tokens of the step do to this one through the output layer, to first order and "
        "per unit of learning rate.",
        ("own", *PARTS),
    ),
    Quantity("own", "Pushes", "own", "The token's push on itself, by its own advantage.", ("own",)),
    Quantity("others", "Pushes", "from others", "All pushes but the token's own.", PARTS),
    *(
        Quantity(
            f"{same}_token",
            "Pushes",
            f"from {'equal' if same == 'same' else 'different'} tokens",
            "By tokens of the same type." if same == "same" else "By tokens of other types.",
            _parts(f"{same}_token"),
        )
        for same in SAME
    ),
    *(
        Quantity(
            f"{same}_query",
            "Pushes",
            "from the same prompt" if same == "same" else "from other prompts",
            f"By tokens in rollouts of {'the same prompt' if same == 'same' else 'other prompts'}.",
            _parts(f"{same}_query"),
        )
        for same in SAME
    ),
    *(
        Quantity(
            f"from_{sign}",
            "Pushes",
            f"from {sign} rollouts",
            f"By tokens whose advantage is {sign}.",
            _parts(sign),
        )
        for sign in SIGNS
    ),
    *(
        Quantity(part, "Single parts of the push", _title(part), "One of the eight parts.", (part,))
        for part in PARTS
    ),
    Quantity(
        "entropy",
        "Policy",
        "entropy",
        "Of the distribution the token was drawn from, in nats.",
        ("entropy",),
        signed=False,
    ),
    Quantity(
        "logprob",
        "Policy",
        "log-probability",
        "Of the token before the step: 0 is certain.",
        ("logprob",),
        signed=False,
    ),
    Quantity(
        "advantage", "Credit", "advantage", "What the loss multiplied the token by.", ("advantage",)
    ),
    Quantity(
        "value",
        "Credit",
        "value",
        "How much the token changed the chance of success, by sampling on from it.",
        ("value",),
    ),
)


def available(columns: Collection[str]) -> list[Quantity]:
    """Those a table with these columns can show."""
    return [q for q in QUANTITIES if all(name in columns for name in q.columns)]


def values_of(quantity: Quantity, columns: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
    """[N]"""
    return np.sum([columns[name] for name in quantity.columns], axis=0, dtype=np.float64)


def full_colour(values_N: NDArray[np.float64]) -> float:
    """The |x| from which the colour is full; 0 when there is nothing but zeros."""
    sizes = np.abs(values_N[np.isfinite(values_N)])
    if not len(sizes):
        return 0.0
    return float(np.quantile(sizes, FULL)) or float(sizes.max())


def strength(values: NDArray[np.float64], full: float) -> NDArray[np.float64]:
    """How much colour: 0 to 1."""
    if not full:
        return np.zeros_like(values)
    return np.sqrt(np.minimum(np.abs(np.nan_to_num(values)) / full, 1.0))


def by_family(quantities: Iterable[Quantity]) -> dict[str, list[Quantity]]:
    families: dict[str, list[Quantity]] = {}
    for quantity in quantities:
        families.setdefault(quantity.family, []).append(quantity)
    return families
