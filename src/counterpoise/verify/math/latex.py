r"""Many spellings of an answer -> one: what differs only in typography becomes equal text.

Spacing commands, `\left` and `\right`, dollar signs, currency and degree signs go; `\dfrac` and
`\tfrac` become `\frac`, every text or font command `\text`, every product sign `*`, and the "and"
of a list a comma. White space stays only between two words or numbers, and as one space after the
comma of a list: `1,234` is a number, `1, 234` is two.
"""

from __future__ import annotations

import re

_SIGNS = str.maketrans({"−": "-", "–": "-", "×": "*", "·": "*", "÷": "/", "π": "\\pi ", "\n": " "})

_SPELLINGS = [
    (r"(,?)\s*\\[,!]\s*", r"\1"),  # `10,\!080`, `10\,080`
    (r"\\[;: ]|~|\\q?quad(?![a-zA-Z])", " "),
    (r"\\(?:left|right|displaystyle|limits)(?![a-zA-Z])", ""),
    (r"\\\(|\\\)|\\?[$€£¥]", ""),
    (r"\^\s*\{?\s*\\circ\s*\}?|\\degrees?(?![a-zA-Z])|°", " "),
    (r"\\[dtc]frac(?![a-zA-Z])", r"\\frac"),
    (r"\\(?:cdot|times|ast)(?![a-zA-Z])", "*"),
    (r"\\(?:mbox|text(?:rm|bf|it|normal)|math(?:rm|bf|it)|operatorname)(?=\s*\{)", r"\\text"),
    (r",?\s*\\text\s*\{\s*and\s*\}\s*|(?<=[\d)}]),?\s+and\s+(?=[-\d(\\])", ", "),
    (r"\\%", "%"),
    (r"\{\s*,\s*\}", ","),
    (r"\s+", " "),
    (r" ?([^\w\s,]) ?", r"\1"),
    (r" ,", ","),
]
_RULES = [(re.compile(pattern), by) for pattern, by in _SPELLINGS]


def normalize_latex(latex: str) -> str:
    r"""The one spelling of `latex`.

    Example:
        >>> tidy("\\dfrac{1}{2} \\cdot \\sqrt {3}.")
        '\\frac{1}{2}*\\sqrt{3}'
    """
    text = latex.translate(_SIGNS)
    for pattern, by in _RULES:
        text = pattern.sub(by, text)
    return text.rstrip(" .,;").lstrip()
