"""Add up ms-swift's reward from the columns of its reward functions.

    reward = sum_k w_k r_k     NaN left out; 0 if all are, as in training

The weights are those of --reward, else `reward_weights` of args.json beside the file, else 1 if the
advantages follow the sum (hosts/trl/import_rewards.py). The Ray trainer writes the sum alone,
without weights. A KL that kl_in_reward subtracts is not in the files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterpoise.errors import PoiseError, first_line
from counterpoise.hosts.importing.formats import ImportContext
from counterpoise.hosts.ms_swift.choose_tables import ChosenTables
from counterpoise.hosts.ms_swift.groups import group_table
from counterpoise.hosts.trl.import_rewards import (
    GroupColumns,
    infer_reward_columns,
    parse_reward_columns,
)

OPTIONS_NAME = "args.json"


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """What args.json says of a run.

    Example:
        TrainingOptions(group_size=8, reward_weights=[1.0, 0.5], has_weights=True)
    """

    group_size: int = 0  # 0: not known
    reward_weights: list[float] | None = None  # None: all 1, if has_weights
    has_weights: bool = False


def read_options(file: Path) -> TrainingOptions:
    """The options in args.json beside a file; none are known if it is missing."""
    path = file.with_name(OPTIONS_NAME)
    if not path.is_file():
        return TrainingOptions()
    try:
        options = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as fault:
        raise PoiseError(
            f"{path} cannot be read ({first_line(fault)}): copy it again, or remove it"
        ) from fault
    if not isinstance(options, dict):
        raise PoiseError(f"{path}: not a JSON object: copy it again, or remove it")
    size, weights = options.get("num_generations"), options.get("reward_weights")
    are_weights = isinstance(weights, list) and set(map(type, weights)) <= {int, float}
    return TrainingOptions(
        size if isinstance(size, int) and not isinstance(size, bool) and size > 1 else 0,
        [float(weight) for weight in weights] if are_weights and weights else None,
        "reward_weights" in options and (weights is None or are_weights),
    )


def choose_weights(
    tables: ChosenTables, options: TrainingOptions, context: ImportContext
) -> Mapping[str, float]:
    """The weight of each reward function, with a note on where it is from."""
    names = _reward_names(tables)
    if not names:
        return {}
    context.show_progress("how the reward is made up")
    weights, origin = dict.fromkeys(names, 1.0), ""
    listed = options.reward_weights
    if context.reward:
        weights = parse_reward_columns(context.reward, names)
    elif "ray" in tables.writers:
        origin = "the sum of the reward functions"
        if listed and set(listed) != {1.0}:
            origin += f" without the weights of {OPTIONS_NAME}: Ray writes no other"
    elif listed is not None and len(listed) != len(names):
        raise PoiseError(
            f"{tables.file}: {len(listed)} reward_weights in {OPTIONS_NAME} for "
            f"{len(names)} reward functions ({', '.join(names)}): name them, as --reward "
            f"{names[0]}=0.5"
        )
    elif options.has_weights:
        weights = dict(zip(names, listed, strict=True)) if listed is not None else weights
        origin = OPTIONS_NAME
    elif len(names) > 1:
        weights = infer_reward_columns(_iterate_group_columns(tables, options.group_size), names)
        origin = "inferred; --reward names other columns"
    formula = " + ".join(
        f"{weight:g} * {name}" if weight != 1 else name for name, weight in weights.items()
    )
    context.notes.add(f"reward = {formula}" + (f" ({origin})" if origin else ""))
    return weights


def _reward_names(tables: ChosenTables) -> list[str]:
    """The reward functions, in the trainer's order; the same in every table."""
    names: list[str] | None = None
    for table in tables:
        if names is not None and list(table.rewards) != names:
            raise PoiseError(
                f"{table.where}: its reward functions are {', '.join(table.rewards)}, those before "
                f"it {', '.join(names)}: import each run by itself"
            )
        names = list(table.rewards)
    return names or []


def _iterate_group_columns(tables: ChosenTables, group_size: int) -> Iterator[GroupColumns]:
    for table in tables:
        columns: dict[str, Any] = {**table.rewards, "advantage": table.advantages}
        for rows in group_table(table, group_size):
            yield {name: values[rows] for name, values in columns.items()}
