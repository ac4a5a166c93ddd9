"""What tinker-cookbook trained with the trajectories of an iteration, by its config.json.

Groups of equal rewards are left out where `remove_constant_reward_groups` is set, or the first
group alone is kept if there is no other. The rows of the rest are cut, in their order, into
`num_substeps` parts, an optimizer step each. With several parts the cut is certain only where no
trajectory has several turns, which may become several rows, and no minibatch is streamed, whose
groups are counted before failed ones are taken out. A run that was continued with other options has
only the last ones in config.json.

Read in tinker-cookbook at 9dfcc3a2: rl/train.py (train_step, do_sync_training),
rl/data_processing.py (remove_constant_reward_groups, trajectory_to_data), utils/ml_log.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from counterpoise.errors import PoiseError, first_line
from counterpoise.hosts.importing.json_lines import is_step
from counterpoise.hosts.tinker.summaries import Summary


@dataclass(frozen=True, slots=True)
class Options:
    """Options that decide what an iteration trains.

    Example:
        Options(num_substeps=2, max_tokens=512)
    """

    num_substeps: int
    max_tokens: int | None = None  # of a turn
    removes_constant_groups: bool = False
    streams_minibatches: bool = False
    has_kl_penalty: bool = False


def read_options(file: Path) -> Options | None:
    """The options of the run that a file of summaries is of; None if there are none."""
    folder = file.absolute().parent
    candidates = (folder / "config.json", folder.parent / "config.json")
    config_file = next((each for each in candidates if each.is_file()), None)
    if config_file is None:
        return None
    try:
        config = json.loads(config_file.read_bytes())
    except (OSError, ValueError, RecursionError) as fault:
        raise PoiseError(
            f"{config_file} cannot be read ({first_line(fault)}): copy it again, or remove it; "
            "without it the optimizer steps are not known"
        ) from fault
    substeps = config.get("num_substeps") if isinstance(config, dict) else None
    if not is_step(substeps) or not substeps:
        return None
    max_tokens, kl_penalty = config.get("max_tokens"), config.get("kl_penalty_coef")
    return Options(
        num_substeps=substeps,
        max_tokens=max_tokens if is_step(max_tokens) and max_tokens else None,
        removes_constant_groups=config.get("remove_constant_reward_groups") is True,
        streams_minibatches=config.get("stream_minibatch_config") is not None,
        has_kl_penalty=isinstance(kl_penalty, int | float) and kl_penalty > 0,
    )


def split_as_trained(
    summaries: Sequence[Summary],
    rewards_of_group: Mapping[int, Sequence[float]],
    options: Options | None,
) -> list[list[int]] | None:
    """The positions of the trajectories of each optimizer step; None where it is not certain."""
    if options is None or not summaries:
        return None
    trained_groups = set(rewards_of_group)
    if options.removes_constant_groups:
        mixed = {group for group, rewards in rewards_of_group.items() if len(set(rewards)) > 1}
        trained_groups = mixed or {summaries[0].group}
    trained = [
        position
        for position, summary in enumerate(summaries)
        if summary.group in trained_groups and summary.is_row
    ]
    if options.num_substeps > 1:
        has_turns = any(len(summaries[position].steps) > 1 for position in trained)
        if has_turns or options.streams_minibatches:
            return None
    parts = min(options.num_substeps, len(trained))
    edges = np.linspace(0, len(trained), parts + 1).astype(int).tolist()
    return [trained[start:end] for start, end in pairwise(edges)]
