"""The turns of a response in which an environment's tokens are masked out."""

from __future__ import annotations

import numpy as np

from counterpoise.hosts.turns import split_turns


def test_observations_stand_before_the_turn_that_reads_them() -> None:
    tokens = np.array([5, 6, 7, 8, 9, 3], np.int64)
    turns = split_turns(tokens, np.array([True, True, False, False, True, False]))
    assert [(t.start, t.observation.tolist(), t.action) for t in turns] == [
        (0, [], (0, 2)),
        (2, [7, 8], (2, 3)),
    ]
    assert split_turns(tokens, np.ones(6, bool)) == ()
    (only,) = split_turns(tokens[:2], np.array([False, True]))
    assert (only.start, only.observation.tolist(), only.action) == (0, [5], (0, 1))
