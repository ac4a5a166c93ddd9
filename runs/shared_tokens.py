"""Token weights of runs/embedded-rivals.toml: leave out what right and wrong rollouts share.

    w_t = 0   for shared tokens of the rollouts on the side `drop`,    else 1

    shared=token     the token occurs in a right and in a wrong rollout of the group
    shared=prefix    a right and a wrong rollout have this token after the same tokens
    shared=random    as many tokens of each rollout as shared=token leaves out, at random

    drop=wrong       wrong rollouts: with shared=token, credit.weights=negative_filter with the
                     setting support=group
    drop=right       right rollouts
    drop=both        both: what they share is not trained at all

Right and wrong are the signs of the advantage. It serves as an example of a weighting of one's own.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

SHARED = ("token", "prefix", "random")
SIDES = {"wrong": (-1,), "right": (1,), "both": (-1, 1)}


def weights(
    advantages: np.ndarray,
    groups: np.ndarray,
    tokens: Sequence[np.ndarray],
    iteration: int,
    *,
    shared: str = "token",
    drop: str = "both",
) -> list[np.ndarray]:
    """One array of weights [T] for each rollout."""
    if shared not in SHARED or drop not in SIDES:
        raise ValueError(f"shared is one of {', '.join(SHARED)}; drop one of {', '.join(SIDES)}")
    signs = np.sign(advantages).astype(int)
    keys = [
        prefix_keys(tokens_T) if shared == "prefix" else tokens_T.tolist() for tokens_T in tokens
    ]
    rollout_weights = []
    for index, (sign, group, keys_T) in enumerate(zip(signs, groups, keys, strict=True)):
        others = {
            key
            for other in np.flatnonzero((groups == group) & (signs == -sign))
            for key in keys[other]
        }
        is_dropped = np.array([sign in SIDES[drop] and key in others for key in keys_T])
        if shared == "random":
            is_dropped = np.random.default_rng((iteration, index)).permutation(is_dropped)
        rollout_weights.append(1.0 - is_dropped)
    return rollout_weights


def prefix_keys(tokens_T: np.ndarray) -> list[Hashable]:
    """A key for each token that only the same token after the same tokens has."""
    content = tokens_T.astype(np.int32).tobytes()
    return [content[: 4 * (t + 1)] for t in range(len(tokens_T))]
