"""Groups -> rows: the advantage of each rollout, and the weights of its tokens.

A_{i,t} = A_i * w_{i,t}
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from counterpoise.credit import ADVANTAGES, WEIGHTS
from counterpoise.credit.view import Reader, View
from counterpoise.errors import PoiseError, unknown
from counterpoise.types import Floats, Group, Row

UNIFORM = "uniform"


def assign(
    groups: Sequence[Group],
    advantage: str,
    weights: str = UNIFORM,
    settings: Sequence[str] = (),
    reader: Reader | None = None,
) -> list[list[Row]]:
    """Rows of every group, in the order they were sampled.

    `settings` are the weighting's own, as "name=value"; `reader` is who computes what it asks for.
    """
    advantages_of, weights_of = ADVANTAGES.load(advantage), WEIGHTS.load(weights)
    given = read_settings(weights, weights_of, settings)
    rows = [_rows(group, advantages_of(group.rewards_G)) for group in groups]
    return rows if weights == UNIFORM else weighed(rows, weights_of, given, reader)


def weighed(
    rows: Sequence[Sequence[Row]],
    weights_of: Callable[..., Sequence[Floats] | None],
    settings: Mapping[str, Any],
    reader: Reader | None,
) -> list[list[Row]]:
    """The rows of every group, those with signal with weights on their tokens."""
    signal = [row for group in rows for row in group if row.sign]
    found = weights_of(View(signal, reader), **settings)
    if found is None:
        return [list(group) for group in rows]
    weights = {(r.group, r.index): w_T for r, w_T in zip(signal, found, strict=True)}
    return [
        [replace(row, weights_T=weights.get((row.group, row.index))) for row in group]
        for group in rows
    ]


def read_settings(
    name: str, weights_of: Callable[..., Any], settings: Sequence[str]
) -> dict[str, Any]:
    """["share=0.3"] -> {"share": 0.3}: keyword arguments of the weighting, in their own types."""
    known = {
        p.name: p.default
        for p in inspect.signature(weights_of).parameters.values()
        if p.kind is p.KEYWORD_ONLY
    }
    found: dict[str, Any] = {}
    for text in settings:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals:
            raise PoiseError(f"credit.settings: '{text}' is not name=value")
        if key not in known:
            if not known:
                raise PoiseError(f"credit.settings: '{name}' has no settings")
            raise PoiseError(f"credit.settings: {unknown(f'setting of {name}', key, known)}")
        kind = type(known[key])
        try:
            found[key] = value == "true" if kind is bool else kind(value)
        except ValueError:
            raise PoiseError(
                f"credit.settings: {key} is a {kind.__name__}, not '{value}'"
            ) from None
    return found


def _rows(group: Group, advantages_G: Sequence[float]) -> list[Row]:
    return [
        Row(
            group=group.key,
            advantage=float(advantage),
            num_tokens=len(rollout.response_tokens),
            index=i,
            born=group.iteration,
            rollout=rollout,
        )
        for i, (rollout, advantage) in enumerate(zip(group.rollouts, advantages_G, strict=True))
    ]
