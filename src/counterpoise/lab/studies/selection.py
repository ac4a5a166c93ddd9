"""The choices of a `poise study` command: which studies, at which sizes, for how long."""

from __future__ import annotations

import json
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
    for study_name in names_given:
        if study_name in STUDIES and study_name not in available:
            raise PoiseError(
                f"study {study_name} samples its own rollouts; "
                f"--rollouts works with {', '.join(available)}"
            )
    return names_given


def parse_sizes(texts: Iterable[str], budgets: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Parse `--size NAME=VALUE`; the name must be in one of the budgets and the kind must match.

    Example:
        parse_sizes(["batches=4"], [{"prompts": 64, "batches": 12}]) == {"batches": 4}
    """
    known_sizes = {size_name: size for budget in budgets for size_name, size in budget.items()}
    sizes: dict[str, Any] = {}
    for assignment in texts:
        size_name, _, json_text = assignment.partition("=")
        if size_name not in known_sizes:
            raise unknown_name("size", size_name, known_sizes)
        default = known_sizes[size_name]
        # Sizes are written as JSON, so that lists work too.
        try:
            parsed_size = json.loads(json_text)
        except ValueError:
            parsed_size = None
        if not _has_kind_of(parsed_size, default):
            if isinstance(default, dict):
                raise PoiseError(f"--size {assignment}: {size_name} has parts, it cannot be set")
            raise PoiseError(
                f"--size {assignment}: the value must be {_describe_kind(default)}, "
                f"such as {size_name}={json.dumps(default)}"
            )
        sizes[size_name] = parsed_size
    return sizes


KIND_PHRASES = {int: "whole number", float: "number", str: "name"}


def _describe_kind(default: Any) -> str:
    """The kind of a size in words, such as "a list of numbers"."""
    if isinstance(default, list):
        return f"a list of {KIND_PHRASES[type(default[0])]}s"
    return f"a {KIND_PHRASES[type(default)]}"


def _has_kind_of(value: Any, default: Any) -> bool:
    """Whether the value can take the default's place: numbers from 0 on, or names that it lists."""
    if isinstance(default, dict) or isinstance(value, list) != isinstance(default, list):
        return False
    defaults = default if isinstance(default, list) else [default]
    values = value if isinstance(value, list) else [value]
    kind = type(defaults[0])
    if kind is str:
        return bool(values) and all(name in defaults for name in values)
    # By type, because isinstance(True, int) is true; a number may be written without a dot.
    kinds = (int, float) if kind is float else (int,)
    return bool(values) and all(type(number) in kinds and number >= 0 for number in values)
