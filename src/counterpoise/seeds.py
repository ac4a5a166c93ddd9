"""Every random choice of a run is a pure function of (run seed, stage, step, index).

There is no hidden global random state, so a resumed run needs none restored, a rollout does not
depend on how many others were drawn before it, and two stages never share a stream.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np


def seed_for(run_seed: int, stage: str, step: int = 0, index: int = 0) -> int:
    """A 63-bit seed for one choice of one stage.

    Example:
        >>> seed_for(0, "sample", step=3, index=7) == seed_for(0, "sample", step=3, index=7)
        True
        >>> seed_for(0, "sample", step=3, index=7) == seed_for(0, "compose", step=3, index=7)
        False
    """
    key = f"{run_seed}/{stage}/{step}/{index}".encode()
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "big") >> 1


def rng_for(run_seed: int, stage: str, step: int = 0, index: int = 0) -> np.random.Generator:
    """A numpy generator seeded by `seed_for`."""
    return np.random.default_rng(seed_for(run_seed, stage, step, index))
