"""A run folder without a run: a few lines in its logs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from counterpoise.config import RunConfig
from counterpoise.store.folder import RunFolder

ITERATIONS = 3


def metrics(iteration: int) -> dict[str, Any]:
    found: dict[str, Any] = {"iteration": iteration, "success": iteration / 8, "loss": None}
    return found | {"steps": 4, "entropy": 0.1 * iteration, "iteration_seconds": 10.0}


def judged(iteration: int, temperature: float = 1.0) -> dict[str, Any]:
    way = {"temperature": temperature, "top_p": 0.95 if temperature < 1 else 1.0}
    found = {"mean": 0.5 + iteration / 100, "low": 0.4, "high": 0.6, "pass_any": 0.8, "mixed": 0.3}
    return {"iteration": iteration, **way, **found, "prompts": 8, "evaluate_seconds": 5.0}


def run_folder(path: Path) -> RunFolder:
    """Judged before and after; three iterations."""
    folder = RunFolder.create(path, RunConfig())
    folder.append("evaluations", judged(0))
    for iteration in range(1, ITERATIONS + 1):
        folder.append("metrics", metrics(iteration))
        folder.append("plans", {"iteration": iteration})
    folder.append("evaluations", judged(ITERATIONS))
    return folder
