"""The choices of a `poise study` command: which studies, at which sizes, for how long."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from counterpoise.errors import PoiseError, unknown_name
from counterpoise.lab.studies.stored_rollouts import ROW_STUDIES
from counterpoise.variants import STUDIES

# Studies whose learning rates and lengths suit a small model only.
EMBEDDED_ONLY = ("sign_partition", "interventions")
SKIPPED_NOTE = (
    f"skipping {' and '.join(EMBEDDED_ONLY)}: they train the embedded model only; for another "
    "model, write an experiment with its own learning rates (docs/results/experiments.md)"
)


@dataclass(frozen=True, slots=True)
class StudyLimits:
    """Sizes, options and time limit of one command, besides its budget.

    Example:
        StudyLimits(sizes=["batches=4"], overrides=["sample.max_new_tokens=128"], minutes=8)
    """

    sizes: Sequence[str] = ()  # sizes to use instead of the budget's
    overrides: Sequence[str] = ()  # options of the run, for sampling and training
    minutes: float | None = None


def select_studies(names: str, model: str, stored_rollouts: bool) -> list[str]:
    """Names of the selected studies; "all" means those that fit the model and the rollouts."""
    available = list(ROW_STUDIES if stored_rollouts else STUDIES)
    if names == "all":
        return [
            study_name
            for study_name in available
            if model == "embedded" or study_name not in EMBEDDED_ONLY
        ]
    names_given = [study_name.strip() for study_name in names.split(",") if study_name.strip()]
    if not names_given:
        raise PoiseError(f"'{names}' names no study: poise study lists them")
    for study_name in names_given:
        if study_name in STUDIES and study_name not in available:
            raise PoiseError(
                f"study {study_name} samples its own rollouts; "
                f"--rollouts works with {', '.join(available)}"
            )
    return names_given


def parse_sizes(texts: Iterable[str], budgets: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Parse `--size NAME=VALUE`; the value must be of the kind that every budget with NAME has.

    Example:
        parse_sizes(["batches=4"], [{"prompts": 64, "batches": 12}]) == {"batches": 4}
    """
    defaults_by_name: dict[str, list[Any]] = {}
    for budget in budgets:
        for size_name, default in budget.items():
            defaults_by_name.setdefault(size_name, []).append(default)
    sizes: dict[str, Any] = {}
    for assignment in texts:
        size_name, _, json_text = assignment.partition("=")
        if size_name not in defaults_by_name:
            raise unknown_name("size", size_name, defaults_by_name)
        # Sizes are written as JSON, so that lists work too.
        try:
            parsed_size = json.loads(json_text)
        except ValueError:
            parsed_size = None
        for default in defaults_by_name[size_name]:
            if isinstance(default, dict):
                raise PoiseError(f"--size {assignment}: {size_name} is a table and cannot be set")
            if not _has_kind_of(parsed_size, default):
                raise PoiseError(
                    f"--size {assignment}: the value must be {_describe_kind(default)}, "
                    f"such as {size_name}={json.dumps(default)}"
                )
        sizes[size_name] = parsed_size
    return sizes


KIND_PHRASES = {int: "whole number", float: "number", str: "name"}


def _describe_kind(default: Any) -> str:
    """The kind of a size in words, such as "a list of numbers above 0, each once"."""
    if isinstance(default, list):
        above_zero = "" if isinstance(default[0], str) else " above 0"
        return f"a list of {KIND_PHRASES[type(default[0])]}s{above_zero}, each once"
    return f"a {KIND_PHRASES[type(default)]} {'above 0' if default else 'of 0 or more'}"


def _has_kind_of(value: Any, default: Any) -> bool:
    """Whether the value can take the default's place: numbers above 0, or names that it lists.

    0 is a number only where it is the default, and means none or no limit.
    """
    if isinstance(value, list) != isinstance(default, list):
        return False
    defaults = default if isinstance(default, list) else [default]
    values = value if isinstance(value, list) else [value]
    kind = type(defaults[0])
    if not values or any(entry in values[:index] for index, entry in enumerate(values)):
        return False
    if kind is str:
        return all(name in defaults for name in values)
    # By type, because isinstance(True, int) is true; a number may be written without a dot.
    kinds = (int, float) if kind is float else (int,)
    return all(
        type(number) in kinds
        and math.isfinite(number)
        and (number > 0 or (number == 0 and 0 in defaults))
        for number in values
    )
