"""The records of lab/studies/flipping/measure.py as numbers with intervals over prompts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from counterpoise.statistics.bootstrap import Interval, Weights, bootstrap_interval
from counterpoise.statistics.finding import Number, Records

ARMS = ("joint", "positive_only")
OPTIMIZERS = ("adamw", "sgd")
SIGNS = {"positive": 1, "negative": -1}
FLIPPED_CLASS = {"positive": "suppressed", "negative": "boosted"}  # a move against the advantage
NUMBER_LABELS = {
    "difference": "boosted, positive minus negative rollouts",
    "flipped": "flipped, of all moved tokens",
    "positive": "flipped, positive rollouts, joint",
    "positive-only": "flipped, positive rollouts, positive-only",
    "lowered": "flipped, positive rollouts, joint minus positive-only",
    "removed": "of the flip share of positive rollouts, what positive-only takes away",
    "size": "mean |change|, negative over positive rollouts",
}


class MovementCounts:
    """Token counts of one optimizer and arm by prompt and sign, as weighted statistics."""

    def __init__(self, records: Records, optimizer: str, arm: str) -> None:
        mine = [
            r
            for r in records
            if r["panel"] == "step" and (r["optimizer"], r["arm"]) == (optimizer, arm)
        ]
        self.prompts = [r["prompt"] for r in mine]
        sign = np.array([SIGNS[r["sign"]] for r in mine])
        self.sign_masks = {name: sign == s for name, s in SIGNS.items()}
        self.counts = {
            name: np.array([r[name] for r in mine], dtype=np.float64)
            for name in ("tokens", "boosted", "suppressed", "moved")
        }

    def total(self, name: str, sign: str, w: Weights) -> float:
        return float((w * self.counts[name])[self.sign_masks[sign]].sum())

    def share(self, name: str, sign: str, w: Weights) -> float:
        return _ratio(self.total(name, sign, w), self.total("tokens", sign, w))

    def flip_share(self, w: Weights, signs: tuple[str, ...] = ("positive", "negative")) -> float:
        flipped = sum(self.total(FLIPPED_CLASS[sign], sign, w) for sign in signs)
        moved = sum(self.total(n, sign, w) for n in ("boosted", "suppressed") for sign in signs)
        return _ratio(flipped, moved)

    def difference(self, w: Weights) -> float:
        """Boosted share, positive minus negative rollouts."""
        return self.share("boosted", "positive", w) - self.share("boosted", "negative", w)

    def size_ratio(self, w: Weights) -> float:
        """Mean |delta|, negative over positive rollouts (Fig. 1 c)."""
        return _ratio(self.share("moved", "negative", w), self.share("moved", "positive", w))

    def interval(self, statistic: Callable[[Weights], float]) -> Interval:
        return bootstrap_interval(self.prompts, statistic)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else float("nan")


def step_numbers(records: Records) -> dict[str, Interval]:
    """What the verdict is about, by single AdamW updates; keys as NAMES."""
    joint, control = (MovementCounts(records, "adamw", arm) for arm in ARMS)
    of_positive = ("positive",)

    def lowered(w: Weights) -> float:
        return joint.flip_share(w, of_positive) - control.flip_share(w, of_positive)

    return {
        "difference": joint.interval(joint.difference),
        "flipped": joint.interval(joint.flip_share),
        "positive": joint.interval(lambda w: joint.flip_share(w, of_positive)),
        "positive-only": control.interval(lambda w: control.flip_share(w, of_positive)),
        "lowered": joint.interval(lowered),
        "removed": joint.interval(lambda w: _ratio(lowered(w), joint.flip_share(w, of_positive))),
        "size": joint.interval(joint.size_ratio),
    }


def run_means(records: Records) -> dict[str, float]:
    """Means over the iterations of the runs where something moved; the flip share of all weighs
    both signs alike."""
    share: dict[tuple[str, str], float] = {}
    boosted: dict[str, float] = {}
    for arm in ARMS:
        for sign in SIGNS:
            mine = [
                r for r in records if r["panel"] == "run" and r["arm"] == arm and r["sign"] == sign
            ]
            moved = [(r[FLIPPED_CLASS[sign]], r["boosted"] + r["suppressed"]) for r in mine]
            parts = [against / whole for against, whole in moved if whole]
            share[arm, sign] = float(np.mean(parts)) if parts else float("nan")
            if arm == "joint" and mine:
                boosted[sign] = float(np.mean([r["boosted"] for r in mine]))
    return {
        "difference": boosted.get("positive", np.nan) - boosted.get("negative", np.nan),
        "flipped": (share["joint", "positive"] + share["joint", "negative"]) / 2,
        "positive": share["joint", "positive"],
        "positive-only": share["positive_only", "positive"],
    }


def class_shares(records: Records) -> tuple[Number, ...]:
    numbers = []
    for optimizer in OPTIMIZERS:
        for arm in ARMS:
            moved = MovementCounts(records, optimizer, arm)
            for sign in SIGNS:
                for name in ("boosted", "suppressed"):
                    found = moved.interval(partial(moved.share, name, sign))
                    label = f"{name}, {sign} rollouts, {arm}, one {optimizer} step"
                    numbers.append(Number(label, *found, unit="share"))
    return tuple(numbers)
