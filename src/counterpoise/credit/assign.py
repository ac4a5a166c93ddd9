"""Groups become rows: the advantage of each rollout, and the weights of its tokens.

A_{i,t} = A_i * w_{i,t}
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from counterpoise.config import RunConfig
from counterpoise.credit.reward_mixtures import RewardMixture
from counterpoise.credit.view import CreditView, PolicyReader
from counterpoise.errors import PoiseError, unknown_name
from counterpoise.plugins import display_name
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
) -> list[list[Row]]:
    """Rows of every group with A_i and w_{i,t}, in the order they were sampled."""
    return assign_weights(assign_advantages(groups, advantage), weights, settings, reader)


def assign_advantages(
    groups: Sequence[Group],
    advantage: str,
    mixture: RewardMixture = VERIFIER_ONLY,
    *,
    penalties: Mapping[str, NDArray[np.float64]] = MappingProxyType({}),
    mask_truncated: bool = False,
) -> list[list[Row]]:
    """Rows of every group with A_i, in the order they were sampled.

    `mixture` says which rewards count; `penalties` [G] by the key of a group are subtracted from
    its rewards. With `mask_truncated`, responses that were cut off count in their group's baseline,
    but have no advantage of their own and are masked.
    """
    ADVANTAGES.load(advantage)  # an unknown name fails even without groups
    rows_by_group = [
        _group_rows(group, mixture.advantages(group, advantage, penalties.get(group.key)))
        for group in groups
    ]
    if mask_truncated:
        rows_by_group = [[mask_if_truncated(row) for row in rows] for rows in rows_by_group]
    return rows_by_group


def assign_weights(
    rows_by_group: list[list[Row]],
    weights: str,
    settings: Sequence[str] = (),
    reader: PolicyReader | None = None,
) -> list[list[Row]]:
    """The same rows with w_{i,t}, by the named method.

    `settings` are those of the method, as "name=value"; `reader` computes the policy's
    log-probabilities for it.
    """
    weigh_tokens = TOKEN_WEIGHTS.load(weights)
    weighting_settings = parse_settings(weights, weigh_tokens, settings)
    if weights == UNIFORM:
        return rows_by_group
    return with_token_weights(rows_by_group, weigh_tokens, weighting_settings, reader)


def with_token_weights(
    rows_by_group: Sequence[Sequence[Row]],
    weigh_tokens: Callable[..., Sequence[Floats] | None],
    settings: Mapping[str, Any],
    reader: PolicyReader | None,
) -> list[list[Row]]:
    """The rows of every group, with token weights on those that have an advantage."""
    signal_rows = [row for group in rows_by_group for row in group if row.sign]
    view = CreditView(signal_rows, reader)
    weights = weigh_tokens(view, **settings)
    # The update needs the same log-probabilities: if the weighting made the pass, keep them.
    if reader and view.logprobs_if_read is not None:
        reader.keep_scores(signal_rows, view.logprobs_if_read)
    if weights is None:
        return [list(group) for group in rows_by_group]
    weights_by_name = {
        row.name: weights_T for row, weights_T in zip(signal_rows, weights, strict=True)
    }
    return [
        [replace(row, weights_T=weights_by_name.get(row.name)) for row in group]
        for group in rows_by_group
    ]


BOOLEANS = {"true": True, "false": False}
TYPE_PHRASES = {bool: "true or false", int: "a whole number", float: "a number", str: "a word"}


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
    for setting in settings:
        setting_name, equals, setting_value = (piece.strip() for piece in setting.partition("="))
        if not equals:
            raise PoiseError(f"{option}: '{setting}' is not name=value")
        if setting_name not in defaults:
            if not defaults:
                raise PoiseError(f"{option}: '{display_name(name)}' has no settings")
            kind = f"setting of {display_name(name)}"
            raise PoiseError(f"{option}: {unknown_name(kind, setting_name, defaults)}")
        value_type = type(defaults[setting_name])
        try:
            parsed[setting_name] = _parse_value(setting_value, value_type)
        except (KeyError, ValueError):
            raise PoiseError(
                f"{option}: {setting_name} is {TYPE_PHRASES[value_type]}, not '{setting_value}'"
            ) from None
    return parsed


def _parse_value(text: str, value_type: type) -> Any:
    """The value that a text stands for; KeyError or ValueError if it stands for none."""
    if value_type is bool:
        return BOOLEANS[text.lower()]
    value = value_type(text)
    # Every comparison with nan is false: the range checks of a method would let it pass.
    if value_type is float and math.isnan(value):
        raise ValueError("nan")
    return value


def check_settings(config: RunConfig) -> None:
    """Raise where credit.settings are not settings of credit.weights."""
    weighting_name = config.credit.weights
    parse_settings(weighting_name, TOKEN_WEIGHTS.load(weighting_name), config.credit.settings)


def mask_if_truncated(row: Row) -> Row:
    """The row; without advantage and masked if its response was cut off at the length limit."""
    is_truncated = row.content.finished is False
    return replace(row, advantage=0.0, masked=True) if is_truncated else row


def _group_rows(group: Group, advantages_G: NDArray[np.float64]) -> list[Row]:
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
