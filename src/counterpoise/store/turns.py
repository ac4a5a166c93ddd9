"""Convert turns and chat messages to records for rollouts/ and checkpoints, and back.

    turns = [
        {"start": 0, "told": [], "action": [31, 34], "feedback": "12 is too many."},
        {"start": 38, "told": [1, 401, ...], "action": [66, 69], "feedback": ""},
    ]

`told` are the tokens of the environment's reply, `Turn.observation`. The messages of a chat prompt
have the form that data files use: {"role": "user", "content": "..."}.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from counterpoise.types import Message, Messages, Turn


def turns_to_records(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    return [
        {
            "start": turn.start,
            "told": turn.observation.tolist(),
            "action": list(turn.action),
            "feedback": turn.feedback,
        }
        for turn in turns
    ]


def turns_from_record(record: Mapping[str, Any]) -> tuple[Turn, ...]:
    """The turns of a record, if any; raises ValueError or TypeError if they are malformed."""
    turns = []
    for turn in record.get("turns", ()):
        if not isinstance(turn, dict) or not {"start", "told", "action", "feedback"} <= turn.keys():
            raise ValueError("a turn needs start, told, action and feedback")
        action_start, action_end = turn["action"]
        observation = np.array(turn["told"], dtype=np.int32)
        action = (int(action_start), int(action_end))
        turns.append(Turn(int(turn["start"]), observation, action, str(turn["feedback"])))
    return tuple(turns)


def messages_to_records(messages: Messages) -> list[dict[str, str]]:
    return [dict(message) for message in messages]


def messages_from_record(record: Mapping[str, Any]) -> Messages:
    """The messages of a record, if any; raises ValueError or TypeError if they are malformed."""
    messages = record.get("messages", ())
    if not all(
        isinstance(message, dict) and {"role", "content"} <= message.keys() for message in messages
    ):
        raise ValueError("a message needs role and content")
    return tuple(Message(str(message["role"]), str(message["content"])) for message in messages)
