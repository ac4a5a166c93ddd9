r"""Wrong answers made from a reference answer: the verifier must give each of them 0.

    near misses  off by one, the sign, a digit, the reciprocal, a bracket, an entry changed
    parts        one of several answers alone, all but one, one too many
    echoes       the answer as an unevaluated computation: 11 as 10+1, \sqrt{121}
    unboxed      the right answer outside a box

Echoes are made only for references without variables, whose answer must be evaluated. A near miss
counts only if second_opinion.py finds it different from the reference.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from counterpoise.lab.verifier_audit.answer_forms import top_level_entries
from counterpoise.lab.verifier_audit.second_opinion import parse_answer, plain_text, same_answer

Form = tuple[str, str]

_INTEGER = re.compile(r"-?\d{1,9}", re.ASCII)
_FRACTION = re.compile(r"(-?)\\[dt]?frac\{(\d+)\}\{(\d+)\}", re.ASCII)
_CONSTANT = re.compile(r"(?:\\(?:frac|sqrt|pi|cdot|left|right)|[\d+*/^(){} .-])+")
_FORMULA = re.compile(r"\$([^$]{3,200})\$|\\\[(.{3,200}?)\\\]", re.DOTALL)


def near_misses(gold: str) -> list[Form]:
    """Wrong answers that look like the right one."""
    return [(name, text) for name, text in _candidate_misses(gold) if not same_answer(text, gold)]


def _candidate_misses(gold: str) -> Iterator[Form]:
    digits = list(re.finditer(r"\d", gold, re.ASCII))
    for digit_index, name in ((0, "first digit"), (-1, "last digit")):
        if digits:
            position = digits[digit_index].start()
            yield name, gold[:position] + str((int(gold[position]) + 1) % 10) + gold[position + 1 :]
    if _INTEGER.fullmatch(gold):
        yield "one more", str(int(gold) + 1)
        yield "ten times", gold + "0"
        yield "a digit more", gold + ".5"
    if re.match(r"[\d\\]", gold) and len(top_level_entries(gold)) == 1 and "\\text" not in gold:
        yield "sign", "-" + gold
    if match := _FRACTION.fullmatch(gold):
        yield "reciprocal", f"{match[1]}\\frac{{{match[3]}}}{{{match[2]}}}"
        yield "top alone", f"{match[1]}{match[2]}"
    if re.fullmatch(r"\(.*,.*\)", gold) and len(top_level_entries(gold)) == 1:
        entries = top_level_entries(gold[1:-1])
        yield "entries exchanged", f"({', '.join(entries[::-1])})"
        yield "entry missing", f"({', '.join(entries[:-1])})"
        # Only for increasing pairs, which may be intervals; a point has no closed form.
        if len(entries) == 2 and _increasing(entries):
            yield "closed", f"[{gold[1:-1]}]"


def _increasing(entries: list[str]) -> bool:
    low, high = (parse_answer(entry) for entry in entries)
    return low is not None and high is not None and low[1][0].real < high[1][0].real


def incomplete_lists(gold: str) -> list[Form]:
    """Too few or too many entries of a reference with several answers."""
    entries = top_level_entries(gold)
    if len(entries) < 2 or "where" in gold:  # "x, where x > 0" is one answer
        return []
    wrong = [
        ("first alone", entries[0]),
        ("last alone", entries[-1]),
        ("one missing", ", ".join(entries[:-1])),
        ("one too many", ", ".join([*entries, "123457"])),
    ]
    return [(name, text) for name, text in wrong if not same_answer(text, gold)]


def unevaluated_echoes(gold: str) -> Iterator[Form]:
    """The reference as a computation that is not carried out."""
    if _INTEGER.fullmatch(gold):
        number = int(gold)
        yield "sum", f"{number - 1} + 1"
        yield "difference", f"{number + 3} - 3"
        yield (
            "product",
            f"1 \\cdot {gold}" if number % 2 or not number else f"2 \\cdot {number // 2}",
        )
        yield "quotient", f"\\frac{{{2 * number}}}{{2}}"
        yield "equation", f"{number - 1} + 1 = {gold}"
        if 0 < number < 10_000:
            yield "root", f"\\sqrt{{{number * number}}}"
            yield "series", f"\\sum_{{k=1}}^{{{number}}} 1"
    elif match := _FRACTION.fullmatch(gold):
        yield (
            "sum",
            f"{match[1]}\\frac{{1}}{{{match[3]}}} + {match[1]}"
            + (f"\\frac{{{int(match[2]) - 1}}}{{{match[3]}}}"),
        )
        yield "product", f"{match[1]}{match[2]} \\cdot \\frac{{1}}{{{match[3]}}}"
    elif _CONSTANT.fullmatch(gold) and not re.search(r"[-+]", gold[1:]):
        yield "sum", f"{gold} + 2 - 2"
        yield "product", f"\\frac{{1}}{{2}} \\cdot 2 \\cdot {gold}"


def problem_formulas(problem: str, gold: str) -> list[str]:
    """Formulas of the problem that do not state the answer: what a policy might copy."""
    formulas = [
        next(filter(None, match.groups())).strip(" .,;?") for match in _FORMULA.finditer(problem)
    ]
    return [
        text
        for text in dict.fromkeys(formulas)
        if plain_text(text).rpartition("=")[2] != plain_text(gold)
    ]


def unboxed_responses(gold: str) -> list[Form]:
    """Whole responses that state the right answer without a box."""
    return [
        ("sentence", f"So the answer is {gold}."),
        ("formula", f"Hence $x = {gold}$."),
        ("cut off", f"The answer is $\\boxed{{{gold}"),
        ("bold", f"**Answer:** {gold}"),
    ]
