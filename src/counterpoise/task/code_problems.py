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
class InputKind:
    """A kind of input, with the steps and the return values that fit it.

    Each of these is a pair: a phrase for the problem's text, and a Python expression for the worked
    solution. {k} is a number from 2 to 5, {c} a letter.
    """

    parameter: str
    phrase: str  # what `solve` gets, in the problem's text
    setup: str  # the line before the first step; "" if the parameter is the list itself
    steps: Sequence[tuple[str, str]]
    returns: Sequence[tuple[str, str]]  # a chain ends in one of these
    make_input: Callable[[random.Random], Any]


def _make_numbers(rng: random.Random) -> list[int]:
    return [rng.randint(-9, 20) for _ in range(rng.randint(4, 9))]


def _make_text(rng: random.Random) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(4, 9)))


NUMBERS = InputKind(
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
TEXT = InputKind(
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
        input_kind = rng.choice((NUMBERS, TEXT))
        steps = [
            _fill(step, rng) for step in rng.sample(input_kind.steps, rng.randint(*STEPS[level]))
        ]
        return_step = _fill(rng.choice(input_kind.returns), rng)
        skeleton = ";".join(expression for _, expression in [*steps, return_step])
        if split_of_skeleton(input_kind.parameter, skeleton) != split:
            continue
        program = write_program(input_kind, steps, return_step)
        tests = write_tests(input_kind, program, rng)
        if tests:
            return Prompt(
                id=f"code_problems/{split}/{index}",
                problem=write_problem(input_kind, steps, return_step),
                answer=tests,
                solution=f"```python\n{program}```",
            )
    raise RuntimeError(f"no {split} problem in 1000 draws at index {index}")


def _fill(pair: tuple[str, str], rng: random.Random) -> tuple[str, str]:
    """The phrase and the expression with their number and letter."""
    # Both are always drawn, used or not: drawing fewer would change all problems.
    number, letter = rng.randint(2, 5), rng.choice(LETTERS)
    phrase, expression = (text.format(k=number, c=letter) for text in pair)
    return phrase, expression


def write_problem(
    input_kind: InputKind, steps: Sequence[tuple[str, str]], return_step: tuple[str, str]
) -> str:
    """The text that a model reads."""
    phrases = "; ".join(phrase for phrase, _ in [*steps, return_step])
    return (
        f"Write a Python function `solve({input_kind.parameter})` that gets {input_kind.phrase} "
        f"and does this, in order: {phrases}. Reply with the function in a ```python block."
    )


def write_program(
    input_kind: InputKind, steps: Sequence[tuple[str, str]], return_step: tuple[str, str]
) -> str:
    """The worked solution, one line for each step."""
    items = "words" if input_kind.setup else input_kind.parameter
    lines = [input_kind.setup] if input_kind.setup else []
    lines += [f"{items} = {expression}" for _, expression in steps]
    body = "".join(f"    {line}\n" for line in [*lines, f"return {return_step[1]}"])
    return f"def solve({input_kind.parameter}):\n{body}"


def write_tests(input_kind: InputKind, program: str, rng: random.Random) -> str:
    """Assertions on random inputs and on the empty one; "" if all expect the same value."""
    namespace: dict[str, Any] = {}
    exec(program, namespace)
    inputs = [input_kind.make_input(rng) for _ in range(NUM_TESTS - 1)]
    inputs.append(type(inputs[0])())
    expected = [repr(namespace["solve"](argument)) for argument in inputs]
    if len(set(expected)) == 1:
        return ""
    return "\n".join(
        f"assert solve({argument!r}) == {value}"
        for argument, value in zip(inputs, expected, strict=True)
    )
