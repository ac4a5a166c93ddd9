"""Content security policy of a page: it runs its own scripts only and has no network access.

The scripts of a page are known when it is written, so the policy lists their digests: a script that
got in any other way, for example through a model's output, does not run, and nothing on the page
can send or fetch data. Inline styles are allowed because they place marks on scales; they cannot
load anything either. Vega must not compile code under this policy: see `ast` in page.js.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence


def content_policy(script_texts: Sequence[str]) -> str:
    """Content of the policy's meta tag; `script_texts` are the exact texts of the script elements.

    Example:
        >>> content_policy(["alert(1)"])[:46]
        "default-src 'none'; script-src 'sha256-bhHHL3z"
    """
    script_digests = " ".join(_digest(script_text) for script_text in script_texts) or "'none'"
    return (
        f"default-src 'none'; script-src {script_digests}; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _digest(script_text: str) -> str:
    digest = hashlib.sha256(script_text.encode("utf-8", "replace")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"
