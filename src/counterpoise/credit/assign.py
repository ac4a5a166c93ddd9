"""Groups become rows: the advantage of each rollout, and the weights of its tokens.

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
from counterpoise.errors import PoiseError, unknown_name
from counterpoise.types import Floats, Group, Row
from counterpoise.variants import ADVANTAGES, TOKEN_WEIGHTS

UNIFORM = "uniform"
VERIFIER_ONLY = RewardMixture()  # no extra rewards


def assign(
    groups: Sequence[Group],
    advantage: str,
    weights: str = UNIFORM,
    settings: Sequence[str] = (),
    reader: PolicyReader | None = None,
    mixture: RewardMixture = VERIFIER_ONLY,
) -> list[list[Row]]:
    """Rows of every group, in the order they were sampled.

    `settings` are those of the token weighting, as "name=value"; `reader` computes the policy's
    log-probabilities for it; `mixture` says which rewards count.
    """
    ADVANTAGES.load(advantage)  # an unknown name fails even without groups
    weights_of = TOKEN_WEIGHTS.load(weights)
    weighting_settings = parse_settings(weights, weights_of, settings)
    rows = [_rows(group, mixture.advantages(group, advantage)) for group in groups]
    return (
        rows
        if weights == UNIFORM
        else with_token_weights(rows, weights_of, weighting_settings, reader)
    )


def with_token_weights(
    rows: Sequence[Sequence[Row]],
    weights_of: Callable[..., Sequence[Floats] | None],
    settings: Mapping[str, Any],
    reader: PolicyReader | None,
) -> list[list[Row]]:
    """The rows of every group, with token weights on those that have an advantage."""
    signal_rows = [row for group in rows for row in group if row.sign]
    view = CreditView(signal_rows, reader)
    weights = weights_of(view, **settings)
    # The update needs the same log-probabilities: if the weighting made the pass, keep them.
    if reader and view.logprobs_if_read is not None:
        reader.scores.update(
            (r.name, x_T) for r, x_T in zip(signal_rows, view.logprobs_if_read, strict=True)
        )
    if weights is None:
        return [list(group) for group in rows]
    weights_by_name = {row.name: w_T for row, w_T in zip(signal_rows, weights, strict=True)}
    return [
        [replace(row, weights_T=weights_by_name.get(row.name)) for row in group] for group in rows
    ]


BOOLEANS = {"true": True, "false": False}
KIND_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "a word"}


def parse_settings(
    name: str, method: Callable[..., Any], settings: Sequence[str], option: str = "credit.settings"
) -> dict[str, Any]:
    """["share=0.3"] -> {"share": 0.3}: keyword arguments of `method`, converted to their types."""
    defaults = {
        parameter.name: parameter.default
        for parameter in inspect.signature(method).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    parsed: dict[str, Any] = {}
    for text in settings:
        key, equals, value = (piece.strip() for piece in text.partition("="))
        if not equals:
            raise PoiseError(f"{option}: '{text}' is not name=value")
        if key not in defaults:
            if not defaults:
                raise PoiseError(f"{option}: '{name}' has no settings")
            raise PoiseError(f"{option}: {unknown_name(f'setting of {name}', key, defaults)}")
        value_type = type(defaults[key])
        try:
            parsed[key] = BOOLEANS[value.lower()] if value_type is bool else value_type(value)
        except (KeyError, ValueError):
            raise PoiseError(
                f"{option}: {key} is {KIND_NAMES[value_type]}, not '{value}'"
            ) from None
    return parsed


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
