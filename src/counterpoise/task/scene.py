"""A word problem under construction: names, items, numbers, sentences and worked steps."""

from __future__ import annotations

import random
from dataclasses import dataclass

GIRLS = ("Ana", "Mia", "Zoe", "Lena", "Nora", "Ruth", "Sara", "Tara", "Vera", "Emma", "Ida", "Joy")
BOYS = ("Ben", "Tom", "Max", "Leo", "Sam", "Paul", "Omar", "Ravi", "Hugo", "Ivan", "Kofi", "Liam")
ITEMS = (
    "apples", "pens", "books", "coins", "cards", "stamps", "shells", "stones", "cookies", "roses",
    "pears", "balls", "kites", "candles", "ribbons", "plums", "nuts", "buttons", "marbles", "toys",
    "melons", "cups", "hats", "maps",
)  # fmt: skip
CONTAINERS = ("boxes", "bags", "baskets", "jars", "shelves", "crates", "trays", "drawers")
PLACES = ("bakery", "library", "theater", "school", "garden shop", "bank", "museum", "hotel")
ELDERS = ("aunt", "uncle", "cousin", "teacher", "neighbor")

OPERATIONS = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a // b,
}


@dataclass(frozen=True, slots=True)
class SolutionStep:
    """One line of a worked solution: "They cost 3 * 4 = 12 dollars."."""

    lead: str  # "They cost"
    left: int
    sign: str
    right: int
    value: int
    unit: str

    def __str__(self) -> str:
        return f"{self.lead} {self.left} {self.sign} {self.right} = {self.value} {self.unit}."


class Scene:
    """One problem under construction. All randomness comes from the given generator.

    `value` is the quantity after the last step, `steps` the worked solution, `unit` what the value
    counts ("dollars").
    """

    def __init__(self, rng: random.Random, level: int) -> None:
        self.rng = rng
        self.level = level
        # The order of these draws is part of every problem: changing it changes all problems.
        is_girl = rng.random() < 0.5
        self.name = rng.choice(GIRLS if is_girl else BOYS)
        self.other = rng.choice([name for name in GIRLS + BOYS if name != self.name])
        self.He, self.he, self.him = ("She", "she", "her") if is_girl else ("He", "he", "him")
        self.unit = ""
        self.sentences: list[str] = []
        self.steps: list[SolutionStep] = []
        self.question = ""

    @property
    def value(self) -> int:
        return self.steps[-1].value

    @property
    def skeleton(self) -> str:
        """The calculations with their numbers, as "4*3;31-12": equal for problems that differ only
        in names and wording."""
        return ";".join(f"{step.left}{step.sign}{step.right}" for step in self.steps)

    # -- random choices ------------------------------------------------------------------------

    def pick(self, *options: str) -> str:
        return self.rng.choice(options)

    def pick_pair(self, options: tuple[tuple[str, str], ...]) -> tuple[str, str]:
        return self.rng.choice(options)

    def item(self) -> str:
        return self.rng.choice(ITEMS)

    def container(self) -> str:
        return self.rng.choice(CONTAINERS)

    def place(self) -> str:
        return self.rng.choice(PLACES)

    def elder(self) -> str:
        return self.rng.choice(ELDERS)

    def factor(self) -> int:
        """A price, a number of boxes: 2 to 5 at level 1, up to 12 at level 4."""
        return self.rng.randint(2, (5, 7, 9, 12)[self.level - 1])

    def quantity(self) -> int:
        """A number to add or subtract: 3 to 12 at level 1, up to 60 at level 4."""
        return self.rng.randint(3, (12, 20, 40, 60)[self.level - 1])

    def multiple(self) -> int:
        """How many times as old, 2 or 3, at all levels."""
        return self.rng.randint(2, 3)

    def quantity_below(self, bound: int) -> int:
        """A quantity less than `bound`, so that something is left after taking it."""
        most = min(bound - 1, (12, 20, 40, 60)[self.level - 1])
        return self.rng.randint(min(2, most), most)

    # -- text ----------------------------------------------------------------------------------

    def say(self, sentence: str) -> None:
        self.sentences.append(sentence)

    def ask(self, question: str) -> None:
        self.question = question

    def step(self, lead: str, left: int, sign: str, right: int, unit: str = "") -> None:
        value = OPERATIONS[sign](left, right)
        self.steps.append(SolutionStep(lead, left, sign, right, value, unit or self.unit))
