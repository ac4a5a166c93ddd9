"""What a run tells whoever watches it. The base class is silent; `progress_display.py` draws."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from counterpoise.config import RunConfig
from counterpoise.config.evaluation_settings import Setting
from counterpoise.run.heldout import Success


class Watch:
    def say(self, message: str) -> None:
        """Something worth a line: prompts left out, a damaged checkpoint."""

    def started(self, config: RunConfig, parameters: int, iteration: int) -> None: ...

    def iterated(self, record: dict[str, Any]) -> None:
        """A finished iteration: its line of metrics.jsonl."""

    def judging(self, problems: int, samples: int) -> None:
        """Held-out problems are about to be answered: on a real model it takes minutes."""

    def evaluated(self, iteration: int, success: Success, setting: Setting) -> None: ...

    def finished(self, path: Path) -> None: ...
