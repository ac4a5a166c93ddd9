"""What an environment is: who answers a response, and when it has nothing more to say.

    problem -> turn 1 -> told -> turn 2 -> told -> ... -> turn k        an episode is one rollout

The policy's turns are trained, what it was told is not. `sample/episodes.py` plays it; whether a
turn is right is the verifier's to say, so that the environment and the reward never disagree.
"""

from __future__ import annotations

from typing import Protocol

from counterpoise.types import Prompt
from counterpoise.verify.math.boxed import boxed, boxes
from counterpoise.verify.math.numbers import number


class Environment(Protocol):
    """Made of (turns) by the table in `task/__init__.py`."""

    turns: int  # at most

    def action(self, response: str) -> tuple[int, int]:
        """Which characters [start, end) of a turn are what is judged; (0, 0): none."""

    def feedback(self, prompt: Prompt, response: str, right: bool) -> str:
        """What there is to say of a turn; "" ends the episode."""

    def ask(self, prompt: Prompt, feedback: str) -> str:
        """What the policy is told before its next turn."""


# A problem may be tried again: after a wrong answer, whether it was too much or too little.
#
#     problem     Ana has 31 dollars. She buys 4 pens for 3 dollars each. How many dollars are left?
#     turn 1      ... The answer is \boxed{43}.
#     told        43 is too many. Ana has 31 dollars. She buys ...
#     turn 2      ... The answer is \boxed{19}.                  the last answer counts
#
# Works with any task: answers that are no numbers are only told that they are wrong. The problem is
# told again, because a small model that finds it just before its turn fares better (docs/turns.md).
# The words are among those that the embedded model knows. Which tokens are the answer, for credit
# that looks at actions (`credit/hindsight.py`): the last box, braces included.

MAX_ECHOED_CHARACTERS = 40  # digits of a number that is said back
NO_ANSWER_FEEDBACK = "The answer is not there."
WRONG_ANSWER_FEEDBACK = "The answer is not that."


class TriesEnvironment:
    """`turns` tries at most."""

    def __init__(self, turns: int) -> None:
        self.turns = turns

    def action(self, response: str) -> tuple[int, int]:
        last = max(boxes(response), default=None)
        return (last.mark, last.end + 1) if last else (0, 0)

    def feedback(self, prompt: Prompt, response: str, right: bool) -> str:
        r"""
        Example:
            >>> one = Prompt("1", "How many?", "19")
            >>> Tries(2).feedback(one, "so \\boxed{43}", right=False)
            '43 is too many.'
        """
        if right:
            return ""
        answer = boxed(response)
        if not answer:
            return NO_ANSWER_FEEDBACK
        given, wanted = number(answer), number(prompt.answer)
        if given is None or wanted is None or given.value == wanted.value:
            return WRONG_ANSWER_FEEDBACK
        shown = str(given.value)  # the number alone: a policy puts no words into this mouth
        if len(shown) > MAX_ECHOED_CHARACTERS:
            return WRONG_ANSWER_FEEDBACK
        if given.value > wanted.value:
            return f"{shown} is too many."
        return f"It is more than {shown}."

    def ask(self, prompt: Prompt, feedback: str) -> str:
        return f"{feedback} {prompt.problem}"
