"""Categories of tokens: number, latex, template, function, content or other (Fig. 4).

    number     digits and number words
    latex      commands, operators, braces, variables: the mathematics between the numbers
    template   what any answer has: \\boxed, "The answer is", "Step 2:", "Therefore", markdown,
               punctuation, line breaks and spaces, tags and end tokens
    function   words of the closed classes: the, of, it, is, with ...
    content    all other words
    other      what is none of these

A token is often a piece of a word, so the text is split into words first, and a token gets the
category of the word that holds its first visible character. The paper names two classes, template
and math (split into number and LaTeX), and NLTK's tagger; the other classes are ours. A tagger,
where one is given, decides between function and content words; otherwise the word lists below do.
Forms of be, have and do are function words either way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from importlib import import_module, util
from typing import Any, Literal, get_args

from counterpoise.types import Ints

Category = Literal["number", "latex", "template", "function", "content", "other"]
CATEGORIES: tuple[Category, ...] = get_args(Category)
REASONING_CATEGORIES: tuple[Category, ...] = ("number", "latex", "content")
Tagger = Callable[[list[str]], list[str]]  # words -> Penn Treebank tags
# Tokens decoded together: enough for any character and for the spaces between words.
DECODE_WINDOW = 8

WORD_PATTERN = r"[^\W\d_]+(?:['’-][^\W\d_]+)*"
FUNCTION_TAGS = ("IN", "DT", "CC", "PRP", "TO", "MD", "EX", "WDT", "WP", "WRB", "PDT", "RP", "POS")
CONTENT_TAGS = ("NN", "VB", "JJ", "RB")


def _word_set(words: str) -> frozenset[str]:
    return frozenset(words.split())


FUNCTION_WORDS = _word_set("""
    a an the this that these those each every either neither some any no all both such another what
    which who whom whose when where why how of in on at by for with without from to into onto over
    under above below between among through during before after since until about against per than
    as like via out off up down and or but nor so yet if because while although though unless
    whereas whether i you he she it we they me him her us them my your his its our their mine yours
    hers ours theirs himself herself itself themselves myself yourself someone anyone everyone
    something anything everything nothing there here not only also just then now too very still
    again once can could may might must shall should will would am is are was were be been being
    have has had having do does did doing done let let's that's it's there's we're we've don't
    doesn't isn't aren't can't
""")
NUMBER_WORDS = _word_set("""
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
    sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety
    hundred thousand million billion dozen
""")
TEMPLATE_WORDS = _word_set("therefore thus hence finally answer boxed solution step steps")

# -- split the text into words --------------------------------------------------------------------

_TEXT_PIECE = re.compile(
    rf"""
      (?P<tag>     <\|[^|<>]*\|> | </?\w+> | \[/?INST\] )
    | (?P<boxed>   \\boxed\b\s*\{{? )
    | (?P<heading> ^[ \t]*(?:\#+|[-*•]|\d+[.)])[ ] | ^[ \t]*[-=_*]{{3,}}[ ]*$ | \*\*+ | `+ )
    | (?P<phrase>  \b(?:the\s+)?(?:final\s+)?answer(?:\s+is)?\b | \bstep\s+(?:by\s+step|\d+) )
    | (?P<command> \\(?:begin|end)\{{[^}}]*\}} | \\[A-Za-z]+\*? | \\. )
    | (?P<number>  \d+(?:[.,]\d+)*%? )
    | (?P<word>    {WORD_PATTERN} )
    | (?P<bracket> (?<=[\d)])\) | \((?=\s*[-\d(]) )
    | (?P<sign>    [-+*/^_=<>{{}}$&~|×÷·±√∑∫≤≥≠≈→∞°−] )
    | (?P<mark>    [.,;:!?…"'“”‘’()\[\]—–#`%] | \s )
    """,
    re.VERBOSE | re.IGNORECASE | re.MULTILINE,
)
_PIECE_CATEGORIES: dict[str, Category] = {
    "tag": "template",
    "boxed": "template",
    "heading": "template",
    "phrase": "template",
    "command": "latex",
    "number": "number",
    "bracket": "latex",
    "sign": "latex",
    "mark": "template",
}
# A dollar sign opens a formula if no space follows it. The next one closes it if no space is before
# it and no digit after it: "$5 or $6" is money.
_FORMULA = re.compile(
    r"\$\$.+?\$\$|\$(?=\S)[^$\n]*?(?<=\S)\$(?!\d)|\\\(.+?\\\)|\\\[.+?\\\]", re.DOTALL
)
_PROSE = re.compile(r"\\(?:text|textbf|mbox|mathrm)\{[^{}]*\}")  # words inside mathematics


def character_categories(text: str, tagger: Tagger | None = None) -> list[Category]:
    r"""The category of every character of a text.

    Example:
        >>> "".join(kind[0] for kind in character_categories(r"It is 4 + 3, so \boxed{7}."))
        'fftfftntltnttffttttttttntt'
    """
    category_of: list[Category] = ["other"] * len(text)
    words: list[tuple[int, int]] = []
    closing_braces: list[int] = []
    in_formula = _formula_mask(text)
    for match in _TEXT_PIECE.finditer(text):
        (start, end), piece_kind = match.span(), match.lastgroup or ""
        if piece_kind == "word":
            words.append((start, end))
            continue
        category = _PIECE_CATEGORIES[piece_kind]
        if piece_kind == "mark" and in_formula[start] and not match[0].isspace():
            category = "latex"  # brackets and commas of a formula
        category_of[start:end] = [category] * (end - start)
        if match[0].endswith("{") and piece_kind == "boxed":
            closing_braces += _closing_brace(text, end)
    # All words are tagged in one call: a tagger decides by context.
    tags = (
        tagger([text[word_start:word_end] for word_start, word_end in words])
        if tagger and words
        else [""] * len(words)
    )
    for (word_start, word_end), tag in zip(words, tags, strict=True):
        category_of[word_start:word_end] = [
            _word_category(text[word_start:word_end], tag, in_formula=in_formula[word_start])
        ] * (word_end - word_start)
    for brace in closing_braces:
        category_of[brace] = "template"  # the brace that ends the box
    return category_of


def _word_category(word: str, tag: str, *, in_formula: bool) -> Category:
    lowered = word.lower().replace("’", "'")
    if in_formula or (len(word) == 1 and lowered not in ("a", "i")):
        return "latex"  # a variable
    if lowered in NUMBER_WORDS or tag == "CD":
        return "number"
    if lowered in TEMPLATE_WORDS:
        return "template"
    if lowered in FUNCTION_WORDS or tag.rstrip("$") in FUNCTION_TAGS:
        return "function"
    return "other" if tag and not tag.startswith(CONTENT_TAGS) else "content"


def _formula_mask(text: str) -> list[bool]:
    """True for characters inside a formula; text such as \\text{...} within it is False."""
    inside = [False] * len(text)
    for formula in _FORMULA.finditer(text):
        inside[formula.start() : formula.end()] = [True] * len(formula[0])
        for prose in _PROSE.finditer(text, formula.start(), formula.end()):
            inside[prose.start() : prose.end()] = [False] * len(prose[0])
    return inside


def _closing_brace(text: str, start: int) -> list[int]:
    """[index of the brace that closes the one before `start`], or [] when it is never closed."""
    depth = 1
    for index in range(start, len(text)):
        depth += (text[index] == "{") - (text[index] == "}")
        if depth == 0:
            return [index]
    return []


# -- from characters to tokens --------------------------------------------------------------------


def token_categories(pieces: Sequence[str], tagger: Tagger | None = None) -> list[Category]:
    """The category of every token of a response, given the tokens' texts in order.

    Example:
        >>> token_categories(["So", " ", "1", "7", " pen", "s", "."])
        ['function', 'template', 'number', 'number', 'content', 'content', 'template']
    """
    character_kinds = character_categories("".join(pieces), tagger)
    token_kinds: list[Category] = []
    offset = 0
    for piece in pieces:
        spaces = len(piece) - len(piece.lstrip())
        if piece and spaces == len(piece):
            token_kinds.append("template")
        else:
            # A token without text begins a character that the next token completes.
            first_visible = offset + spaces
            token_kinds.append(
                character_kinds[first_visible] if first_visible < len(character_kinds) else "other"
            )
        offset += len(piece)
    return token_kinds


def token_texts(tokenizer: Any, tokens: Ints | Sequence[int]) -> list[str]:
    """The text each token adds to a response; special tokens appear by their names.

    A token that ends inside a multi-byte character adds "", and the token that completes the
    character adds all of it. So the texts join to the decoded response, whatever the tokenizer does
    with spaces and bytes.
    """

    def decode(window: Ints | Sequence[int]) -> str:
        text: str = tokenizer.decode(
            [int(t) for t in window], skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text

    # Decode a short window instead of the whole prefix: linear time, and the window still holds
    # enough context for tokenizers that drop a leading space.
    texts: list[str] = []
    window_start, decoded_before = 0, ""
    for end in range(1, len(tokens) + 1):
        text = decode(tokens[window_start:end])
        if text.endswith("\ufffd") and end < len(tokens):
            texts.append("")
            continue
        texts.append(text[len(decoded_before) :])
        window_start = max(window_start, end - DECODE_WINDOW)
        decoded_before = decode(tokens[window_start:end])
    return texts


def load_nltk_tagger() -> Tagger | None:
    """NLTK's tagger, or None where NLTK or its data are not installed; nothing is downloaded."""
    if util.find_spec("nltk") is None:
        return None
    nltk = import_module("nltk")
    try:
        nltk.pos_tag(["word"])
    except LookupError:  # its data are missing
        return None
    return lambda words: [tag for _, tag in nltk.pos_tag(words)]
