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


def render(template: str, **values: Any) -> Markup:
    """Fill in a template of assets/; every string among the values is escaped."""
    return Markup(_environment().get_template(template).render(**values))


def read_asset(name: str) -> Markup:
    """Read a .css or .js file of assets/, unchanged."""
    return Markup((files("counterpoise.report") / "assets" / name).read_text(encoding="utf-8"))


def embed_json(value: Any) -> Markup:
    """Encode JSON for a <script type="application/json">, without `<`, so nothing can close it.

    Example:
        >>> embed_json({"text": "</script>", "loss": float("nan")})
        Markup('{"text":"\\\\u003c/script>","loss":null}')
    """
    return Markup(_json(value).replace("<", "\\u003c"))


def pack_json(value: Any) -> str:
    """Encode large data for `poise.unpack`: compressed JSON in base64, a tenth of the size."""
    return base64.b64encode(zlib.compress(_json(value).encode())).decode()


def show_blanks(text: str, *, alone: bool = False) -> str:
    """Replace the white space of a token by visible glyphs.

    In running text a word keeps the space before it. By itself (`alone`) that space is shown too,
    so that " The" is not mistaken for "The".

    Example:
        >>> show_blanks(" "), show_blanks(" 7\\n"), show_blanks(" 7", alone=True)
        ('·', ' 7↵', '·7')
    """
    if text.isspace():
        text = text.replace(" ", "·")
    if alone:
        text = re.sub("^ +| +$", lambda spaces: "·" * len(spaces[0]), text)
    return text.replace("\n", "↵").replace("\t", "⇥")


def _json(value: Any) -> str:
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:  # NaN or infinity: rare, and searching every value for it is slow
        return json.dumps(_finite(value), separators=(",", ":"))


def _finite(value: Any) -> Any:
    """Replace NaN and infinities by None: JSON cannot express them."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
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
