r"""The `word_problems` task: arithmetic word problems in English with worked solutions.

    problem    Ana has 31 dollars. She buys 4 pens for 3 dollars each. How many dollars are left?
    solution   The pens cost 4 * 3 = 12 dollars. There remain 31 - 12 = 19 dollars.
               The answer is \boxed{19}.

Twelve families, two to four steps, four levels:

    level   steps   numbers   factors   distractors
      1       2      to 12      to 5        none
      2     2 or 3   to 20      to 7        some
      3     3 or 4   to 40      to 9        some
      4       4      to 60      to 12       always

Train and held-out problems are disjoint by construction: the arithmetic skeleton of a problem
(family and calculations with their numbers, without names and wording) is hashed, and one skeleton
in eight belongs to the held-out split. No held-out problem is a training problem with other names.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from hashlib import blake2b

from counterpoise.seeds import seed_for
from counterpoise.task.events import add_distractor, add_event
from counterpoise.task.scene import Scene
from counterpoise.task.slips import with_slips
from counterpoise.task.story_families import FAMILIES
from counterpoise.task.task_prompts import TaskPrompts
from counterpoise.types import Prompt

LEVELS = (1, 2, 3, 4)
STEPS = {1: (2, 2), 2: (2, 3), 3: (3, 4), 4: (4, 4)}
DISTRACTOR_CHANCE = {1: 0.0, 2: 0.3, 3: 0.5, 4: 1.0}
HELDOUT_MODULUS = 8  # one skeleton in this many is held out


def load(
    levels: Sequence[int] = (3,),
    size: int = 4096,
    heldout: int = 256,
    seed: int = 0,
    slips: float = 0.0,
) -> TaskPrompts:
    """`size` training and `heldout` held-out problems that cycle through the levels."""
    return TaskPrompts(
        name="word_problems",
        train=[make_problem("train", index, levels, seed, slips) for index in range(size)],
        heldout=[make_problem("heldout", index, levels, seed) for index in range(heldout)],
    )


def make_problem(
    split: str, index: int, levels: Sequence[int] = LEVELS, seed: int = 0, slips: float = 0.0
) -> Prompt:
    """The `index`-th problem of a split: a pure function of its arguments."""
    level = levels[index % len(levels)]
    # Rejection sampling: about one story in eight belongs to the held-out split.
    for attempt in range(1000):
        rng = random.Random(seed_for(seed, f"word_problems/{split}/{level}", index, attempt))
        family = rng.choice(sorted(FAMILIES))
        scene = tell_story(family, level, rng)
        if split_of_skeleton(family, scene.skeleton) == split:
            story = " ".join([*scene.sentences, scene.question])
            numbers = [int(number) for number in re.findall(r"\d+", story)]
            steps = with_slips(scene.steps, numbers, rng, slips) if slips else scene.steps
            solution_lines = [str(step) for step in steps]
            return Prompt(
                id=f"word_problems/{split}/{index}",
                problem=story,
                answer=str(scene.value),
                solution=" ".join(
                    [*solution_lines, rf"The answer is \boxed{{{steps[-1].value}}}."]
                ),
                generic=scene.question,
            )
    raise RuntimeError(f"no {split} problem in 1000 draws at index {index}")


def tell_story(family: str, level: int, rng: random.Random) -> Scene:
    """A story of one family, extended by events to the number of steps of its level."""
    scene = Scene(rng, level)
    FAMILIES[family](scene)
    fewest, most = STEPS[level]
    steps = rng.randint(fewest, most)
    while len(scene.steps) < steps:
        add_event(scene, steps - len(scene.steps))
    if rng.random() < DISTRACTOR_CHANCE[level]:
        add_distractor(scene)
    return scene


def split_of_skeleton(family: str, skeleton: str) -> str:
    """The split that all problems with this arithmetic belong to."""
    digest = blake2b(f"{family}:{skeleton}".encode(), digest_size=4).digest()
    return "heldout" if int.from_bytes(digest, "big") % HELDOUT_MODULUS == 0 else "train"
