"""A row's positions count from its first token, not from the edge of its padding.

    position_t = (tokens of the row up to t) - 1

TRL hands the model a padded batch and no positions, and transformers then counts columns: a row
with n columns of padding before it is read n places further along than generation and the native
engine read it. Rotary attention sees differences of places alone, so the result is the same but for
the rounding of angles, which sharp attention makes large: one step's float32 gradient moved by
2e-5 of its norm for one column of padding, and by 2e-6 with these positions (docs/trl.md).

Only for the architectures of our own forward: others may count in ways of their own.
"""

from __future__ import annotations

from typing import Any

from counterpoise.policy.decoder import ARCHITECTURES


def from_first_token(model: Any) -> None:
    """Every later call of `model` with a mask and without positions gets them."""
    if model.config.model_type in ARCHITECTURES:
        model.register_forward_pre_hook(_add, with_kwargs=True)


def _add(module: Any, args: Any, given: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    mask_RT = given.get("attention_mask")
    counted = given.get("position_ids") is not None or given.get("past_key_values") is not None
    if mask_RT is None or mask_RT.dim() != 2 or counted:  # generation counts by itself
        return args, given
    places_RT = (mask_RT.long().cumsum(dim=1) - 1).clamp(min=0)
    return args, {**given, "position_ids": places_RT}
