"""The learning rate of every optimizer step: a linear warm-up, then a decay.

    lr_k = lr * min(1, (k + 1) / W) * (s + (1 - s) f(p))        p = (k - W) / (N - W), within 0 to 1

    constant    f(p) = 1
    linear      f(p) = 1 - p
    cosine      f(p) = (1 + cos(pi p)) / 2

k = 0, 1, ... counts the optimizer steps that were taken, W = `update.warmup_steps`,
N = `loop.iterations` * `batch.steps`, s = `update.final_lr_share`. With `batch.rows_per_step`, N is
`loop.iterations` times the most steps that an iteration can take. The first step after the warm-up
has the full rate; s is what a step N would have. Steps that are skipped are not counted, nor are
those that an iteration does not take because reward balance waits or because rows lack signal: such
a run ends before N.
"""

from __future__ import annotations

import math

from counterpoise.config import UpdateConfig
from counterpoise.variants import SCHEDULES


def constant(progress: float) -> float:
    """f(p) = 1."""
    return 1.0


def linear(progress: float) -> float:
    """f(p) = 1 - p."""
    return 1.0 - progress


def cosine(progress: float) -> float:
    """f(p) = (1 + cos(pi p)) / 2. arXiv:1608.03983"""
    return (1.0 + math.cos(math.pi * progress)) / 2


def learning_rate_factor(options: UpdateConfig, steps_taken: int, total_steps: int) -> float:
    """lr_k / lr after `steps_taken` steps; `total_steps` = 0 means that N is unknown: no decay."""
    warmup_steps, final_share = options.warmup_steps, options.final_lr_share
    warmup_factor = min(1.0, (steps_taken + 1) / warmup_steps) if warmup_steps else 1.0
    if options.schedule == "constant" or not total_steps:
        return warmup_factor
    progress = (steps_taken - warmup_steps) / max(1, total_steps - warmup_steps)
    decay: float = SCHEDULES.load(options.schedule)(min(1.0, max(0.0, progress)))
    return warmup_factor * (final_share + (1.0 - final_share) * decay)
