r"""reward = 1 if the last `\boxed{...}` equals the answer, white space aside; else 0.

For answers that are not mathematics: words, orderings, grids. A run of white space (line breaks
included) counts as one space, and leading and trailing white space is ignored. Letter case and
punctuation must match.
"""

from __future__ import annotations

from collections.abc import Sequence

from counterpoise.types import Prompt
from counterpoise.verify.math.boxed import extract_boxed
from counterpoise.verify.scores import Scores


class ExactVerifier:
    """Scores by string equality. Accepts the options that every verifier gets, and ignores them."""

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
        return Scores(
            [
                _exact_match(response, answer)
                for response, answer in zip(responses, answers, strict=True)
            ]
        )

    def close(self) -> None:
        """Nothing to release."""


def _exact_match(response: str, answer: str) -> float:
    content = extract_boxed(response)
    return float(content is not None and content.split() == answer.split())
