"""Content security policy of a page: it runs its own scripts and contacts nobody.

The scripts of a page are known when it is written, so the policy lists their digests: a script that
got in any other way, for example through a model's output, does not run, and nothing on the page
can send or fetch data. Inline styles are allowed because they place marks on scales; they cannot
load anything either. Vega must not compile code under this policy: see `ast` in page.js.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence


def content_policy(scripts: Sequence[str]) -> str:
    """Content of the policy's meta tag; `scripts` are the exact texts of the script elements.

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
