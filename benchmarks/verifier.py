"""How long one iteration's answers take: 128 problems x 8 responses, start-up of workers included.

The references mix what MATH mixes: three in four are numbers, one in four is LaTeX that needs
computer algebra. Of each group of 8, three answers are right (one of them written another way) and
five are wrong, all five different. Responses are up to 2,000 characters long.

    python benchmarks/verifier.py --problems 128 --group 8 --workers 2

Real references, and 10,000 responses of 6,000 characters each, a third of it after a first box:

    python benchmarks/verifier.py --problems 1250 --characters 6000 --golds math500.jsonl
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time
from pathlib import Path

from counterpoise.lab.verifier_audit.answer_forms import equivalent_forms
from counterpoise.verify.math.verifier import MathVerifier

NUMBERS = ["{}", "{}", "{}", "-{}", "\\frac{{{}}}{{7}}", "{}.5", "{}^\\circ", "\\${},000"]
LATEX = [
    "{}\\sqrt{{3}}",
    "\\frac{{{}\\pi}}{{2}}",
    "{}+2\\sqrt{{5}}",
    "({}, \\frac{{\\pi}}{{2}})",
    "x^2+{}x-6",
    "{}, 5, 7",
    "{}+2i",
    "(-\\infty, {})",
]


def make_batch(problems: int, group: int, latex_share: float) -> tuple[list[str], list[str]]:
    """Responses and reference answers, row by row."""
    rng = random.Random(0)
    responses, answers = [], []
    for problem in range(problems):
        templates = LATEX if rng.random() < latex_share else NUMBERS
        template, value = rng.choice(templates), 11 + problem
        gold = template.format(value)
        for index in range(group):
            if index < 3:
                answer = gold if index < 2 else re.sub(r"(\d) ?([+,])", r"\1 \2", gold)
            else:
                answer = template.format(value + 100 * index)
            work = "Let us add the terms one by one. " * rng.randrange(10, 60)
            responses.append(f"{work}The answer is $\\boxed{{{answer}}}$.")
            answers.append(gold)
    return responses, answers


def make_real_batch(problems: int, group: int, files: list[Path]) -> tuple[list[str], list[str]]:
    """The same mix from files of references: itself, itself, another form, others of the files."""
    rng = random.Random(0)
    golds = [json.loads(line)["answer"] for file in files for line in file.read_text().splitlines()]
    responses, answers = [], []
    for problem in range(problems):
        gold = golds[problem % len(golds)]
        written = [
            gold,
            gold,
            rng.choice(equivalent_forms(gold))[1],
            *rng.choices(golds, k=group - 3),
        ]
        responses += [f"The answer is $\\boxed{{{answer}}}$." for answer in written[:group]]
        answers += [gold] * group
    return responses, answers


def lengthened(response: str, characters: int) -> str:
    """The response with work before it, a box among it: what long reasoning looks like."""
    work = "Let us add the terms one by one: $\\frac{1}{2} + \\{3\\}$. "
    before = (work * (characters // len(work) + 1))[: max(0, characters - len(response) - 40)]
    cut = 2 * len(before) // 3
    return f"{before[:cut]} First try: \\boxed{{0}}. {before[cut:]} {response}".ljust(characters)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--problems", type=int, default=128)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--latex-share", type=float, default=0.25)
    parser.add_argument("--characters", type=int, default=0, help="lengthen responses to this")
    parser.add_argument("--golds", type=Path, nargs="+", help=".jsonl files with answers")
    options = parser.parse_args()
    if options.golds:
        responses, answers = make_real_batch(options.problems, options.group, options.golds)
    else:
        responses, answers = make_batch(options.problems, options.group, options.latex_share)
    if options.characters:
        responses = [lengthened(response, options.characters) for response in responses]
    longest = max(len(response) for response in responses)
    print(f"{len(responses)} responses of up to {longest} characters, {options.workers} workers")
    with MathVerifier(workers=options.workers) as verifier:
        for label in ("first call, workers start", "same answers again, cached"):
            start = time.perf_counter()
            scores = verifier.score(responses, answers)
            seconds = time.perf_counter() - start
            right = sum(scores.rewards) / len(scores.rewards)
            print(f"{label:28s} {seconds:6.2f} s   {right:.1%} right   {scores.timeouts} timeouts")


if __name__ == "__main__":
    main()
