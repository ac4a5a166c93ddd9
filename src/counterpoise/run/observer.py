"""Callbacks that a run makes as it proceeds. The base class ignores them all.

`cli/progress_display.py` shows them in a terminal.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from counterpoise.config import RunConfig
from counterpoise.config.evaluation_settings import EvaluationSetting
from counterpoise.run.heldout import HeldoutSuccess


class RunObserver:
    """Override what you need; every method returns at once by default."""

    def notify(self, message: str) -> None:
        """A notice for the user, such as prompts left out or a damaged checkpoint."""

    def on_start(self, config: RunConfig, parameters: int, iteration: int) -> None:
        """Training begins: the model's number of parameters, and the iterations already done."""

    def on_iteration(self, record: dict[str, Any]) -> None:
        """A finished iteration: its line of metrics.jsonl."""

    def on_evaluation_start(self, problems: int, samples: int, benchmark: str = "") -> None:
        """An evaluation begins, on held-out problems or on a benchmark; it may take minutes."""

    def on_evaluation(
        self,
        iteration: int,
        success: HeldoutSuccess,
        setting: EvaluationSetting,
        benchmark: str = "",
    ) -> None:
        """A finished evaluation by one setting, after `iteration` iterations."""

    def on_finish(self, run_folder: Path) -> None:
        """The run has ended, and its folder is complete."""
