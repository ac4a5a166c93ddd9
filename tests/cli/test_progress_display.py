"""The progress of a run: readable at 80 columns, a line an iteration in a log."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from counterpoise.cli.progress_display import LiveDisplay
from counterpoise.config.evaluation_settings import EvaluationSetting
from counterpoise.config.load import config_from_tables
from counterpoise.run.heldout import HeldoutSuccess

RECORD: dict[str, Any] = {
    "iteration": 1, "success": 0.53, "tokens_per_second": 12_805.0, "batch_rows": 1_024,
    "positive_share": 0.38, "flipped": 0.24, "cancellation": 0.19,
}  # fmt: skip
SUCCESS = HeldoutSuccess(0.46, 0.41, 0.51, pass_any=0.83, mixed=0.73, prompts=128, samples=8)
NUMBERS = "success  53 %  12,805 tok/s  batch 1024, 38 % positive, 24 % flipped, 19 % cancelled"


def printed(terminal: bool, width: int, composer: str = "grouped") -> str:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=width, color_system=None)
    with LiveDisplay(console) as display:
        config = config_from_tables({"batch": {"composer": composer}})
        display.on_start(config, 1_270_000, 0)
        display.on_iteration(RECORD)
    return file.getvalue()


def test_a_terminal_of_80_columns_shows_count_time_and_numbers() -> None:
    last = printed(terminal=True, width=80)[-400:]
    for word in ("1/40", "left", "53 %", "19 %"):
        assert word in last


def test_the_bar_says_when_it_is_judging() -> None:
    """Before the first iteration, and again after it: then its numbers come back."""
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=90, color_system=None)
    with LiveDisplay(console) as display:
        display.on_start(config_from_tables({}), 1_270_000, 0)
        seen = []
        for step in (
            lambda: display.on_evaluation_start(128, 8),
            lambda: display.on_evaluation(0, SUCCESS, EvaluationSetting(1.0, 1.0)),
            lambda: display.on_iteration(RECORD),
            lambda: display.on_evaluation_start(1, 8),
            lambda: display.on_evaluation(1, SUCCESS, EvaluationSetting(1.0, 1.0)),
        ):
            step()
            *_, numbers = display.progress.get_renderables()
            seen.append(str(numbers))
    judging = "evaluating 128 held-out problems x 8"
    assert seen == [judging, "", NUMBERS, "evaluating 1 held-out problem x 8", NUMBERS]
    assert "held-out success after 1 iteration: " in file.getvalue()


def test_a_log_has_one_line_for_an_iteration_however_long() -> None:
    lines = printed(terminal=False, width=40).splitlines()
    assert lines[-1] == f"   1/40  {NUMBERS}"
    assert len(lines) == 2


def test_what_is_said_is_one_line_of_a_log() -> None:
    file = io.StringIO()
    said = "no optimizer step was taken: every reward was 0: check the reward, or warm up"
    LiveDisplay(Console(file=file, width=40, color_system=None)).notify(said)
    assert file.getvalue() == said + "\n"


def test_a_function_of_the_users_is_named_and_its_name_is_no_markup() -> None:
    told = printed(terminal=False, width=80, composer="/a/my[b]rule.py:f@0123456789abcdef")
    assert told.splitlines()[0].endswith("4 steps my[b]rule.py:f")
