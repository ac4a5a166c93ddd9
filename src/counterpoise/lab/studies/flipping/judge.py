"""Statistics of the flipping study, with intervals over prompts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from counterpoise.statistics.bootstrap import Interval, Weights, bootstrap_interval
from counterpoise.statistics.finding import Number, Records

ARMS = ("joint", "positive_only")
OPTIMIZERS = ("adamw", "sgd")
SIGNS = {"positive": 1, "negative": -1}
FULL_BATCH = "all"  # rollouts of both signs together: the third column of Fig. 9
FLIPPED_CLASS = {"positive": "suppressed", "negative": "boosted"}  # a move against the advantage
NUMBER_LABELS = {
    "difference": "boosted, positive minus negative rollouts",
    "flipped": "flipped, of all moved tokens",
    "negative": "flipped, negative rollouts, joint",
    "positive": "flipped, positive rollouts, joint",
    "positive-only": "flipped, positive rollouts, positive-only",
    "lowered": "flipped, positive rollouts, joint minus positive-only",
    "removed": "of the flip share of positive rollouts, what positive-only takes away",
    "size": "mean |change|, negative over positive rollouts",
}


class MovementCounts:
    """Weighted statistics of the token counts of one optimizer and arm, by prompt and sign."""

    def __init__(self, records: Records, optimizer: str, arm: str) -> None:
        step_records = [
            record
            for record in records
            if record["panel"] == "step"
            and (record["optimizer"], record["arm"]) == (optimizer, arm)
        ]
        self.prompts = [record["prompt"] for record in step_records]
        direction_N = np.array([SIGNS[record["sign"]] for record in step_records])
        self.sign_masks = {sign: direction_N == direction for sign, direction in SIGNS.items()}
        self.sign_masks[FULL_BATCH] = direction_N != 0
        self.counts = {
            column: np.array([record[column] for record in step_records], dtype=np.float64)
            for column in ("tokens", "boosted", "suppressed", "moved")
        }

    def total(self, name: str, sign: str, weights: Weights) -> float:
        return float((weights * self.counts[name])[self.sign_masks[sign]].sum())

    def share(self, name: str, sign: str, weights: Weights) -> float:
        return _ratio(self.total(name, sign, weights), self.total("tokens", sign, weights))

    def flip_share(
        self, weights: Weights, signs: tuple[str, ...] = ("positive", "negative")
    ) -> float:
        num_flipped = sum(self.total(FLIPPED_CLASS[sign], sign, weights) for sign in signs)
        num_moved = sum(
            self.total(class_name, sign, weights)
            for class_name in ("boosted", "suppressed")
            for sign in signs
        )
        return _ratio(num_flipped, num_moved)

    def difference(self, weights: Weights) -> float:
        """Boosted share, positive minus negative rollouts."""
        return self.share("boosted", "positive", weights) - self.share(
            "boosted", "negative", weights
        )

    def size_ratio(self, weights: Weights) -> float:
        """Mean |delta|, negative over positive rollouts (Fig. 1 c)."""
        return _ratio(
            self.share("moved", "negative", weights), self.share("moved", "positive", weights)
        )

    def interval(self, statistic: Callable[[Weights], float]) -> Interval:
        return bootstrap_interval(self.prompts, statistic)


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else float("nan")


def step_numbers(records: Records) -> dict[str, Interval]:
    """The numbers that decide the verdict, from single AdamW updates; keys as in NUMBER_LABELS."""
    joint, control = (MovementCounts(records, "adamw", arm) for arm in ARMS)
    of_positive, of_negative = ("positive",), ("negative",)

    def lowered(weights: Weights) -> float:
        return joint.flip_share(weights, of_positive) - control.flip_share(weights, of_positive)

    return {
        "difference": joint.interval(joint.difference),
        "flipped": joint.interval(joint.flip_share),
        "negative": joint.interval(lambda weights: joint.flip_share(weights, of_negative)),
        "positive": joint.interval(lambda weights: joint.flip_share(weights, of_positive)),
        "positive-only": control.interval(lambda weights: control.flip_share(weights, of_positive)),
        "lowered": joint.interval(lowered),
        "removed": joint.interval(
            lambda weights: _ratio(lowered(weights), joint.flip_share(weights, of_positive))
        ),
        "size": joint.interval(joint.size_ratio),
    }


def run_means(records: Records) -> dict[str, float]:
    """Means over the iterations of the runs in which tokens moved.

    The flip share of all tokens is the mean of both signs.
    """
    share: dict[tuple[str, str], float] = {}
    boosted: dict[str, float] = {}
    for arm in ARMS:
        for sign in SIGNS:
            iteration_records = [
                record
                for record in records
                if record["panel"] == "run" and record["arm"] == arm and record["sign"] == sign
            ]
            # Iterations in which no token of this sign moved have no flip share.
            flip_counts = [
                (record[FLIPPED_CLASS[sign]], record["boosted"] + record["suppressed"])
                for record in iteration_records
            ]
            flip_shares = [
                against / moved_share for against, moved_share in flip_counts if moved_share
            ]
            share[arm, sign] = float(np.mean(flip_shares)) if flip_shares else float("nan")
            if arm == "joint" and iteration_records:
                boosted[sign] = float(np.mean([record["boosted"] for record in iteration_records]))
    return {
        "difference": boosted.get("positive", np.nan) - boosted.get("negative", np.nan),
        "flipped": (share["joint", "positive"] + share["joint", "negative"]) / 2,
        "negative": share["joint", "negative"],
        "positive": share["joint", "positive"],
        "positive-only": share["positive_only", "positive"],
    }


def class_shares(records: Records) -> tuple[Number, ...]:
    numbers = []
    for optimizer in OPTIMIZERS:
        for arm in ARMS:
            counts = MovementCounts(records, optimizer, arm)
            for sign in (*SIGNS, FULL_BATCH):
                for class_name in ("boosted", "suppressed"):
                    share_interval = counts.interval(partial(counts.share, class_name, sign))
                    label = f"{class_name}, {sign} rollouts, {arm}, one {optimizer} step"
                    numbers.append(Number(label, *share_interval, unit="share"))
    return tuple(numbers)
