"""Which configuration a resumed run has: the stored one, and it must not be contradicted."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from counterpoise.config import RunConfig
from counterpoise.config.load import load_config
from counterpoise.errors import PoiseError
from counterpoise.store.folder import CONFIG, RunFolder

# Options that change how a run goes on, not what it computes (by rounding at most).
FREE = {
    "loop.iterations", "loop.checkpoint_every", "loop.keep_checkpoints", "verify.workers",
    "update.micro_tokens", "update.checkpointing", "monitor.every", "monitor.tokens",
    "track.to",
}  # fmt: skip


def config_to_resume(out: Path, given: RunConfig | None, overrides: list[str]) -> RunConfig:
    """The run's own config.toml; only options in FREE may be given another value."""
    folder = RunFolder.open(out)
    stored = folder.config()
    wanted = given or load_config(folder.path / CONFIG, overrides)
    for name, before, after in differences(stored, wanted):
        if name not in FREE:
            raise PoiseError(
                f"{out} was made with {name}={before!r}, not {after!r}: "
                "resume without it, or start a new --out"
            )
    return wanted


def differences(a: RunConfig, b: RunConfig) -> list[tuple[str, object, object]]:
    """(option, value in a, value in b) wherever they differ."""
    found = []
    for section in dataclasses.fields(a):
        left, right = getattr(a, section.name), getattr(b, section.name)
        for f in dataclasses.fields(left):
            before, after = getattr(left, f.name), getattr(right, f.name)
            if before != after:
                found.append((f"{section.name}.{f.name}", before, after))
    return found
