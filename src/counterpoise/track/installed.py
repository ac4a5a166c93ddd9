"""Whether trackers are here, before anything is loaded or written."""

from __future__ import annotations

from collections.abc import Sequence

from counterpoise.errors import PoiseError, first_line
from counterpoise.variants import TRACKERS


def check_installed(names: Sequence[str]) -> None:
    """One line for a name that nobody knows, or a package that is not installed."""
    for name in names:
        try:
            TRACKERS.load(name)
        except ImportError as fault:
            raise PoiseError(
                f"{name} cannot be imported ({first_line(fault)}): "
                f"pip install 'counterpoise[{name}]'"
            ) from fault
