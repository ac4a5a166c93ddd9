"""Render templates, read files of assets/, and encode JSON that is safe inside a page."""

from __future__ import annotations

import base64
import json
import math
import re
import zlib
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup


def render(template_name: str, **values: Any) -> Markup:
    """Fill in a template of assets/; every string among the values is escaped."""
    return Markup(_environment().get_template(template_name).render(**values))


def read_asset(file_name: str) -> Markup:
    """Read a .css or .js file of assets/, unchanged."""
    return Markup((files("counterpoise.report") / "assets" / file_name).read_text(encoding="utf-8"))


def embed_json(value: Any) -> Markup:
    """Encode JSON for a <script type="application/json">, without `<`, which could end the script.

    Example:
        >>> embed_json({"text": "</script>", "loss": float("nan")})
        Markup('{"text":"\\\\u003c/script>","loss":null}')
    """
    return Markup(_dump_json(value).replace("<", "\\u003c"))


def pack_json(value: Any) -> str:
    """Encode large data for `poise.unpack`: compressed JSON in base64, a tenth of the size."""
    return base64.b64encode(zlib.compress(_dump_json(value).encode())).decode()


def show_blanks(token_text: str, *, alone: bool = False) -> str:
    """Replace the white space of a token by visible glyphs.

    In running text the space before a word stays a space. A token shown `alone` has a mark for it
    too, so that " The" is not mistaken for "The".

    Example:
        >>> show_blanks(" "), show_blanks(" 7\\n"), show_blanks(" 7", alone=True)
        ('·', ' 7↵', '·7')
    """
    if token_text.isspace():
        token_text = token_text.replace(" ", "·")
    if alone:
        token_text = re.sub("^ +| +$", lambda spaces: "·" * len(spaces[0]), token_text)
    return token_text.replace("\n", "↵").replace("\t", "⇥")


def _dump_json(value: Any) -> str:
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    # NaN and infinities are rare, and searching every value for them is slow.
    except ValueError:
        return json.dumps(nan_to_none(value), separators=(",", ":"))


def nan_to_none(value: Any) -> Any:
    """Replace NaN and infinities by None: JSON cannot express them."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: nan_to_none(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [nan_to_none(item) for item in value]
    return value


@cache
def _environment() -> Environment:
    # Model output is untrusted: it is escaped everywhere, and a misspelt name in a template fails.
    environment = Environment(
        loader=PackageLoader("counterpoise.report", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["count"] = "{:,}".format
    environment.filters["blanks"] = lambda text: show_blanks(text, alone=True)
    environment.filters["percent"] = lambda share, digits=1: f"{100 * share:.{digits}f}\u2009%"
    return environment
