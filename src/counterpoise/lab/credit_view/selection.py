"""Which weightings are asked for: "grail,shear:width=16:stride=4" -> names with their settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from counterpoise.credit.assign import read_settings
from counterpoise.errors import PoiseError, unknown
from counterpoise.variants import STEP_RULES, TOKEN_WEIGHTS


@dataclass(frozen=True, slots=True)
class WeightingChoice:
    """Example: WeightingChoice("shear", ("width=16", "stride=4")).label == "shear width=16 stride=4" """

    name: str
    settings: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return " ".join((self.name, *self.settings))


def parse_weightings(
    text: str, settings: Sequence[str] = (), own: WeightingChoice | None = None
) -> list[WeightingChoice]:
    """In the order named, each once. Names and settings are checked before anything is read.

    `settings` are those of the one weighting that is named; `own` is what the run trained with: a
    weighting of that name is shown with the run's settings, unless others are given.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise PoiseError(f"name one of the token weights: {', '.join(TOKEN_WEIGHTS)}")
    if settings and len(parts) > 1:
        raise PoiseError(
            "--settings goes with one name; among several write NAME:setting=value, as in "
            "uniform,shear:width=16:stride=4"
        )
    found = []
    for part in parts:
        name, *given = (piece.strip() for piece in part.split(":"))
        if name in STEP_RULES:
            raise PoiseError(
                f"'{name}' is a rule of an optimizer step and weighs no tokens beforehand: "
                f"name one of {', '.join(TOKEN_WEIGHTS)}"
            )
        if name not in TOKEN_WEIGHTS and Path(name).is_dir():
            raise PoiseError(
                f"{name} is a folder: the weights come first, poise credit NAME {name}"
            )
        if name not in TOKEN_WEIGHTS:
            raise unknown("token weights", name, TOKEN_WEIGHTS)
        given += settings
        if not given and own and own.name == name:
            given = list(own.settings)
        read_settings(name, TOKEN_WEIGHTS.load(name), given, "--settings")
        found.append(WeightingChoice(name, tuple(given)))
    return list(dict.fromkeys(found))
