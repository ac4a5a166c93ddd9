"""Token weights of runs/embedded-rivals.toml: leave out what right and wrong rollouts share.

    w_t = 0   for shared tokens of the rollouts on the side `drop`,    else 1

    shared=token     the token occurs in a right and in a wrong rollout of the group
    shared=prefix    a right and a wrong rollout have this token after the same tokens

    drop=wrong       wrong rollouts: what negative token filtering does (arXiv:2606.17250)
    drop=right       right rollouts
    drop=both        both: what they share is not trained at all

Right and wrong are the signs of the advantage. It serves as an example of a weighting of one's own.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

SIDES = {"wrong": (-1,), "right": (1,), "both": (-1, 1)}


def weights(
    advantages: np.ndarray,
    groups: np.ndarray,
    tokens: Sequence[np.ndarray],
    *,
    shared: str = "token",
    drop: str = "both",
) -> list[np.ndarray]:
    """One array of weights [T] for each rollout."""
    signs = np.sign(advantages).astype(int)
    keys = [
        prefix_keys(tokens_T) if shared == "prefix" else tokens_T.tolist() for tokens_T in tokens
    ]
    rollout_weights = []
    for sign, group, keys_T in zip(signs, groups, keys, strict=True):
        others = {
            key
            for other in np.flatnonzero((groups == group) & (signs == -sign))
            for key in keys[other]
        }
        is_dropped = [sign in SIDES[drop] and key in others for key in keys_T]
        rollout_weights.append(1.0 - np.array(is_dropped, dtype=float))
    return rollout_weights


def prefix_keys(tokens_T: np.ndarray) -> list[Hashable]:
    """A key for each token that only the same token after the same tokens has."""
    content = tokens_T.astype(np.int32).tobytes()
    return [content[: 4 * (t + 1)] for t in range(len(tokens_T))]
