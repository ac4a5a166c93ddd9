"""A step's rows over passes and processes."""

from __future__ import annotations

import numpy as np

from counterpoise.hosts.trl.row_layout import lay_out_step


def test_every_row_has_one_place_and_sizes_differ_by_one() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        size, passes, processes = (int(rng.integers(1, n)) for n in (40, 6, 5))
        step = rng.permutation(100)[:size].tolist()
        lengths = rng.integers(1, 50, 100).tolist()
        cells = [cell for line in lay_out_step(step, lengths, passes, processes) for cell in line]
        assert len(cells) == passes * processes
        assert sorted(i for cell in cells for i in cell) == sorted(step)
        assert max(map(len, cells)) - min(map(len, cells)) <= 1
