"""Time the math verifier on the answers of one iteration: 128 problems x 8 responses.

The time includes the start of the workers. The mix of references is that of MATH: three in four are
numbers, one in four is LaTeX that needs computer algebra. In each group of 8 answers, three are
right (one of them with other spaces if it has a sum or a list) and five are wrong in different
ways. Responses are up to 2,000 characters long.

    python -m counterpoise.lab.speed.verifier --problems 128 --group 8 --workers 2

Real references, and 10,000 responses of 6,000 characters, each with a first box after two thirds:

    python -m counterpoise.lab.speed.verifier --problems 1250 --characters 6000 --golds FILE.jsonl
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time
from pathlib import Path

from counterpoise.lab.verifier_audit.answer_forms import equivalent_forms
from counterpoise.terminal import echo
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
    """A like mix from files of references, with one right answer in another form.

    Wrong answers are references of other problems.
    """
    rng = random.Random(0)
    golds = [json.loads(line)["answer"] for file in files for line in file.read_text().splitlines()]
    responses, answers = [], []
    for problem in range(problems):
        gold = golds[problem % len(golds)]
        candidates = [
            gold,
            gold,
            rng.choice(equivalent_forms(gold))[1],
            *rng.choices(golds, k=group - 3),
        ]
        responses += [f"The answer is $\\boxed{{{answer}}}$." for answer in candidates[:group]]
        answers += [gold] * group
    return responses, answers


def lengthen_response(response: str, characters: int) -> str:
    """Put work and a first box before the response, as in long reasoning."""
    work = "Let us add the terms one by one: $\\frac{1}{2} + \\{3\\}$. "
    preamble = (work * (characters // len(work) + 1))[: max(0, characters - len(response) - 40)]
    box_position = 2 * len(preamble) // 3
    before_box, after_box = preamble[:box_position], preamble[box_position:]
    lengthened = f"{before_box} First try: \\boxed{{0}}. {after_box} {response}"
    return lengthened.ljust(characters)


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
        responses = [lengthen_response(response, options.characters) for response in responses]
    longest = max(len(response) for response in responses)
    echo(f"{len(responses)} responses of up to {longest} characters, {options.workers} workers")
    with MathVerifier(workers=options.workers) as verifier:
        for label in ("first call, workers start", "same answers again, cached"):
            start_time = time.perf_counter()
            scores = verifier.score(responses, answers)
            seconds = time.perf_counter() - start_time
            right = sum(scores.rewards) / len(scores.rewards)
            echo(f"{label:28s} {seconds:6.2f} s   {right:.1%} right   {scores.timeouts} timeouts")


if __name__ == "__main__":
    main()
