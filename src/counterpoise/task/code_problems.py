r"""The `code_problems` task: small Python functions to write, with tests and worked solutions.

    problem    Write a Python function `solve(numbers)` that gets a list of integers and does this,
               in order: keeps the even numbers; adds 3 to each number; returns the sum. ...
    answer     assert solve([1, 4, 6]) == 16
               ...
    solution   ```python
               def solve(numbers):
                   numbers = [n for n in numbers if n % 2 == 0]
                   ...

A problem is a chain of steps on a list of numbers or on the words of a text, and something to
return. Level n has chains of at most n steps (STEPS). `verify.name=code` runs the tests. Expected
values come from running the worked solution. Problems whose tests all expect the same value are not
made.

Train and held-out problems are disjoint by construction, as those of `word_problems`: a chain, with
its constants (`adds 3`) and what it returns, is hashed, and one in eight belongs to the held-out
split. Texts are not repeated, so level 1 has a few hundred problems only.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from counterpoise.seeds import seed_for
from counterpoise.task.task_prompts import TaskPrompts
from counterpoise.task.word_problems import split_of_skeleton
from counterpoise.types import Prompt

NUM_TESTS = 6
STEPS = {1: (1, 1), 2: (1, 2), 3: (2, 3), 4: (3, 4)}
LETTERS = "aeiorstlnd"
WORDS = (
    "river", "stone", "lamp", "garden", "winter", "pencil", "orange", "table", "silver", "letter",
    "mirror", "ladder", "summer", "basket", "island", "candle", "forest", "window", "button",
    "rocket", "a", "to", "in", "sea", "sun", "red", "old", "tea",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Subject:
    """A kind of input, with the steps and the return values that fit it.

    Each of these is a pair: a phrase for the problem's text, and a Python expression for the worked
    solution. {k} is a number from 2 to 5, {c} a letter.
    """

    parameter: str
    input_phrase: str  # what `solve` gets, in the problem's text
    setup: str  # the line before the first step; "" if the parameter is the list itself
    steps: Sequence[tuple[str, str]]
    returns: Sequence[tuple[str, str]]
    make_input: Callable[[random.Random], Any]


def _make_numbers(rng: random.Random) -> list[int]:
    return [rng.randint(-9, 20) for _ in range(rng.randint(4, 9))]


def _make_text(rng: random.Random) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(4, 9)))


NUMBERS = Subject(
    "numbers",
    "a list of integers",
    "",
    (
        ("keeps the even numbers", "[n for n in numbers if n % 2 == 0]"),
        ("keeps the odd numbers", "[n for n in numbers if n % 2 == 1]"),
        ("keeps the numbers above {k}", "[n for n in numbers if n > {k}]"),
        ("drops the multiples of {k}", "[n for n in numbers if n % {k} != 0]"),
        ("adds {k} to each number", "[n + {k} for n in numbers]"),
        ("multiplies each number by {k}", "[n * {k} for n in numbers]"),
        ("squares each number", "[n * n for n in numbers]"),
        ("replaces each number by its absolute value", "[abs(n) for n in numbers]"),
        ("reverses the list", "numbers[::-1]"),
        ("sorts the list from small to large", "sorted(numbers)"),
        ("removes repetitions, keeping the first of each", "list(dict.fromkeys(numbers))"),
        ("drops the first {k} numbers", "numbers[{k}:]"),
        ("keeps every second number, from the first on", "numbers[::2]"),
        (
            "replaces the list by the differences of neighbours, the later minus the earlier",
            "[b - a for a, b in zip(numbers, numbers[1:])]",
        ),
        (
            "replaces each number by the sum of all up to it",
            "[sum(numbers[: i + 1]) for i in range(len(numbers))]",
        ),
    ),
    (
        ("returns the list", "numbers"),
        ("returns the sum", "sum(numbers)"),
        ("returns the largest number, or 0 if there is none", "max(numbers, default=0)"),
        ("returns how many numbers are left", "len(numbers)"),
        ("returns how many different numbers are left", "len(set(numbers))"),
        ("returns the last number, or 0 if there is none", "numbers[-1] if numbers else 0"),
    ),
    _make_numbers,
)
TEXT = Subject(
    "text",
    "a text of words that are separated by spaces",
    "words = text.split()",
    (
        ("keeps the words of more than {k} letters", "[w for w in words if len(w) > {k}]"),
        ("keeps the words that contain the letter {c}", "[w for w in words if '{c}' in w]"),
        ("drops the words that begin with {c}", "[w for w in words if not w.startswith('{c}')]"),
        ("reverses each word", "[w[::-1] for w in words]"),
        ("writes each word in capitals", "[w.upper() for w in words]"),
        ("cuts each word after its first {k} letters", "[w[:{k}] for w in words]"),
        ("sorts the words alphabetically", "sorted(words)"),
        ("reverses the order of the words", "words[::-1]"),
        ("removes repetitions, keeping the first of each", "list(dict.fromkeys(words))"),
        ("drops the last {k} words", "words[:-{k}]"),
    ),
    (
        ("returns the words, joined by spaces", "' '.join(words)"),
        ("returns the list of words", "words"),
        ("returns the number of words", "len(words)"),
        ("returns the number of letters of all words", "sum(len(w) for w in words)"),
        ("returns the first letters of the words as one string", "''.join(w[0] for w in words)"),
        ("returns a dictionary of each word's count", "{{w: words.count(w) for w in words}}"),
    ),
    _make_text,
)  # fmt: skip


def load(
    levels: Sequence[int] = (3,), size: int = 4096, heldout: int = 256, seed: int = 0
) -> TaskPrompts:
    """At most `size` training and `heldout` held-out problems, each text once."""
    return TaskPrompts(
        name="code_problems",
        train=_make_split("train", size, levels, seed),
        heldout=_make_split("heldout", heldout, levels, seed),
    )


def _make_split(split: str, count: int, levels: Sequence[int], seed: int) -> list[Prompt]:
    prompts: dict[str, Prompt] = {}
    for index in range(count):
        prompt = make_problem(split, index, levels, seed)
        prompts.setdefault(prompt.problem, prompt)
    return list(prompts.values())


def make_problem(split: str, index: int, levels: Sequence[int] = (3,), seed: int = 0) -> Prompt:
    """The `index`-th problem of a split; the same arguments always give the same problem."""
    level = levels[index % len(levels)]
    for attempt in range(1000):
        rng = random.Random(seed_for(seed, f"code_problems/{split}/{level}", index, attempt))
        subject = rng.choice((NUMBERS, TEXT))
        steps = [_fill(step, rng) for step in rng.sample(subject.steps, rng.randint(*STEPS[level]))]
        final = _fill(rng.choice(subject.returns), rng)
        skeleton = ";".join(expression for _, expression in [*steps, final])
        if split_of_skeleton(subject.parameter, skeleton) != split:
            continue
        program = write_program(subject, steps, final)
        tests = write_tests(subject, program, rng)
        if tests:
            return Prompt(
                id=f"code_problems/{split}/{index}",
                problem=write_problem(subject, steps, final),
                answer=tests,
                solution=f"```python\n{program}```",
            )
    raise RuntimeError(f"no {split} problem in 1000 draws at index {index}")


def _fill(pair: tuple[str, str], rng: random.Random) -> tuple[str, str]:
    number, letter = rng.randint(2, 5), rng.choice(LETTERS)
    phrase, expression = (text.format(k=number, c=letter) for text in pair)
    return phrase, expression


def write_problem(
    subject: Subject, steps: Sequence[tuple[str, str]], final: tuple[str, str]
) -> str:
    """The text that a model reads."""
    phrases = "; ".join(phrase for phrase, _ in [*steps, final])
    return (
        f"Write a Python function `solve({subject.parameter})` that gets {subject.input_phrase} "
        f"and does this, in order: {phrases}. Reply with the function in a ```python block."
    )


def write_program(
    subject: Subject, steps: Sequence[tuple[str, str]], final: tuple[str, str]
) -> str:
    """The worked solution, one line for each step."""
    items = "words" if subject.setup else subject.parameter
    lines = [subject.setup] if subject.setup else []
    lines += [f"{items} = {expression}" for _, expression in steps]
    body = "".join(f"    {line}\n" for line in [*lines, f"return {final[1]}"])
    return f"def solve({subject.parameter}):\n{body}"


def write_tests(subject: Subject, program: str, rng: random.Random) -> str:
    """Assertions on random inputs and on the empty one; "" if all expect the same value."""
    names: dict[str, Any] = {}
    exec(program, names)
    inputs = [subject.make_input(rng) for _ in range(NUM_TESTS - 1)]
    inputs.append(type(inputs[0])())
    expected = [repr(names["solve"](argument)) for argument in inputs]
    if len(set(expected)) == 1:
        return ""
    return "\n".join(
        f"assert solve({argument!r}) == {value}"
        for argument, value in zip(inputs, expected, strict=True)
    )
