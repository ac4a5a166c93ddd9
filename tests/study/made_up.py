"""Runs of arms that were never trained, for tests of what is concluded from them."""

from __future__ import annotations

from counterpoise.study.study import Record


def run(
    arm: str, seed: int, heldout: list[float], updates: int, rate: float = 1e-4
) -> list[Record]:
    """Two iterations of 64 rollouts, `updates` each, evaluated at every one."""
    about = {"arm": arm, "rate": rate, "seed": seed}
    curve = [
        {**about, "panel": "curve", "iteration": i, "updates": i * updates, "rollouts": 64 * i,
         "success": 0.5 if i else None, "heldout": h}
        for i, h in enumerate(heldout)
    ]  # fmt: skip
    rest = {"cancellation": None, "split": 0.5, "largest_sum": 1.0, "entropy": 0.2}
    return [*curve, {**about, "panel": "beside", **rest, "updates": 2 * updates}]
