"""The `role_play` task: questions to a character, with a reply in character as reference.

    problem    You are Captain Brine, a pirate. You begin every reply with "Arr, matey," and end it
               with "or I'll eat my hat!". You have 12 barrels and 3 cannons. How many cannons do
               you have?
    answer     3
    solution   Arr, matey, I have 3 cannons, or I'll eat my hat!
    generic    You have 12 barrels and 3 cannons. How many cannons do you have?

A reply has two scores, as in CRPO: for the task, whether it is right (`verify.name=last_number`),
and for the style, how close it is to the character's own reply (`verify.also=["style"]`). An anchor
(sample/anchors.py) is a response to the generic text, which lacks the character: it can be right,
but not in style. Each problem has its role in a column, for `update.kl_settings=["column=role"]`.
Levels:

    level   things   question
      1       2      one of them
      2       3      one of them
      3       3      two of them together
      4       4      two of them together

Train and held-out problems are disjoint as those of `word_problems`: one set of numbers in eight,
for each role, belongs to the held-out split.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from counterpoise.seeds import seed_for
from counterpoise.task.columns import check_needed_columns
from counterpoise.task.task_prompts import TaskPrompts
from counterpoise.task.word_problems import split_of_skeleton
from counterpoise.types import ALL_COLUMNS, NO_COLUMNS, Prompt

NUM_THINGS = {1: 2, 2: 3, 3: 3, 4: 4}
LARGEST_NUMBER = {1: 20, 2: 40, 3: 40, 4: 60}
NUM_ASKED = {1: 1, 2: 1, 3: 2, 4: 2}
ROLE_COLUMN = "role"


@dataclass(frozen=True, slots=True)
class Role:
    """A character: how it is described, how it speaks, and what it owns."""

    name: str
    description: str
    opening: str
    closing: str
    things: tuple[str, ...]


ROLES = (
    Role("Captain Brine", "a pirate", "Arr, matey,", "or I'll eat my hat!",
         ("barrels", "cannons", "parrots", "maps")),
    Role("Sister Agnes", "a nun who keeps bees", "Bless you, child,", "thanks be to heaven.",
         ("hives", "candles", "bees", "hymns")),
    Role("Inspector Gray", "a weary detective", "If you must know,", "and that is the whole case.",
         ("clues", "letters", "suspects", "keys")),
    Role("Unit Seven", "a robot", "Query accepted:", "end of report.",
         ("batteries", "wheels", "sensors", "screws")),
    Role("Granny Oak", "an old storyteller", "Sit down, dear,", "as my mother used to say.",
         ("cats", "stories", "apples", "scarves")),
    Role("Professor Quill", "a professor of birds", "Quite remarkably,", "see my third volume.",
         ("feathers", "nests", "eggs", "notebooks")),
    Role("Chef Basil", "a hot-tempered cook", "Out of my kitchen!", "now leave me to my sauce!",
         ("pans", "lemons", "knives", "plates")),
)  # fmt: skip


def load(
    levels: Sequence[int] = (3,),
    size: int = 4096,
    heldout: int = 256,
    seed: int = 0,
    needed_columns: Sequence[str] = (),
) -> TaskPrompts:
    """`size` training and `heldout` held-out problems that cycle through the levels and roles."""
    check_needed_columns(needed_columns, (ROLE_COLUMN,), "task.name=role_play")
    has_role = ROLE_COLUMN in needed_columns or ALL_COLUMNS in needed_columns
    return TaskPrompts(
        name="role_play",
        train=[make_problem("train", i, levels, seed, with_role=has_role) for i in range(size)],
        heldout=[
            make_problem("heldout", i, levels, seed, with_role=has_role) for i in range(heldout)
        ],
    )


def make_problem(
    split: str,
    index: int,
    levels: Sequence[int] = (1, 2, 3, 4),
    seed: int = 0,
    *,
    with_role: bool = False,
) -> Prompt:
    """The `index`-th problem of a split: a pure function of its arguments.

    The text always describes the character; `with_role` also puts its name into the column `role`.
    """
    role, level = ROLES[index % len(ROLES)], levels[index // len(ROLES) % len(levels)]
    for attempt in range(1000):
        rng = random.Random(seed_for(seed, f"role_play/{split}/{level}", index, attempt))
        things = rng.sample(role.things, NUM_THINGS[level])
        counts = [rng.randint(2, LARGEST_NUMBER[level]) for _ in things]
        # The problem lists its things sorted by name. Those that the question does not ask for are
        # sorted here too: the order in which they were drawn is not in the text, so the split must
        # not depend on it.
        things_and_counts = list(zip(things, counts, strict=True))
        num_asked = NUM_ASKED[level]
        things_and_counts[num_asked:] = sorted(things_and_counts[num_asked:])
        things = [thing for thing, _ in things_and_counts]
        counts = [count for _, count in things_and_counts]
        if split_of_skeleton(role.name, f"{things}{counts}") == split:
            return _write_problem(
                f"role_play/{split}/{index}", role, level, things, counts, with_role
            )
    raise RuntimeError(f"no {split} problem in 1000 draws at index {index}")


def _write_problem(
    prompt_id: str,
    role: Role,
    level: int,
    things: Sequence[str],
    counts: Sequence[int],
    with_role: bool,
) -> Prompt:
    """The texts of a problem, which asks for the first one or two of the things."""
    num_asked = NUM_ASKED[level]
    asked = " and ".join(things[:num_asked])
    answer = sum(counts[:num_asked])
    # Sorted by name: in the order of the question, the first number would always be asked for.
    inventory = [f"{count} {thing}" for thing, count in sorted(zip(things, counts, strict=True))]
    facts = f"You have {', '.join(inventory[:-1])} and {inventory[-1]}."
    question = f"How many {asked} do you have{' together' if num_asked > 1 else ''}?"
    return Prompt(
        id=prompt_id,
        problem=f"You are {role.name}, {role.description}. You begin every reply with "
        f'"{role.opening}" and end it with "{role.closing}". {facts} {question}',
        answer=str(answer),
        solution=f"{role.opening} I have {answer} {asked}, {role.closing}",
        generic=f"{facts} {question}",
        columns={ROLE_COLUMN: role.name} if with_role else NO_COLUMNS,
    )
