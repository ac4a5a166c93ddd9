"""`poise doctor`: check what this machine can run."""

from __future__ import annotations

import typer


def doctor() -> None:
    """Show what this machine can run, and check a tiny run from sampling to report."""
    from counterpoise.cli.machine_check import examine_machine

    raise typer.Exit(0 if examine_machine() else 1)
