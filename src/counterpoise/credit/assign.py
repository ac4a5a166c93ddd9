"""Groups -> rows: the advantage of each rollout, and the weights of its tokens.

A_{i,t} = A_i * w_{i,t}
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from counterpoise.config import RunConfig
from counterpoise.credit.reward_mixtures import RewardMixture
from counterpoise.credit.view import CreditView, PolicyReader
from counterpoise.errors import PoiseError, unknown
from counterpoise.types import Floats, Group, Row
from counterpoise.variants import ADVANTAGES, TOKEN_WEIGHTS

UNIFORM = "uniform"
VERIFIER_ONLY = RewardMixture()  # the verifier's reward alone


def assign(
    groups: Sequence[Group],
    advantage: str,
    weights: str = UNIFORM,
    settings: Sequence[str] = (),
    reader: PolicyReader | None = None,
    mixture: RewardMixture = VERIFIER_ONLY,
) -> list[list[Row]]:
    """Rows of every group, in the order they were sampled.

    `settings` are the weighting's own, as "name=value"; `reader` is who computes what it asks for;
    `mixture` says which rewards count.
    """
    ADVANTAGES.load(advantage)  # an unknown name is a fault also where there is no group
    weights_of = TOKEN_WEIGHTS.load(weights)
    given = parse_settings(weights, weights_of, settings)
    rows = [_rows(group, mixture.advantages(group, advantage)) for group in groups]
    return rows if weights == UNIFORM else with_token_weights(rows, weights_of, given, reader)


def with_token_weights(
    rows: Sequence[Sequence[Row]],
    weights_of: Callable[..., Sequence[Floats] | None],
    settings: Mapping[str, Any],
    reader: PolicyReader | None,
) -> list[list[Row]]:
    """The rows of every group, those with signal with weights on their tokens."""
    signal = [row for group in rows for row in group if row.sign]
    view = CreditView(signal, reader)
    found = weights_of(view, **settings)
    if reader and view.logprobs_if_read is not None:
        reader.scores.update(
            (r.name, x_T) for r, x_T in zip(signal, view.logprobs_if_read, strict=True)
        )
    if found is None:
        return [list(group) for group in rows]
    weights = {row.name: w_T for row, w_T in zip(signal, found, strict=True)}
    return [[replace(row, weights_T=weights.get(row.name)) for row in group] for group in rows]


BOOLEANS = {"true": True, "false": False}
KIND_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "a word"}


def parse_settings(
    name: str, method: Callable[..., Any], settings: Sequence[str], option: str = "credit.settings"
) -> dict[str, Any]:
    """["share=0.3"] -> {"share": 0.3}: keyword arguments of a method, in their own types."""
    known = {
        p.name: p.default
        for p in inspect.signature(method).parameters.values()
        if p.kind is p.KEYWORD_ONLY
    }
    found: dict[str, Any] = {}
    for text in settings:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals:
            raise PoiseError(f"{option}: '{text}' is not name=value")
        if key not in known:
            if not known:
                raise PoiseError(f"{option}: '{name}' has no settings")
            raise PoiseError(f"{option}: {unknown(f'setting of {name}', key, known)}")
        kind = type(known[key])
        try:
            found[key] = BOOLEANS[value.lower()] if kind is bool else kind(value)
        except (KeyError, ValueError):
            raise PoiseError(f"{option}: {key} is {KIND_NAMES[kind]}, not '{value}'") from None
    return found


def check_settings(config: RunConfig) -> None:
    """Raise where credit.settings are not settings of credit.weights."""
    name = config.credit.weights
    parse_settings(name, TOKEN_WEIGHTS.load(name), config.credit.settings)


def _rows(group: Group, advantages_G: NDArray[np.float64]) -> list[Row]:
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
