"""What `poise study` is asked for: which studies, at which sizes, for how long."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from counterpoise.errors import PoiseError, unknown
from counterpoise.lab.studies import stored_rollouts as stored
from counterpoise.variants import STUDIES

EMBEDDED_ONLY = ("sign_partition", "interventions")  # rates and lengths are those of a small model
SKIPPED_NOTE = (
    f"without {' and '.join(EMBEDDED_ONLY)}: on another model than the embedded one they are an "
    "experiment with learning rates of its own (docs/experiment.md)"
)


@dataclass(frozen=True, slots=True)
class StudyLimits:
    """What one command measures at, besides the budget.

    Example:
        StudyLimits(sizes=["batches=4"], sets=["sample.max_new_tokens=128"], minutes=8)
    """

    sizes: Sequence[str] = ()  # other sizes than the budget's
    overrides: Sequence[str] = ()  # options of the run that studies draw and train with
    minutes: float | None = None


def select_studies(names: str, model: str, stored_rollouts: bool) -> list[str]:
    """The studies by name; of all, those that make sense for the model and the rollouts."""
    every = list(stored.ROW_STUDIES if stored_rollouts else STUDIES)
    if names == "all":
        return [name for name in every if model == "embedded" or name not in EMBEDDED_ONLY]
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    for name in wanted:
        if name in STUDIES and name not in every:
            raise PoiseError(
                f"study {name} draws its own rollouts; --rollouts is for {', '.join(every)}"
            )
    return wanted


def parse_sizes(texts: Iterable[str], budgets: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Sizes that some of the budgets have, of the same kind.

    Example:
        sizes_given(["batches=4"], [{"prompts": 64, "batches": 12}]) == {"batches": 4}
    """
    known = {name: size for budget in budgets for name, size in budget.items()}
    given: dict[str, Any] = {}
    for text in texts:
        name, _, raw = text.partition("=")
        if name not in known:
            raise unknown("size", name, known)
        try:
            value = json.loads(raw)
        except ValueError:
            value = None
        if type(value) is not type(known[name]) or not _is_size(value):
            kind = "a list of whole numbers" if isinstance(known[name], list) else "a whole number"
            raise PoiseError(
                f"--size {text}: it is {kind}, such as {name}={json.dumps(known[name])}"
            )
        given[name] = value
    return given


def _is_size(value: Any) -> bool:
    """A whole number, or a list of them."""
    numbers = value if isinstance(value, list) else [value]
    return bool(numbers) and all(type(n) is int and n >= 0 for n in numbers)
