"""`poise doctor`: what this machine can run."""

from __future__ import annotations

import typer


def doctor() -> None:
    """Say what this machine can run, and check the whole path on a tiny run."""
    from counterpoise.cli.machine_check import examine_machine

    raise typer.Exit(0 if examine_machine() else 1)
