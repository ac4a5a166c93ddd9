"""What a run tells whoever watches it. The base class is silent; `progress_display.py` draws."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from counterpoise.config import RunConfig
from counterpoise.config.evaluation_settings import EvaluationSetting
from counterpoise.run.heldout import HeldoutSuccess


class RunObserver:
    def notify(self, message: str) -> None:
        """Something worth a line: prompts left out, a damaged checkpoint."""

    def on_start(self, config: RunConfig, parameters: int, iteration: int) -> None: ...

    def on_iteration(self, record: dict[str, Any]) -> None:
        """A finished iteration: its line of metrics.jsonl."""

    def on_evaluation_start(self, problems: int, samples: int) -> None:
        """Held-out problems are about to be answered: on a real model it takes minutes."""

    def on_evaluation(
        self, iteration: int, success: HeldoutSuccess, setting: EvaluationSetting
    ) -> None: ...

    def on_finish(self, path: Path) -> None: ...
