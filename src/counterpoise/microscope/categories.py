"""What kind of token: number, latex, template, function, content or other (Fig. 4).

    number     digits and number words
    latex      commands, operators, braces, variables: the mathematics between the numbers
    template   what any answer has: \\boxed, "The answer is", "Step 2:", "Therefore", markdown,
               punctuation, line breaks and spaces, tags and end tokens
    function   words of the closed classes: the, of, it, is, with ...
    content    all other words
    other      what is none of these

A token is a piece of a word, so the text is cut into words first and a token gets the category of
the word its first visible character stands in. The paper names NLTK's tagger and two of its classes
(math, split into number and LaTeX, and template); the rest is ours. A tagger decides between
function and content words where one is given; the lists below do otherwise, and forms of be, have
and do are function words either way.
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
DECODE_WINDOW = (
    8  # tokens decoded together: enough for any character and for the spaces between words
)

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

# -- the text, cut into words ---------------------------------------------------------------------

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
# a dollar opens mathematics when no space follows it and closes it when no digit does: $5 is money
_FORMULA = re.compile(
    r"\$\$.+?\$\$|\$(?=\S)[^$\n]*?(?<=\S)\$(?!\d)|\\\(.+?\\\)|\\\[.+?\\\]", re.DOTALL
)
_PROSE = re.compile(r"\\(?:text|textbf|mbox|mathrm)\{[^{}]*\}")  # words inside mathematics


def character_categories(text: str, tagger: Tagger | None = None) -> list[Category]:
    r"""Of every character.

    Example:
        >>> "".join(kind[0] for kind in categories(r"It is 4 + 3, so \boxed{7}."))
        'fftfftntltnttffttttttttntt'
    """
    kinds: list[Category] = ["other"] * len(text)
    words: list[tuple[int, int]] = []
    closings: list[int] = []
    in_formula = _formula_mask(text)
    for found in _TEXT_PIECE.finditer(text):
        (start, end), name = found.span(), found.lastgroup or ""
        if name == "word":
            words.append((start, end))
            continue
        kind = _PIECE_CATEGORIES[name]
        if name == "mark" and in_formula[start] and not found[0].isspace():
            kind = "latex"  # brackets and commas of a formula
        kinds[start:end] = [kind] * (end - start)
        if found[0].endswith("{") and name == "boxed":
            closings += _closing_brace(text, end)
    tags = tagger([text[a:b] for a, b in words]) if tagger and words else [""] * len(words)
    for (a, b), tag in zip(words, tags, strict=True):
        kinds[a:b] = [_word_category(text[a:b], tag, in_formula=in_formula[a])] * (b - a)
    for i in closings:
        kinds[i] = "template"  # the brace that ends the box
    return kinds


def _word_category(word: str, tag: str, *, in_formula: bool) -> Category:
    plain = word.lower().replace("’", "'")
    if in_formula or (len(word) == 1 and plain not in ("a", "i")):
        return "latex"  # a variable
    if plain in NUMBER_WORDS or tag == "CD":
        return "number"
    if plain in TEMPLATE_WORDS:
        return "template"
    if plain in FUNCTION_WORDS or tag.rstrip("$") in FUNCTION_TAGS:
        return "function"
    return "other" if tag and not tag.startswith(CONTENT_TAGS) else "content"


def _formula_mask(text: str) -> list[bool]:
    """Which characters stand in a formula; prose within one does not."""
    inside = [False] * len(text)
    for formula in _FORMULA.finditer(text):
        inside[formula.start() : formula.end()] = [True] * len(formula[0])
        for prose in _PROSE.finditer(text, formula.start(), formula.end()):
            inside[prose.start() : prose.end()] = [False] * len(prose[0])
    return inside


def _closing_brace(text: str, start: int) -> list[int]:
    """Where the brace opened just before `start` is closed; empty when it never is."""
    depth = 1
    for i in range(start, len(text)):
        depth += (text[i] == "{") - (text[i] == "}")
        if depth == 0:
            return [i]
    return []


# -- from characters to tokens --------------------------------------------------------------------


def token_categories(pieces: Sequence[str], tagger: Tagger | None = None) -> list[Category]:
    """Of every token of a response, given their texts in order.

    Example:
        >>> token_categories(["So", " ", "1", "7", " pen", "s", "."])
        ['function', 'template', 'number', 'number', 'content', 'content', 'template']
    """
    kinds = character_categories("".join(pieces), tagger)
    found: list[Category] = []
    at = 0
    for piece in pieces:
        spaces = len(piece) - len(piece.lstrip())
        if piece and spaces == len(piece):
            found.append("template")
        else:
            first = at + spaces  # a piece without text is the start of the next one's character
            found.append(kinds[first] if first < len(kinds) else "other")
        at += len(piece)
    return found


def token_texts(tokenizer: Any, tokens: Ints | Sequence[int]) -> list[str]:
    """The text each token adds to a response; special tokens by their names.

    A token that ends within a character adds nothing, the one that completes it adds it all. So the
    texts join to the decoded response, whatever the tokenizer does with spaces and bytes.
    """

    def decode(part: Ints | Sequence[int]) -> str:
        text: str = tokenizer.decode(
            [int(t) for t in part], skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text

    texts: list[str] = []
    start, shown = 0, ""
    for end in range(1, len(tokens) + 1):
        text = decode(tokens[start:end])
        if text.endswith("\ufffd") and end < len(tokens):
            texts.append("")
            continue
        texts.append(text[len(shown) :])
        start = max(start, end - DECODE_WINDOW)
        shown = decode(tokens[start:end])
    return texts


def load_nltk_tagger() -> Tagger | None:
    """NLTK's, where it and its data are installed; nothing is downloaded."""
    if util.find_spec("nltk") is None:
        return None
    nltk = import_module("nltk")
    try:
        nltk.pos_tag(["word"])
    except LookupError:  # its data are missing
        return None
    return lambda words: [tag for _, tag in nltk.pos_tag(words)]
