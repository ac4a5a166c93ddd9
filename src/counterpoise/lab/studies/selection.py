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
        # Sizes are written as JSON, so that lists work too.
        try:
            parsed_size = json.loads(json_text)
        except ValueError:
            parsed_size = None
        if type(parsed_size) is not type(known_sizes[size_name]) or not _is_size(parsed_size):
            kind = (
                "a list of whole numbers"
                if isinstance(known_sizes[size_name], list)
                else "a whole number"
            )
            raise PoiseError(
                f"--size {assignment}: the value must be {kind}, "
                f"such as {size_name}={json.dumps(known_sizes[size_name])}"
            )
        sizes[size_name] = parsed_size
    return sizes


def _is_size(value: Any) -> bool:
    """True for a whole number, or a list of them, from 0 on."""
    numbers = value if isinstance(value, list) else [value]
    # Compared by type, because isinstance(True, int) is true.
    return bool(numbers) and all(type(number) is int and number >= 0 for number in numbers)
