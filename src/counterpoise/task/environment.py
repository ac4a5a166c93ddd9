"""Environments: feedback on a response, so that an episode may have several turns.

    problem -> turn 1 -> feedback -> turn 2 -> feedback -> ... -> turn k

An episode is one rollout. The policy's turns are trained, the feedback is not. `sample/episodes.py`
plays an episode. There are two kinds of environments. An `Environment` comments on answers: the
verifier decides whether a turn is right, so that the environment and the reward never disagree. A
`SessionEnvironment` has a state of its own in every episode, such as a game, and may give the
reward itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple, Protocol

from counterpoise.types import Prompt
from counterpoise.verify.math.boxed import extract_boxed, find_boxes
from counterpoise.verify.math.numbers import parse_number


class Environment(Protocol):
    """An environment (ENVIRONMENTS in variants.py), made with the maximum number of turns."""

    turns: int  # the maximum

    def answer_span(self, response: str) -> tuple[int, int]:
        """The characters [start, end) of a turn that hold the answer; (0, 0) if there is none."""

    def feedback(self, prompt: Prompt, response: str, right: bool) -> str:
        """The feedback on a turn; "" ends the episode."""

    def next_message(self, prompt: Prompt, feedback: str) -> str:
        """The text that the policy reads before its next turn."""


class StepOutcome(NamedTuple):
    """What a session answers to one turn."""

    reply: str  # "": none
    reward: float | None
    is_done: bool
    # Whether an episode that is done was a success; None: it was if its reward is above 0.
    is_success: bool | None = None


class EpisodeSession(Protocol):
    """The state of one episode."""

    def reset(self, prompt: Prompt, seed: int) -> str | None:
        """The first message; None: the problem itself."""

    def step(self, response: str, prompt: Prompt) -> StepOutcome:
        """The environment's answer to a turn of the episode about `prompt`."""

    def action(self, response: str, prompt: Prompt) -> tuple[int, int]:
        """The characters [start, end) of the turn's action; (0, 0) if there is none."""


class SessionEnvironment(ABC):
    """An environment that opens a session for each episode."""

    turns: int  # the maximum
    label: str  # what error messages call it
    marks_actions: bool

    @abstractmethod
    def open_session(self) -> EpisodeSession: ...

    def answer_span(self, response: str) -> tuple[int, int]:
        raise NotImplementedError("call action() of the episode's session instead")

    def feedback(self, prompt: Prompt, response: str, right: bool) -> str:
        raise NotImplementedError("call step() of the episode's session instead")

    def next_message(self, prompt: Prompt, feedback: str) -> str:
        return feedback


# The "tries" environment: after a wrong answer, feedback whether it was too large or too small.
#
#     problem     Ana has 31 dollars. She buys 4 pens for 3 dollars each. How many dollars are left?
#     turn 1      ... The answer is \boxed{43}.
#     feedback    43 is too many. Ana has 31 dollars. She buys ...
#     turn 2      ... The answer is \boxed{19}.                  the last answer counts
#
# It works with any task: for answers that are not numbers the feedback only says that they are
# wrong. The problem is repeated, because a small model does better if it reads the problem just
# before its turn. The feedback uses only words that the embedded model knows. The answer's span is
# the last box with its braces; it becomes `Turn.action`, which `credit/serl.py` reads.

MAX_ECHOED_CHARACTERS = 40  # a longer number is not repeated in the feedback
NO_ANSWER_FEEDBACK = "The answer is not there."
WRONG_ANSWER_FEEDBACK = "The answer is not that."


class TriesEnvironment:
    """Feedback after every wrong answer, for at most `turns` tries."""

    def __init__(self, turns: int) -> None:
        self.turns = turns

    def answer_span(self, response: str) -> tuple[int, int]:
        last_box = max(find_boxes(response), default=None)
        return (last_box.command_start, last_box.end + 1) if last_box else (0, 0)

    def feedback(self, prompt: Prompt, response: str, right: bool) -> str:
        r"""
        Example:
            >>> prompt = Prompt("1", "How many?", "19")
            >>> TriesEnvironment(2).feedback(prompt, "so \\boxed{43}", right=False)
            '43 is too many.'
        """
        if right:
            return ""
        answer = extract_boxed(response)
        if not answer:
            return NO_ANSWER_FEEDBACK
        answer_number, reference_number = parse_number(answer), parse_number(prompt.answer)
        if (
            answer_number is None
            or reference_number is None
            or answer_number.value == reference_number.value
        ):
            return WRONG_ANSWER_FEEDBACK
        # Only the parsed number is repeated: a policy must not be able to write its own feedback.
        echoed = str(answer_number.value)
        if len(echoed) > MAX_ECHOED_CHARACTERS:
            return WRONG_ANSWER_FEEDBACK
        if answer_number.value > reference_number.value:
            return f"{echoed} is too many."
        return f"It is more than {echoed}."

    def next_message(self, prompt: Prompt, feedback: str) -> str:
        return f"{feedback} {prompt.problem}"
