r"""Compare final answers with references by our own math verifier, without trusting the reward.

The final answer of a response is its last box, else what follows `####`, else what follows "answer
is" at the end. Most comparisons are decided by the text in microseconds (verify/math/decide.py);
the others go to computer algebra in worker processes, at most ALGEBRA_LIMIT of them in an audit.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from types import TracebackType
from typing import NamedTuple, Self

from counterpoise.verify.math.boxed import extract_boxed
from counterpoise.verify.math.decide import decide_by_text
from counterpoise.verify.math.numbers import parse_number
from counterpoise.verify.math.verifier import MathVerifier

ALGEBRA_LIMIT = 300  # distinct pairs of answer and reference
ALGEBRA_SECONDS = 2.0  # for one pair
LONGEST_ANSWER = 200  # characters: longer text is no final answer
_HASHES = re.compile(r"####\s*(.+?)\s*$", re.MULTILINE)
_SENTENCE = re.compile(
    r"answer(?:\s+is|\s*:)\s*:?\s*\**\s*\$?(.+?)\$?\**\s*[.!]?\s*$", re.IGNORECASE | re.MULTILINE
)


class FinalAnswer(NamedTuple):
    """What a response answers, and whether it stands in a box."""

    text: str
    boxed: bool


def final_answer(response: str) -> FinalAnswer | None:
    r"""The final answer of a response; None if it states none.

    Example:
        >>> final_answer("so \\boxed{12}"), final_answer("... The answer is 12.")
        (FinalAnswer(text='12', boxed=True), FinalAnswer(text='12', boxed=False))
    """
    content = extract_boxed(response)
    if content is not None:
        return FinalAnswer(content, True) if len(content) <= LONGEST_ANSWER else None
    tail = response[-4 * LONGEST_ANSWER :]
    for pattern in (_HASHES, _SENTENCE):
        if matches := pattern.findall(tail):
            return FinalAnswer(matches[-1][:LONGEST_ANSWER], False)
    return None


@lru_cache(maxsize=65_536)
def tidy_reference(answer: str) -> str:
    """The reference alone: GSM8K's come after a worked solution, others in a box."""
    if "####" in answer:
        answer = answer.rpartition("####")[2]
    boxed = extract_boxed(answer)
    return (boxed if boxed is not None else answer).strip()


@lru_cache(maxsize=65_536)
def is_number(reference: str) -> bool:
    """Whether the reference is a plain number, whose comparison is certain."""
    return parse_number(reference, bare_units=False) is not None


class AnswerChecker:
    """Decides whether answers are right, and bounds the use of computer algebra."""

    def __init__(self) -> None:
        self._verdicts: dict[tuple[str, str], bool | None] = {}
        self._verifier = MathVerifier(timeout_seconds=ALGEBRA_SECONDS, workers=1)
        self.algebra_pairs = 0
        self.undecided_pairs = 0  # beyond the limit, or stopped before there was a verdict

    def check(self, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
        """Whether each answer equals its reference; None where nothing can be said."""
        hard_pairs: dict[tuple[str, str], None] = {}
        if len(self._verdicts) > 200_000:  # bounded memory; answers repeat within an iteration
            self._verdicts.clear()
        for pair in pairs:
            if pair not in self._verdicts:
                self._verdicts[pair] = decide_by_text(*pair)
                if self._verdicts[pair] is None:
                    hard_pairs[pair] = None
        budget = max(0, ALGEBRA_LIMIT - self.algebra_pairs)
        self.undecided_pairs += max(0, len(hard_pairs) - budget)
        for pair in list(hard_pairs)[:budget]:
            self.algebra_pairs += 1
            self._verdicts[pair] = self._compare_by_algebra(*pair)
            self.undecided_pairs += self._verdicts[pair] is None
        return [self._verdicts[pair] for pair in pairs]

    def _compare_by_algebra(self, answer: str, reference: str) -> bool | None:
        """Whether the two are equal; None if the comparison took too long or crashed."""
        scores = self._verifier.score([f"\\boxed{{{answer}}}"], [reference])
        return None if scores.timeouts or scores.crashes else scores.rewards[0] > 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._verifier.close()
