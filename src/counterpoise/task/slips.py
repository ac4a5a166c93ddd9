"""Worked solutions as a careless author writes them: some steps go wrong and are carried on.

A model warmed up on flawless solutions is either sure or ignorant. Warmed up on these it knows the
arithmetic and is unsure of it everywhere, as a base model is: most problems are solved by some of
its samples and not by others, and that difference is what RL learns from.

Two slips, equally likely: the result is off by one, by ten, or in its last digit; or an operand is
another number of the story. A result below zero is noticed, and that line is written as it should
have been. The problem's own answer stays right.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from counterpoise.task.scene import OPERATIONS, SolutionStep


def with_slips(
    steps: Sequence[SolutionStep], numbers: Sequence[int], rng: random.Random, rate: float
) -> list[SolutionStep]:
    """The same steps, each wrong with chance `rate`; later steps go on from what was written.

    Example:
        4 * 3 = 12, 31 - 12 = 19  ->  4 * 3 = 13, 31 - 13 = 18
    """
    written: dict[int, int] = {}  # true result of an earlier step -> what the author has for it
    slipped = []
    for step in steps:
        left = written.get(step.left, step.left)
        right = step.right if step.sign in "*/" else written.get(step.right, step.right)
        value = OPERATIONS[step.sign](left, right)
        if rng.random() < rate:
            if step.sign != "/" and rng.random() < 0.5:
                right = rng.choice(numbers)
                value = OPERATIONS[step.sign](left, right)
            else:
                value = rng.choice(
                    (
                        value - 1,
                        value + 1,
                        value - 10,
                        value + 10,
                        value - value % 10 + rng.randrange(10),
                    )
                )
        if value < 0:
            left, right, value = step.left, step.right, step.value
        written[step.value] = value
        slipped.append(SolutionStep(step.lead, left, step.sign, right, value, step.unit))
    return slipped
