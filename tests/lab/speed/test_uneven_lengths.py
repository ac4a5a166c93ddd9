"""The measurement of uneven lengths samples exactly the lengths that it draws."""

from __future__ import annotations

import numpy as np
import pytest

from counterpoise.lab.speed.uneven_lengths import draw_lengths, main


def test_most_lengths_are_short_and_few_are_long() -> None:
    lengths = draw_lengths(20_000, 700, 8192)
    assert np.mean(lengths) == pytest.approx(700, rel=0.03)
    assert np.median(lengths) == pytest.approx(700 * np.exp(-0.5), rel=0.03)
    assert (min(lengths) >= 1, max(lengths)) == (True, 8192)


def test_a_small_measurement(capsys: pytest.CaptureFixture[str]) -> None:
    """The measurement itself raises if a sampler's number of tokens is another."""
    sizes = {"prompts": 2, "group-size": 2, "mean": 4, "longest": 9, "rounds": 1}
    assert main([f"--{name}={size}" for name, size in sizes.items()])["ours"] > 0
    assert "4 rows" in capsys.readouterr().out
