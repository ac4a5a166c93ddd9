r"""Normalize LaTeX: answers that differ only in typography become the same text.

Spacing commands, `\left` and `\right`, dollar, currency and degree signs are removed. `\dfrac` and
`\tfrac` become `\frac`, all text and font commands `\text`, all product signs `*`, and the "and" of
a list becomes a comma. White space remains only between two words or numbers, and as one space
after the comma of a list: `1,234` is one number, `1, 234` are two.
"""

from __future__ import annotations

import re

_SIGNS = str.maketrans({"−": "-", "–": "-", "×": "*", "·": "*", "÷": "/", "π": "\\pi ", "\n": " "})

# The order matters: thin spaces inside numbers go first, and white space is collapsed last, when
# the commands that it may surround have been replaced.
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
_REPLACEMENTS = [(re.compile(pattern), replacement) for pattern, replacement in _SPELLINGS]


def normalize_latex(latex: str) -> str:
    r"""The normal form of `latex`.

    Example:
        >>> normalize_latex("\\dfrac{1}{2} \\cdot \\sqrt {3}.")
        '\\frac{1}{2}*\\sqrt{3}'
    """
    text = latex.translate(_SIGNS)
    for pattern, replacement in _REPLACEMENTS:
        text = pattern.sub(replacement, text)
    return text.rstrip(" .,;").lstrip()
