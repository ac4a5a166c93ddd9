"""What a page may do, in the words of browsers: run its own scripts, and ask nobody for anything.

The scripts of a page are known when it is written, so the policy lists their digests: a script that
came in by any other way, through the text of a model for one, does not run, and nothing on the page
can send or fetch. Styles may stand in attributes, where they place marks on scales; they cannot
load anything either. Vega compiles no code for this: see `ast` in page.js.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence


def content_policy(scripts: Sequence[str]) -> str:
    """For a meta tag; `scripts` are the exact contents of the page's script elements.

    Example:
        >>> content_policy(["alert(1)"])[:46]
        "default-src 'none'; script-src 'sha256-bhHHL3z"
    """
    sources = " ".join(_digest(script) for script in scripts) or "'none'"
    return (
        f"default-src 'none'; script-src {sources}; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _digest(script: str) -> str:
    digest = hashlib.sha256(script.encode("utf-8", "replace")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"
