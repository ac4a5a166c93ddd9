"""A conversation that holds the responses too: who wrote what, for rows without a response column.

    system, user | assistant                    prompt | response
    user | assistant, user, assistant           prompt | three segments, of which two are trained

The prompt ends where the assistant speaks first. What others say after that is the environment's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from counterpoise.errors import PoiseError
from counterpoise.hosts.importing.formats import message_text
from counterpoise.task.chat import ASSISTANT, SHAREGPT_ROLES


@dataclass(frozen=True, slots=True)
class SplitConversation:
    """The prompt, the response, and its segments where an environment spoke between.

    Example:
        SplitConversation([{"role": "user", "content": "How many?"}], "12")
    """

    prompt: Any  # a text or messages
    response: Any
    segments: tuple[tuple[bool, str], ...] = ()  # (whether the policy wrote it, text)


def split_conversation(messages: Sequence[Any], where: str) -> SplitConversation:
    """Split the messages where the assistant speaks first."""
    roles = [_role(message) for message in messages]
    if ASSISTANT not in roles:
        raise PoiseError(
            f"{where}: no response: the messages have none of the assistant's; name the column of "
            "responses, as --columns response=NAME"
        )
    first = roles.index(ASSISTANT)
    last = len(roles) - roles[::-1].index(ASSISTANT)
    segments = tuple(
        (role == ASSISTANT, message_text(_content(message)))
        for role, message in zip(roles[first:last], messages[first:last], strict=True)
    )
    response = "\n\n".join(text for _, text in segments)
    return SplitConversation(
        usual_messages(messages[:first]), response, segments if len(segments) > 1 else ()
    )


def usual_messages(messages: Sequence[Any]) -> list[Any]:
    """The messages as {"role", "content"}, also where they are written as ShareGPT's are."""
    return [
        {"role": _role(message), "content": _content(message)}
        if isinstance(message, Mapping)
        else message
        for message in messages
    ]


def _role(message: Any) -> str:
    if not isinstance(message, Mapping):
        return ""
    role = str(message.get("role", message.get("from", "")))
    return SHAREGPT_ROLES.get(role, role)


def _content(message: Mapping[str, Any]) -> Any:
    return message.get("content", message.get("value"))
