"""Conversations in data files: lists of {"role", "content"}, as TRL, verl and chat datasets write.

    [{"role": "system", "content": "..."}, {"role": "user", "content": "..."}]       the usual form
    [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}]             ShareGPT's form

A content may also be a list of text parts, [{"type": "text", "text": "..."}]. Images, audio, tool
calls and roles other than system, user and assistant raise an error: if they were skipped, the
model would be trained on a different prompt than the file's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from counterpoise.errors import PoiseError
from counterpoise.types import Message, Messages

SHAREGPT_ROLES = {"human": "user", "gpt": "assistant"}
ASSISTANT = "assistant"
ROLES = ("system", "user", ASSISTANT)


def is_conversation(rows: Sequence[Any]) -> bool:
    """Whether all of them are messages.

    Example:
        >>> is_conversation([{"role": "user", "content": "?"}]), is_conversation([{"problem": "?"}])
        (True, False)
    """
    return bool(rows) and all(
        isinstance(row, Mapping)
        and ({"role", "content"} <= row.keys() or {"from", "value"} <= row.keys())
        for row in rows
    )


def parse_messages(value: Sequence[Any], where: str, column: str) -> Messages:
    """The messages of a conversation; an error names the message that cannot be read."""
    messages = tuple(
        _parse_message(message, f"{where}: message {number} of '{column}'")
        for number, message in enumerate(value, 1)
    )
    if not any(message.role == "user" and message.content.strip() for message in messages):
        raise PoiseError(f"{where}: '{column}' has no user message with text")
    return messages


def _parse_message(message: Any, where: str) -> Message:
    if not isinstance(message, Mapping):
        raise PoiseError(f'{where} is not an object like {{"role": "user", "content": "..."}}')
    role = message.get("role", message.get("from"))
    content = message.get("content", message.get("value"))
    if not isinstance(role, str) or not role:
        raise PoiseError(f"{where} has no role: system, user or assistant is expected")
    role = SHAREGPT_ROLES.get(role, role)
    if role not in ROLES:
        raise PoiseError(
            f"{where} has the role '{role}', and only system, user and assistant are supported: "
            "leave the record out"
        )
    if message.get("tool_calls"):
        raise PoiseError(f"{where} calls a tool, which is not supported: leave the record out")
    if isinstance(content, list):
        content = _join_text_parts(content, where)
    if not isinstance(content, str):
        raise PoiseError(f"{where} has no text as its content")
    return Message(role, content)


def _join_text_parts(parts: Sequence[Any], where: str) -> str:
    texts = []
    for part in parts:
        text = part.get("text") if isinstance(part, Mapping) else part
        if not isinstance(text, str):
            raise PoiseError(
                f"{where} has content other than text, which is not supported: leave the record out"
            )
        texts.append(text)
    return "".join(texts)


def split_final_turn(messages: Messages) -> tuple[Messages, str]:
    """(the conversation without a final assistant turn, the text of that turn or "").

    Example:
        >>> split_final_turn((Message("user", "1 + 1?"), Message("assistant", "2")))
        ((Message(role='user', content='1 + 1?'),), '2')
    """
    if messages[-1].role == ASSISTANT:
        return messages[:-1], messages[-1].content
    return messages, ""


def conversation_text(messages: Messages) -> str:
    """The conversation as one text.

    The system prompt is left out: it is often the same for all problems and would make them look
    alike. A single user message gets no role label, so that it equals the same problem in a plain
    file.

    Example:
        >>> conversation_text((Message("system", "Be brief."), Message("user", "1 + 1?")))
        '1 + 1?'
    """
    turns = [message for message in messages if message.role != "system"]
    if len(turns) == 1:
        return turns[0].content.strip()
    return "\n\n".join(f"{message.role}: {message.content.strip()}" for message in turns)
