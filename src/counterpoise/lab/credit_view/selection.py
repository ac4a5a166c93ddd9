"""Parse the weightings of the command line: "grail,shear:width=16:stride=4"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from counterpoise.credit.assign import parse_settings
from counterpoise.errors import PoiseError, unknown_name
from counterpoise.plugins import display_name, is_plugin, pin_plugin
from counterpoise.variants import STEP_RULES, TOKEN_WEIGHTS


@dataclass(frozen=True, slots=True)
class WeightingChoice:
    """A weighting with its settings.

    Example:
        WeightingChoice("shear", ("width=16", "stride=4")).label == "shear width=16 stride=4"
    """

    name: str
    settings: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return " ".join((display_name(self.name), *self.settings))


def parse_weightings(
    text: str, settings: Sequence[str] = (), run_weighting: WeightingChoice | None = None
) -> list[WeightingChoice]:
    """The named weightings in order, each once. Names and settings are checked first.

    `settings` belong to the only weighting in `text`. `run_weighting` is the weighting that the run
    trained with: one of the same name gets the run's settings unless others are given.
    """
    entries = [entry.strip() for entry in text.split(",") if entry.strip()]
    if not entries:
        raise PoiseError(f"no token weights are named: choose one of {', '.join(TOKEN_WEIGHTS)}")
    if settings and len(entries) > 1:
        raise PoiseError(
            "--settings goes with one name; among several write NAME:setting=value, as in "
            "uniform,shear:width=16:stride=4"
        )
    choices = []
    for entry in entries:
        name, *entry_settings = (piece.strip() for piece in entry.split(":"))
        # A colon before something that is not a setting is that of FILE.py:FUNCTION.
        if entry_settings and "=" not in entry_settings[0] and name not in TOKEN_WEIGHTS:
            name = pin_plugin(f"{name}:{entry_settings.pop(0)}", Path())
        if name in STEP_RULES:
            raise PoiseError(
                f"'{name}' is a step rule and has no weights before the optimizer step: "
                f"choose one of {', '.join(TOKEN_WEIGHTS)}"
            )
        if name not in TOKEN_WEIGHTS and Path(name).is_dir():
            raise PoiseError(
                f"{name} is a folder: the name of the weights comes first, poise credit NAME {name}"
            )
        if name not in TOKEN_WEIGHTS and not is_plugin(name):
            raise unknown_name("token weights", name, TOKEN_WEIGHTS)
        entry_settings += settings
        # Without explicit settings, a weighting is shown as the run trained with it.
        if not entry_settings and run_weighting and run_weighting.name == name:
            entry_settings = list(run_weighting.settings)
        parse_settings(name, TOKEN_WEIGHTS.load(name), entry_settings, "--settings")
        choices.append(WeightingChoice(name, tuple(entry_settings)))
    # The same weighting with the same settings is shown once.
    return list(dict.fromkeys(choices))
