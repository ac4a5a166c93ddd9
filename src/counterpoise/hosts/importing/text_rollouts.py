"""Rollouts of sources that write texts: TRL, verl and tables of W&B.

Prompts have no id there, so the id is a hash of the prompt; rollouts of a step with equal prompts
are a group unless the source says otherwise. Token ids are added later, by --tokenizer.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from counterpoise.errors import PoiseError
from counterpoise.hosts.importing.formats import (
    ImportedRollout,
    answer_text,
    check_reward,
    hash_prompt,
    render_text,
)
from counterpoise.hosts.importing.json_lines import check_step


def name_prompt(source_name: str, prompt: Any) -> str:
    """The id of a prompt, which is a text or a list of messages.

    Example:
        name_prompt("trl", "Ana has 3 pens.") == "trl/6900703b6ffd"
    """
    text = prompt if isinstance(prompt, str) else json.dumps(prompt, sort_keys=True, default=str)
    return f"{source_name}/{hash_prompt(text)}"


def text_rollout(
    prompt_id: str,
    group: str,
    prompt: Any,
    response: Any,
    reward: object,
    where: str,
    answer: object = None,
) -> ImportedRollout:
    """A rollout of which texts or messages are known."""
    return ImportedRollout(
        group=group,
        prompt_id=prompt_id,
        reward=check_reward(reward, where),
        prompt=render_text(prompt, where),
        response=render_text(response, where),
        answer=answer_text(answer),
    )


def only_step(steps: Iterable[object], where: str) -> int:
    """The step that all rows of a file belong to."""
    numbers = set(steps)
    if len(numbers) != 1:
        raise PoiseError(f"{where}: rows of several steps in one file: written by another tool")
    return check_step(numbers.pop(), where)
