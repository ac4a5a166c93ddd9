"""The import paths of version 0.1, kept so that scripts still run.

Use `counterpoise.trl` and `counterpoise.verl` instead.
"""

from __future__ import annotations

import sys


def point_to(old: str, new: str) -> None:
    """Print once, on stderr, where an import path has moved."""
    print(f"counterpoise: {old} is now {new}; the old name still works", file=sys.stderr)
