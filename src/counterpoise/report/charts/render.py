"""Templates and files of assets/, and JSON that is safe inside a page."""

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
    """A template of assets/ with `values`; every string among them is escaped."""
    return Markup(_environment().get_template(template).render(**values))


def read_asset(name: str) -> Markup:
    """A .css or .js file of assets/, as it is."""
    return Markup((files("counterpoise.report") / "assets" / name).read_text(encoding="utf-8"))


def embed_json(value: Any) -> Markup:
    """JSON for a <script type="application/json">: no `<`, so nothing can close the element.

    Example:
        >>> embed({"text": "</script>", "loss": float("nan")})
        Markup('{"text":"\\\\u003c/script>","loss":null}')
    """
    return Markup(_json(value).replace("<", "\\u003c"))


def pack_json(value: Any) -> str:
    """Large data for `poise.unpack`: JSON, deflated, in base64. A tenth of the size, or less."""
    return base64.b64encode(zlib.compress(_json(value).encode())).decode()


def show_blanks(text: str, *, alone: bool = False) -> str:
    """A token with its blanks as glyphs. In running text a word keeps the space before it; by
    itself (`alone`) it shows it, so that " The" is not taken for "The".

    Example:
        >>> blanks(" "), blanks(" 7\\n"), blanks(" 7", alone=True)
        ('·', ' 7↵', '·7')
    """
    if text.isspace():
        text = text.replace(" ", "·")
    if alone:
        text = re.sub("^ +| +$", lambda found: "·" * len(found[0]), text)
    return text.replace("\n", "↵").replace("\t", "⇥")


def _json(value: Any) -> str:
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:  # NaN or an infinity somewhere: rare, and the search for it is slow
        return json.dumps(_finite(value), separators=(",", ":"))


def _finite(value: Any) -> Any:
    """NaN and infinities become null: JSON has no words for them."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


@cache
def _environment() -> Environment:
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
