r"""reward = 1 if the last `\boxed{...}` equals the answer, white space aside; else 0.

For answers that are not mathematics: words, orders, grids. Runs of white space (line breaks too)
count as one space and none at the ends; letter case and punctuation count as written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from counterpoise.types import Prompt
from counterpoise.verify.math.boxed import extract_boxed
from counterpoise.verify.scores import Scores


class ExactVerifier:
    """Scores by string equality. Takes the options every verifier takes, and needs none."""

    def __init__(self, timeout_seconds: float = 0.0, workers: int = 0) -> None:
        pass

    def score(
        self, responses: Sequence[str], answers: Sequence[str], prompts: Sequence[Prompt] = ()
    ) -> Scores:
        r"""One reward per (response, answer) pair.

        Example:
            >>> ExactVerifier().score(["\\boxed{red  car}", "red car"], ["red car"] * 2).rewards
            [1.0, 0.0]
        """
        return Scores([_exact_match(r, a) for r, a in zip(responses, answers, strict=True)])

    def close(self) -> None:
        """Nothing to release."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _exact_match(response: str, answer: str) -> float:
    content = extract_boxed(response)
    return float(content is not None and content.split() == answer.split())
