"""Put slips into worked solutions: some steps are wrong, and later steps build on them.

A model warmed up on flawless solutions is either certain or ignorant. With slips it learns the
arithmetic but stays unsure everywhere, like a base model: it solves most problems in some samples
and not in others, and RL learns from that difference.

There are two equally likely slips: the result is off by one, by ten, or in its last digit; or the
second operand is replaced by a number of the story (a division only has the first kind). Digit and
number are drawn at random and may happen to be the correct ones. No story has negative quantities,
so a step whose result would be negative is written correctly. The problem's reference answer stays
correct.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from counterpoise.task.scene import OPERATIONS, SolutionStep


def with_slips(
    steps: Sequence[SolutionStep], numbers: Sequence[int], rng: random.Random, rate: float
) -> list[SolutionStep]:
    """The same steps, each with a slip with probability `rate`; later steps use written results.

    Example:
        4 * 3 = 12, 31 - 12 = 19  ->  4 * 3 = 13, 31 - 13 = 18
    """
    # True result of an earlier step -> the written result. Operands are recognised by their value,
    # so a number of the story that happens to equal an earlier result is replaced as well.
    written_result: dict[int, int] = {}
    steps_with_slips = []
    for step in steps:
        left_operand = written_result.get(step.left, step.left)
        # The right operand of * and / comes from the story, never from an earlier step.
        right_operand = (
            step.right if step.sign in "*/" else written_result.get(step.right, step.right)
        )
        value = OPERATIONS[step.sign](left_operand, right_operand)
        if rng.random() < rate:
            if step.sign != "/" and rng.random() < 0.5:
                right_operand = rng.choice(numbers)
                value = OPERATIONS[step.sign](left_operand, right_operand)
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
        if value < 0:  # no story has negative quantities
            left_operand, right_operand, value = step.left, step.right, step.value
        written_result[step.value] = value
        steps_with_slips.append(
            SolutionStep(step.lead, left_operand, step.sign, right_operand, value, step.unit)
        )
    return steps_with_slips
