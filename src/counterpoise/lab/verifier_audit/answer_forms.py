r"""Equivalent ways to write a reference answer: the verifier must give each of them 1.

    typography   \dfrac, spaces, \left( \right), dollar signs, a final full stop, \displaystyle
    numbers      1/2 for \frac{1}{2}, 0.5, 2/4, 1.0, 1,234, -\frac{..} for \frac{-..}, 1\frac{1}{2}
    wrappers     x = 5, \text{5}, 5 \text{ cm}, 60^\circ, 60, \$5, 5 dollars, 8\%
    lists        reordered sets, other spacing, \{..\}, "and"
    algebra      terms of a sum and sides of an equation exchanged, a factor moved behind

A form is made only if its meaning is beyond doubt: 2/4 for 1/2, but not 4/2 for 2, which the
verifier rejects as unfinished work. No form rounds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from fractions import Fraction

Form = tuple[str, str]  # name, text

_INTEGER = re.compile(r"-?\d+", re.ASCII)
_DECIMAL = re.compile(r"-?\d*\.\d+", re.ASCII)
_FRACTION = re.compile(r"(-?)\\[dt]?frac\{(\d+)\}\{(\d+)\}", re.ASCII)
_THOUSANDS = re.compile(r"-?(?:\\\$)?\d{1,3}(?:,(?:\\!)? ?\d{3})+", re.ASCII)
_SCIENTIFIC = re.compile(r"(-?\d(?:\.\d+)?) \\times 10\^\{(-?\d+)\}", re.ASCII)
_DEGREES = re.compile(r"(-?[\d.]+)\s*\^\s*\{?\\circ\}?", re.ASCII)
_MONEY = re.compile(r"\\\$\s*([\d.]+)", re.ASCII)
_UNIT = re.compile(r"(-?[\d.]+)\s*\\(?:text|mbox|mathrm)\{\s*([a-z ]+)\}(\^\d)?", re.ASCII)
_PERCENT = re.compile(r"(-?[\d.]+)\s*\\?%", re.ASCII)
_NAMED = re.compile(r"([a-zA-Z])\s*=\s*([^=]+)")
_WORDS = re.compile(r"\\text\{([A-Za-z ]+|\([A-Z]\))\}")


def equivalent_forms(gold: str) -> list[Form]:
    r"""All forms of `gold` whose text differs from it.

    Example:
        >>> forms = equivalent_forms("\\frac{3}{4}")
        >>> [text for name, text in forms if name in ("slash", "decimal")]
        ['3/4', '0.75']
    """
    candidates = [form for rule in FORM_RULES for form in rule(gold.strip())]
    return [(name, text) for name, text in candidates if text != gold]


def typography_forms(gold: str) -> Iterator[Form]:
    """Other LaTeX with the same look: spaces, brackets, braces."""
    yield "dollars", f"${gold}$"
    yield "displaystyle", f"\\displaystyle {gold}"
    yield "full stop", f"{gold}."
    yield "padded", f" \\, {gold} \\; "
    if "\\frac" in gold:
        yield "dfrac", gold.replace("\\frac", "\\dfrac")
        yield "tfrac", gold.replace("\\frac", "\\tfrac")
    if "\\left" in gold:
        yield "plain brackets", gold.replace("\\left", "").replace("\\right", "")
    elif re.fullmatch(r"[(\[].*,.*[)\]]", gold) and gold.count(",") < 4:
        yield "sized brackets", f"\\left{gold[:-1]}\\right{gold[-1]}"
    if " " in gold and "\\text" not in gold and not re.search(r"\\[a-zA-Z]+ |[a-z]{2,} ", gold):
        yield "no spaces", gold.replace(" ", "")
    if re.search(r"\^\d", gold):
        yield "braced powers", re.sub(r"\^(\d)", r"^{\1}", gold)
    if re.search(r"\\sqrt\{\d\}", gold):
        yield "bare root", re.sub(r"\\sqrt\{(\d)\}", r"\\sqrt\1", gold)


def number_forms(gold: str) -> Iterator[Form]:
    """Integers, decimals, thousands separators and scientific notation."""
    if _INTEGER.fullmatch(gold):
        yield "point zero", f"{gold}.0"
        yield from _number_wrappers(gold)
        if len(gold.lstrip("-")) > 3:
            yield "separators", f"{int(gold):,}"
            yield "braced separators", f"{int(gold):,}".replace(",", "{,}")
            yield "thin separators", f"{int(gold):,}".replace(",", "\\,")
    elif _DECIMAL.fullmatch(gold):
        exact = Fraction(gold)
        yield "another zero", f"{gold}0"
        if exact.denominator > 1:
            yield "fraction", f"\\frac{{{exact.numerator}}}{{{exact.denominator}}}"
        yield from _number_wrappers(gold)
    elif _THOUSANDS.fullmatch(gold):
        yield "no separators", re.sub(r"[^\d-]", "", gold)
    elif match := _SCIENTIFIC.fullmatch(gold):
        yield "e", f"{match[1]}e{match[2]}"
        yield "dot", f"{match[1]} \\cdot 10^{{{match[2]}}}"
        yield "times sign", f"{match[1]} × 10^{{{match[2]}}}"


def fraction_forms(gold: str) -> Iterator[Form]:
    """A fraction with a slash, not reduced, as a mixed number, as a decimal."""
    match = _FRACTION.fullmatch(gold)
    if match is None or int(match[3]) == 0:
        return
    sign, top, bottom = match[1], int(match[2]), int(match[3])
    yield "slash", f"{sign}{top}/{bottom}"
    yield "not reduced", f"{sign}\\frac{{{2 * top}}}{{{2 * bottom}}}"
    yield "named", f"x = {gold}"
    if sign:
        yield "sign above", f"\\frac{{-{top}}}{{{bottom}}}"
    if top < 10 and bottom < 10:
        yield "no braces", f"{sign}\\frac{top}{bottom}"
    if top > bottom and top % bottom:
        yield "mixed", f"{sign}{top // bottom}\\frac{{{top % bottom}}}{{{bottom}}}"
    # Only if the decimal is finite: a rounded answer is another answer.
    reduced = Fraction(top, bottom).denominator
    if 10**6 % reduced == 0 and reduced > 1:
        yield "decimal", sign + f"{top / bottom:.6f}".rstrip("0")


def wrapped_forms(gold: str) -> Iterator[Form]:
    """Degrees, money, units, percentages and words, with and without their wrapper."""
    if match := _DEGREES.fullmatch(gold):
        yield "no degrees", match[1]
        yield "degree sign", f"{match[1]}°"
        yield "braced degrees", f"{match[1]}^{{\\circ}}"
        yield "degrees in words", f"{match[1]} \\text{{ degrees}}"
    elif match := _MONEY.fullmatch(gold):
        yield "no dollar", match[1]
        yield "dollars in words", f"{match[1]} \\text{{ dollars}}"
    elif match := _UNIT.fullmatch(gold):
        yield "no unit", match[1]
        yield "bare unit", f"{match[1]} {match[2].strip()}{match[3] or ''}"
        yield "roman unit", f"{match[1]}\\,\\mathrm{{{match[2].strip()}}}{match[3] or ''}"
    elif match := _PERCENT.fullmatch(gold):
        yield "no percent", match[1]
        yield "percent in words", f"{match[1]} \\text{{ percent}}"
    elif match := _WORDS.fullmatch(gold):
        yield "bare words", match[1]
        yield "bold", f"\\textbf{{{match[1]}}}"


def list_forms(gold: str) -> Iterator[Form]:
    """Several answers with other spacing, in another order, as a set."""
    entries = top_level_entries(gold)
    if len(entries) < 2 or "where" in gold or _THOUSANDS.fullmatch(gold):
        return
    tight = ",".join(entries)
    yield "tight", tight if not _THOUSANDS.fullmatch(tight) else ", ".join(entries)
    yield "loose", ", ".join(entries)
    if all("=" not in entry for entry in entries):
        yield "reversed", ", ".join(entries[::-1])
        yield "rotated", ", ".join(entries[1:] + entries[:1])
        yield "set", "\\{" + ", ".join(entries) + "\\}"
        yield "and", ", ".join(entries[:-1]) + " \\text{ and } " + entries[-1]


def algebra_forms(gold: str) -> Iterator[Form]:
    """Exchanged terms, sides and factors."""
    sides = gold.split("=")
    if len(sides) == 2 and len(top_level_entries(gold)) == 1 and "\\text" not in gold:
        if re.search(r"[a-zA-Z]", sides[1]):
            yield "sides exchanged", f"{sides[1].strip()} = {sides[0].strip()}"
        assignment = _NAMED.fullmatch(gold)
        if assignment and _INTEGER.fullmatch(assignment[2].strip()):
            yield "no name", assignment[2].strip()
        return
    terms = re.fullmatch(r"([^-+=,{}()\\]+) ?([-+]) ?([^-+=,{}()\\]+)", gold)
    if terms:
        left, sign, right = (term.strip() for term in terms.groups())
        yield "terms exchanged", f"{'-' if sign == '-' else ''}{right} + {left}"
    product = re.fullmatch(r"(\d+) ?(\\sqrt\{\d+\}|\\pi)", gold)
    if product:
        yield "factor behind", f"{product[2]} \\cdot {product[1]}"
        yield "product sign", f"{product[1]} \\cdot {product[2]}"


FORM_RULES: tuple[Callable[[str], Iterator[Form]], ...] = (
    typography_forms, number_forms, fraction_forms, wrapped_forms, list_forms, algebra_forms,
)  # fmt: skip


def top_level_entries(gold: str) -> list[str]:
    """The entries between commas outside brackets; a single entry if it is not a list."""
    if _THOUSANDS.fullmatch(gold):
        return [gold]
    entries, depth, entry_start = [], 0, 0
    for index, character in enumerate(gold):
        depth += (character in "({[") - (character in ")}]")
        if character == "," and depth == 0:
            entries.append(gold[entry_start:index].strip())
            entry_start = index + 1
    return [*entries, gold[entry_start:].strip()]


def _number_wrappers(number: str) -> Iterator[Form]:
    """A plain number with a name, a unit, a font or brackets around it."""
    yield "named", f"x = {number}"
    yield "text", f"\\text{{{number}}}"
    yield "bold", f"\\mathbf{{{number}}}"
    yield "unit", f"{number} \\text{{ cm}}"
    yield "square unit", f"{number}\\text{{ cm}}^2"
    yield "round brackets", f"({number})"
