"""Only the tokens of highest entropy: by a sorted list, and where all are equal."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import tiny

from counterpoise.credit.high_entropy import weights
from counterpoise.credit.view import CreditView, PolicyReader
from counterpoise.errors import PoiseError

ROWS = tiny.rows(groups=3, size=4, seed=3)


def seen(*entropies: list[float]) -> SimpleNamespace:
    return SimpleNamespace(rows=entropies, entropies=[np.array(e, np.float32) for e in entropies])


@pytest.mark.parametrize("share", [0.2, 0.5, 1.0])
def test_the_formula(share: float) -> None:
    view = CreditView(ROWS, PolicyReader(tiny.policy(), 0.9))
    flat = sorted(float(x) for e_T in view.entropies for x in e_T)
    place = (1 - share) * (len(flat) - 1)
    low = int(place)
    edge = flat[low] + (place - low) * (flat[min(low + 1, len(flat) - 1)] - flat[low])
    found = weights(view, share=share)
    for w_T, e_T in zip(found, view.entropies, strict=True):
        assert w_T.tolist() == [1.0 if e >= edge else 0.0 for e in e_T]
    kept = sum(w_T.sum() for w_T in found)
    assert kept == pytest.approx(share * len(flat), abs=1)


def test_one_of_five() -> None:
    found = weights(seen([0.1, 2.0], [0.3, 0.2, 0.0]))  # the quantile is 0.3 + 0.2 * 1.7
    assert [w_T.tolist() for w_T in found] == [[0, 1], [0, 0, 0]]


def test_equal_entropies_are_all_kept_and_so_is_a_single_token() -> None:
    assert [w_T.tolist() for w_T in weights(seen([0.5, 0.5], [0.5]))] == [[1, 1], [1]]
    assert [w_T.tolist() for w_T in weights(seen([0.5]))] == [[1]]
    assert weights(CreditView([], None)) == []


@pytest.mark.parametrize("share", [0.0, -0.1, 1.1])
def test_a_share_of_nothing_is_refused(share: float) -> None:
    with pytest.raises(PoiseError, match="share"):
        weights(seen([0.5]), share=share)
