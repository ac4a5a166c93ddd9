r"""reward = 1 if the last number of the response equals the answer, 0 otherwise.

For replies that have no box, such as those of `task.name=role_play`. A number may have a sign, a
decimal fraction and commas between groups of three digits; 3 equals 3.0. The answer must be one
number too, possibly after a worked solution and "####", as in GSM8K; `check_number` sees to it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Self

from counterpoise.errors import PoiseError
from counterpoise.types import Prompt
from counterpoise.verify.scores import Scores

# Digits are limited, because exact fractions of very long numbers take long to compare.
NUMBER = re.compile(
    r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3}){1,6}|\d{1,24})(?:\.\d{1,24})?(?![\w]|\.\d)"
)


class LastNumberVerifier:
    """Scores by the last number. Accepts the options that every verifier gets, and ignores them."""

    def __init__(self, timeout_seconds: float = 0.0, workers: int = 0) -> None:
        pass

    def score(
        self, responses: Sequence[str], answers: Sequence[str], prompts: Sequence[Prompt] = ()
    ) -> Scores:
        """One reward per (response, answer) pair.

        Example:
            >>> replies = ["I have 12 + 3 = 15 hats!", "15 of 16"]
            >>> LastNumberVerifier().score(replies, ["15", "15"]).rewards
            [1.0, 0.0]
        """
        return Scores(
            [
                float(_numbers_agree(find_last_number(response), find_last_number(answer)))
                for response, answer in zip(responses, answers, strict=True)
            ]
        )

    def close(self) -> None:
        """Nothing to release."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def find_last_number(text: str) -> Fraction | None:
    """
    Example:
        >>> find_last_number("I sold 1,200 of them, that is 2.5 a day.")
        Fraction(5, 2)
    """
    numbers = NUMBER.findall(text)
    return Fraction(numbers[-1].replace(",", "")) if numbers else None


def check_number(answer: str) -> None:
    """Raise an error unless the answer is one number: of 3/4 only the 4 would be compared."""
    if len(NUMBER.findall(answer.rpartition("####")[2])) != 1:
        shown_answer = " ".join(answer.split())[:60]
        raise PoiseError(
            f"its answer '{shown_answer}' is not one number, which the verifier 'last_number' "
            "compares: choose another verifier"
        )


def _numbers_agree(given: Fraction | None, expected: Fraction | None) -> bool:
    return given is not None and given == expected
