"""Runs of arms that were never trained, for tests of what is concluded from them."""

from __future__ import annotations

from counterpoise.statistics.finding import Record


def run(
    arm: str,
    seed: int,
    heldout: list[float],
    updates: int,
    rate: float = 1e-4,
    **columns: float,
) -> list[Record]:
    """Iterations of 64 rollouts, `updates` each, evaluated at every one; success is 0.5."""
    about = {"arm": arm, "rate": rate, "seed": seed}
    beside = {"split": 0.5, "largest_sum": 1.0, "entropy": 0.2, "dropped": 0, **columns}
    return [
        {**about, "iteration": i, "updates": i * updates, "rollouts": 64 * i, "heldout": h,
         "success": 0.5 if i else None, **beside}
        for i, h in enumerate(heldout)
    ]  # fmt: skip
