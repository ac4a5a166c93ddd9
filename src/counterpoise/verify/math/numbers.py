r"""text -> the number it states, if it states one in evaluated form; else None.

A number is evaluated when nothing is left to work out:

    6   -6.50   1,234   .5   0.\overline{3}   3/4   \frac{3}{4}   1\frac{3}{4}   8.7e8
    8.7 \times 10^{8}   62.5%   \$6   6 apples   6 \text{ cm}^2   60^\circ   x = 6

`5+1`, `2 \cdot 3`, `\sqrt{36}`, `3!`, `2^3`, `6 or 7`, `5+1=6` and `six` are not numbers here.
A policy that may box `5+6` for 11 learns to echo the question.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from counterpoise.verify.math.latex import normalize_latex

MAX_ANSWER_CHARACTERS = 2_000  # characters; what is longer is not an answer
LARGEST_EXPONENT = 1_000  # of scientific notation


@dataclass(frozen=True, slots=True)
class StatedNumber:
    """A number as written.

    Example:
        number("x = 12/2")  ->  StatedNumber(value=6, name="x", decimal=False, undivided=True, ...)
    """

    value: Fraction
    name: str = ""  # the symbol it is assigned to
    decimal: bool = False  # written with a point: equal up to rounding
    percent: bool = False  # `value` is what stands before the sign
    divisible: bool = False  # a fraction that is a whole number: 12/2, 6/1
    scientific: bool = False
    unnormalized: bool = False  # scientific, with a mantissa outside [1, 10): 12 * 10^2


_INT = r"(?:\d{1,3}(?:,\d{3})+|\d{1,3}(?:[ ]\d{3})+|\d+)"
_DIGITS = r"(?:\{([+-]?[\d,]+)\}|(\d))"
_FRAC = re.compile(rf"\\frac ?{_DIGITS} ?{_DIGITS}", re.ASCII)
_NAME = re.compile(
    r"(\\text\{[^{}\d]*\}|(?:\\[a-zA-Z]+ ?)?[a-zA-Z]*(?:_(?:\{[^{}]*\}|\w))?)(?:=|\\approx ?)"
)
_WRAP = re.compile(r"\\text\{([^{}]*)\}|\{([^{}]*)\}|\(([^(),]*)\)")
_NUMBER = re.compile(
    rf"""(?P<sign>[+-]?)\ ?(?:
        (?P<whole>{_INT})\ (?P<top>\d+)/(?P<under>\d+)
      | (?P<over>{_INT})/(?P<below>-?{_INT})
      | (?P<decimal>{_INT}(?:\.\d*)?|\.\d+)(?:\\overline\{{(?P<repeat>\d+)\}})?
        (?:[eE](?P<e>[+-]?\d+)|(?:\*|\ ?x\ ?)10\^(?:\{{(?P<power>[+-]?\d+)\}}|(?P<digit>-?\d+)))?
    )(?P<percent>%|\ ?percent\b|\\text\{{\ ?percent\ ?\}})?(?:_10|_\{{10\}})?""",
    re.ASCII | re.VERBOSE,
)

# What may follow a number. Bare letters could be variables: `6x` is not 6, and in a reference
# answer `6m` is a product, so references may carry units only as text.
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
        >>> number("\\frac{12}{8} \\text{ hours}").value
        Fraction(3, 2)
        >>> number("5+6") is None
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


def numbers_agree(answer: StatedNumber, gold: StatedNumber) -> bool:
    """|answer - gold| = 0; where one has a point, <= 5e-7 and <= |gold| / 1000.

    Six decimals are what Math-Verify compares; the relative part keeps 0.0 from passing for
    7.4e-12. `8%` answers both 8 and 0.08. Two names must be the same one. A division that comes
    out whole has to be carried out (12/2 is not 6), other fractions need no lowest terms (2/4 is
    1/2), and 12 * 10^2 is a product left undone, unless the reference is scientific too.
    """
    if answer.name and gold.name and answer.name != gold.name:
        return False
    if answer.divisible > gold.divisible or answer.unnormalized > gold.scientific:
        return False
    rounding = min(Fraction(1, 2_000_000), abs(gold.value) / 1000)
    allowed = rounding if answer.decimal or gold.decimal else Fraction(0)
    scales = [Fraction(1)]
    if answer.percent != gold.percent:
        scales.append(Fraction(1, 100) if answer.percent else Fraction(100))
    return any(abs(answer.value * scale - gold.value) <= allowed for scale in scales)


def _is_unit(tail: str, bare_units: bool) -> bool:
    """Whether what follows a number is nothing, or units."""
    if _NOT_UNITS.search(tail) or (tail.strip(" .") and not re.search("[a-zA-Z]", tail)):
        return False
    rest = _TEXT_UNIT.sub(" ", tail)
    if bare_units:
        rest = _BARE_UNIT.sub(lambda unit: " " if _is_word(unit.group(1)) else "?", rest)
    return not rest.strip(" /.*")


def _is_word(word: str) -> bool:
    """A known abbreviation, or letters that can be said: `apples`, not `xyz`."""
    if _SHORT_UNITS.fullmatch(word):
        return True
    return len(word) > 2 and not set("aeiouyAEIOUY").isdisjoint(word)


def _number_from_match(match: re.Match[str], name: str) -> StatedNumber | None:
    """The value of a match of `_NUMBER`; None for a zero denominator or a runaway exponent."""
    part = {key: re.sub("[, ]", "", text or "") for key, text in match.groupdict().items()}
    sign = -1 if part["sign"] == "-" else 1
    percent = bool(part["percent"])
    if part["whole"]:
        top, under = int(part["top"]), int(part["under"])
        if top >= under:
            return None
        return StatedNumber(
            sign * (int(part["whole"]) + Fraction(top, under)), name, percent=percent
        )
    if part["over"]:
        if int(part["below"]) == 0:
            return None
        ratio = Fraction(int(part["over"]), int(part["below"]))
        return StatedNumber(sign * ratio, name, percent=percent, divisible=ratio.denominator == 1)
    digits, _, places = part["decimal"].partition(".")
    value = Fraction(int(digits + places or 0), 10 ** len(places))
    if part["repeat"]:
        value += Fraction(int(part["repeat"]), (10 ** len(part["repeat"]) - 1) * 10 ** len(places))
    power = part["e"] or part["power"] or part["digit"]
    if abs(int(power or 0)) > LARGEST_EXPONENT:
        return None
    return StatedNumber(
        sign * value * Fraction(10) ** int(power or 0),
        name,
        decimal="." in part["decimal"] and not part["repeat"],
        percent=percent,
        scientific=bool(power),
        unnormalized=bool(power) and not 1 <= value < 10,
    )
