"""Two responses word by word."""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from typing import Any

from counterpoise.serve.answers import BadRequestError
from counterpoise.serve.run_reader import RunReader
from counterpoise.serve.views.batch import rollout_address
from counterpoise.serve.views.rollout import find_rollout

# Comparing takes time with the product of the lengths: what differs is compared word by word up to
# this many words on each side, and shown as one replacement beyond.
MOST_WORDS = 2000
MOST_CHARACTERS = 1_000_000


def diff_view(reader: RunReader, left: str, right: str) -> dict[str, Any]:
    """`left` and `right` are ITERATION/GROUP/INDEX."""
    rollouts = [find_rollout(reader, *parse_place(side)) for side in (left, right)]
    texts = [rollout.response[:MOST_CHARACTERS] for rollout in rollouts]
    return {
        "left": _side(reader, parse_place(left)[0], rollouts[0]),
        "right": _side(reader, parse_place(right)[0], rollouts[1]),
        "parts": word_diff(texts[0], texts[1]),
    }


def _side(reader: RunReader, iteration: int, rollout: Any) -> dict[str, Any]:
    return {
        "iteration": iteration,
        "group": rollout.group,
        "index": rollout.index,
        "prompt": rollout.prompt[:MOST_CHARACTERS],
        "response": rollout.response_start(MOST_CHARACTERS),
        "reward": rollout.reward,
        "length": rollout.num_tokens or 0,
        "place": rollout_address(reader.name, iteration, rollout.group, rollout.index),
    }


def parse_place(place: str) -> tuple[int, str, int]:
    """(iteration, group, index) of "12/12:word_problems/train/3/0"; a group may have slashes."""
    iteration, _, rest = place.partition("/")
    group, _, index = rest.rpartition("/")
    if not (iteration.isdecimal() and index.isdecimal() and group):
        raise BadRequestError("left and right are ITERATION/GROUP/INDEX")
    if len(iteration) > 9 or len(index) > 9:
        raise BadRequestError("left and right: a number is too large")
    return int(iteration), group, int(index)


def word_diff(left: str, right: str) -> list[dict[str, str]]:
    """Stretches of both texts ("same") or of one of them ("left", "right"), in order.

    Example:
        >>> word_diff("a b c", "a x c")[1:3]
        [{'kind': 'left', 'text': 'b'}, {'kind': 'right', 'text': 'x'}]
    """
    left_words, right_words = (re.findall(r"\s+|\w+|[^\w\s]", text) for text in (left, right))
    shorter = min(len(left_words), len(right_words))
    start = 0
    while start < shorter and left_words[start] == right_words[start]:
        start += 1
    end = 0
    while end < shorter - start and left_words[-1 - end] == right_words[-1 - end]:
        end += 1
    left_middle = left_words[start : len(left_words) - end]
    right_middle = right_words[start : len(right_words) - end]
    stretches = [("same", left_words[:start])]
    if max(len(left_middle), len(right_middle)) > MOST_WORDS:
        stretches += [("left", left_middle), ("right", right_middle)]
    else:
        matcher = SequenceMatcher(None, left_middle, right_middle, autojunk=False)
        for kind, left_start, left_end, right_start, right_end in matcher.get_opcodes():
            if kind == "equal":
                stretches.append(("same", left_middle[left_start:left_end]))
            else:
                stretches.append(("left", left_middle[left_start:left_end]))
                stretches.append(("right", right_middle[right_start:right_end]))
    stretches.append(("same", left_words[len(left_words) - end :]))
    return [{"kind": kind, "text": "".join(words)} for kind, words in stretches if words]
