"""order = s_0 s_2 s_4 ... s_5 s_3 s_1 with s the rows by length, cut into equal steps.

verl v0.6.1 to v0.8.0 order each rank's rows so, to put short micro-batches at both ends of a
pipeline, and then cut mini-batches from that order. With four steps or more the first and the last
update see only short rollouts and the middle ones only long, hence mostly right or mostly wrong
ones. Here as on one rank. verl sorts by 24576 L + L^2, which is the order of the lengths L; equal
lengths keep their order. L is the response's here, prompt and response together in verl: prompts of
uneven length make other steps there. Nothing is random: the seed is not used.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from counterpoise.types import Row


def compose(rows: Sequence[Row], num_steps: int, seed: int) -> list[list[int]]:
    by_length = np.argsort([row.num_tokens for row in rows], kind="stable")
    order = np.concatenate([by_length[::2], by_length[1::2][::-1]])
    return [step.tolist() for step in np.array_split(order, num_steps)]
