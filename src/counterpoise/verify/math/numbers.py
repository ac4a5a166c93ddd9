r"""Parse the number that a text states, and compare two of them.

A number is worked out when no operation is left to do:

    6   -6.50   1,234   .5   0.\overline{3}   3/4   \frac{3}{4}   1\frac{3}{4}   8.7e8
    8.7 \times 10^{8}   62.5%   \$6   6 apples   6 \text{ cm}^2   60^\circ   x = 6

`5+1`, `2 \cdot 3`, `\sqrt{36}`, `3!`, `2^3`, `6 or 7`, `5+1=6` and `six` are not numbers here.
`12/2` and `12 * 10^2` are parsed, marked `divisible` and `unnormalized`, and numbers_agree refuses
them unless the reference is written so too. A policy that is rewarded for boxing `5+6`
instead of 11 learns to echo the question.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from counterpoise.verify.math.latex import normalize_latex

MAX_ANSWER_CHARACTERS = 2_000  # a longer text is not an answer
LARGEST_EXPONENT = 1_000  # of scientific notation


@dataclass(frozen=True, slots=True)
class StatedNumber:
    """A number, and how it was written.

    Example:
        parse_number("x = 12/2")  ->  StatedNumber(value=6, name="x", divisible=True, ...)
    """

    value: Fraction
    name: str = ""  # the symbol it is assigned to: `x` of `x = 6`
    decimal: bool = False  # written with a decimal point, so compared up to rounding
    percent: bool = False  # written with a percent sign; `value` is the number before it
    divisible: bool = False  # a fraction whose value is a whole number: 12/2, 6/1
    scientific: bool = False
    unnormalized: bool = False  # scientific with a mantissa outside [1, 10): 12 * 10^2


_INT = r"(?:\d{1,3}(?:,\d{3})+|\d{1,3}(?:[ ]\d{3})+|\d+)"
_DIGITS = r"(?:\{([+-]?[\d,]+)\}|(\d))"
_FRAC = re.compile(rf"\\frac ?{_DIGITS} ?{_DIGITS}", re.ASCII)
_NAME = re.compile(
    r"(\\text\{[^{}\d]*\}|(?:\\[a-zA-Z]+ ?)?[a-zA-Z]*(?:_(?:\{[^{}]*\}|\w))?)(?:=|\\approx ?)"
)
_WRAP = re.compile(r"\\text\{([^{}]*)\}|\{([^{}]*)\}|\(([^(),]*)\)")
_NUMBER = re.compile(
    rf"""(?P<sign>[+-]?)\ ?(?:
        (?P<mixed_whole>{_INT})\ (?P<mixed_numerator>\d+)/(?P<mixed_denominator>\d+)
      | (?P<numerator>{_INT})/(?P<denominator>-?{_INT})
      | (?P<decimal>{_INT}(?:\.\d*)?|\.\d+)(?:\\overline\{{(?P<repeat>\d+)\}})?
        (?:[eE](?P<exponent_e>[+-]?\d+)
          |(?:\*|\ ?x\ ?)10\^(?:\{{(?P<exponent_braced>[+-]?\d+)\}}|(?P<exponent_bare>-?\d+)))?
    )(?P<percent>%|\ ?percent\b|\\text\{{\ ?percent\ ?\}})?(?:_10|_\{{10\}})?""",
    re.ASCII | re.VERBOSE,
)

# The units that may follow a number. Bare letters could be variables: `6x` is not 6, and `6m` in a
# reference answer is a product, so a reference may have units only as text.
_TEXT_UNIT = re.compile(r"\\text\{[^{}\d]*\}(?:\^\{?-?\d\}?)?")
_BARE_UNIT = re.compile(r"(?<![\\a-zA-Z])([a-zA-Z]+)(?:\^\{?-?\d\}?)?")
_SHORT_UNITS = re.compile(
    r"[msghLNJWVAKFC]|[cdkmn]m|[km]g|m[lLis]|k[JW]|Hz|[mk]ph|lbs?|oz|ft|yd|in|hrs?|cc|st|nd|rd|th"
)
_NOT_UNITS = re.compile(
    r"(?i)\b(or|and|to|not|plus|minus|times|over|mod|pi|sqrt|sin|cos|tan|log|ln|exp|inf\w*"
    r"|hundred|thousand|[mb]illion|trillion|dozen)\b"
)


def parse_number(text: str, bare_units: bool = True) -> StatedNumber | None:
    r"""The number that `text` states, or None. `bare_units=False` reads a reference answer.

    Example:
        >>> parse_number("\\frac{12}{8} \\text{ hours}").value
        Fraction(3, 2)
        >>> parse_number("5+6") is None
        True
    """
    if len(text) > MAX_ANSWER_CHARACTERS:
        return None
    text = normalize_latex(text)
    name = _NAME.match(text)
    if name:
        text = text[name.end() :]
    wrap = _WRAP.fullmatch(text)
    if wrap:
        text = normalize_latex(wrap.group(wrap.lastindex or 0))
    text = _FRAC.sub(r" \1\2/\3\4", text).strip()
    match = _NUMBER.match(text)
    if match is None or not _is_unit(text[match.end() :], bare_units):
        return None
    return _number_from_match(match, name.group(1) if name else "")


def numbers_agree(given: StatedNumber, reference: StatedNumber) -> bool:
    """|given - reference| = 0, or <= 5e-7 and <= |reference| / 1000 if either has a decimal point.

    Math-Verify compares six decimals too; the relative bound keeps 0.0 from passing for 7.4e-12.
    `8%` answers both 8 and 0.08. If both have a name, it must be the same. A division whose result
    is whole has to be carried out (12/2 does not answer 6), but other fractions need not be in
    lowest terms (2/4 answers 1/2). 12 * 10^2 is an unfinished product, unless the reference is in
    scientific notation too.
    """
    if given.name and reference.name and given.name != reference.name:
        return False
    if given.divisible and not reference.divisible:
        return False
    if given.unnormalized and not reference.scientific:
        return False
    rounding = min(Fraction(1, 2_000_000), abs(reference.value) / 1000)
    allowed = rounding if given.decimal or reference.decimal else Fraction(0)
    scales = [Fraction(1)]
    if given.percent != reference.percent:
        scales.append(Fraction(1, 100) if given.percent else Fraction(100))
    return any(abs(given.value * scale - reference.value) <= allowed for scale in scales)


def _is_unit(tail: str, bare_units: bool) -> bool:
    """Whether the text after a number is empty or only units."""
    if _NOT_UNITS.search(tail) or (tail.strip(" .") and not re.search("[a-zA-Z]", tail)):
        return False
    remaining = _TEXT_UNIT.sub(" ", tail)
    if bare_units:
        # "?" replaces letters that are no unit: the strip below keeps it, so the check fails.
        remaining = _BARE_UNIT.sub(lambda unit: " " if _is_word(unit.group(1)) else "?", remaining)
    return not remaining.strip(" /.*")


def _is_word(word: str) -> bool:
    """Whether letters are a known abbreviation or pronounceable: `apples`, not `xyz`."""
    if _SHORT_UNITS.fullmatch(word):
        return True
    return len(word) > 2 and not set("aeiouyAEIOUY").isdisjoint(word)


def _number_from_match(match: re.Match[str], name: str) -> StatedNumber | None:
    """The number of a `_NUMBER` match.

    None for a zero denominator, a huge exponent or a mixed number such as 1 7/4.
    """
    fields = {
        group_name: re.sub("[, ]", "", text or "") for group_name, text in match.groupdict().items()
    }
    sign = -1 if fields["sign"] == "-" else 1
    percent = bool(fields["percent"])
    if fields["mixed_whole"]:
        numerator, denominator = int(fields["mixed_numerator"]), int(fields["mixed_denominator"])
        if numerator >= denominator:  # 1 7/4 is not how anybody writes a mixed number
            return None
        mixed_value = int(fields["mixed_whole"]) + Fraction(numerator, denominator)
        return StatedNumber(sign * mixed_value, name, percent=percent)
    if fields["numerator"]:
        if int(fields["denominator"]) == 0:
            return None
        ratio = Fraction(int(fields["numerator"]), int(fields["denominator"]))
        return StatedNumber(sign * ratio, name, percent=percent, divisible=ratio.denominator == 1)
    digits, _, decimals = fields["decimal"].partition(".")
    value = Fraction(int(digits + decimals or 0), 10 ** len(decimals))
    if fields["repeat"]:  # 0.1(6) = 1/10 + 6/90
        value += Fraction(
            int(fields["repeat"]), (10 ** len(fields["repeat"]) - 1) * 10 ** len(decimals)
        )
    exponent = fields["exponent_e"] or fields["exponent_braced"] or fields["exponent_bare"]
    # Exact arithmetic with 10^(10^9) would exhaust memory.
    if abs(int(exponent or 0)) > LARGEST_EXPONENT:
        return None
    return StatedNumber(
        sign * value * Fraction(10) ** int(exponent or 0),
        name,
        decimal="." in fields["decimal"] and not fields["repeat"],
        percent=percent,
        scientific=bool(exponent),
        unnormalized=bool(exponent) and not 1 <= value < 10,
    )
