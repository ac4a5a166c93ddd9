"""What the keys of a verl batch say: the group of a row, and which rows are calls of one agent.

key   "uid_session_output": the group, the rollout in it, and which of its outputs
tag   "trajectory": set by agent frameworks that submit every call of an agent as its own prompt;
      calls of one agent run have the same
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

TRAJECTORY_TAG = "trajectory"


def group_of_key(key: str) -> str:
    """The group that a rollout belongs to; the key of a prompt is that of its group.

    Example:
        >>> group_of_key("5c1e-77_3_0"), group_of_key("5c1e-77")
        ('5c1e-77', '5c1e-77')
    """
    return key.rsplit("_", 2)[0]


def split_key(key: str) -> tuple[str, int, int]:
    """The group of a rollout, its number in the group, and which of its outputs.

    Example:
        >>> split_key("5c1e-77_3_0")
        ('5c1e-77', 3, 0)
    """
    group, session, output = key.rsplit("_", 2)
    return group, int(session), int(output)


def trajectories_of_keys(keys: Sequence[str], tags: Sequence[Mapping[str, Any]] = ()) -> list[str]:
    """The trajectory of each row, "" where a rollout is one row.

    Example:
        >>> trajectories_of_keys(["5c1e_0_0", "5c1e_1_0", "5c1e_1_1"])
        ['', '5c1e_1', '5c1e_1']
    """
    sessions = [key.rpartition("_")[0] for key in keys]
    num_outputs = Counter(sessions)
    from_keys = [session if num_outputs[session] > 1 else "" for session in sessions]
    from_tags = [str(tag.get(TRAJECTORY_TAG) or "") for tag in tags] or [""] * len(keys)
    return [tag or key for tag, key in zip(from_tags, from_keys, strict=True)]
