r"""reward = 1 if the last `\boxed{...}` of the response equals the reference answer; else 0.

    no box                                      0
    settled by the text alone (decide.py)       0 or 1
    otherwise, Math-Verify in a worker process  1 if equal; 0 if not, if it hangs, if it crashes

Equality is mathematical, but an answer has to be evaluated: 5+6 is not 11. See numbers.py for what
counts as a number and unfinished_work.py for other references. An answer of more than 2,000
characters scores 0.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Self

from counterpoise.types import Prompt
from counterpoise.verify.math.boxed import extract_boxed
from counterpoise.verify.math.decide import decide_by_text
from counterpoise.verify.scores import Scores
from counterpoise.verify.worker_pool import WorkerPool

MAX_CACHED_VERDICTS = 65_536  # verdicts kept: the responses of a group repeat each other's answers
MATH_VERIFY = "counterpoise.verify.math.equivalence:equivalent"


class MathVerifier:
    """Scores mathematical answers. Workers start when first needed and end with `close`.

    `compare` names the function `(answer, gold) -> bool` that workers run, as "module:function".
    """

    def __init__(
        self, timeout_seconds: float = 5.0, workers: int = 2, compare: str = MATH_VERIFY
    ) -> None:
        self._pool = WorkerPool(compare, timeout_seconds, workers)
        self._verdicts: dict[tuple[str, str], bool] = {}
        self._lock = threading.Lock()

    def score(
        self, responses: Sequence[str], answers: Sequence[str], prompts: Sequence[Prompt] = ()
    ) -> Scores:
        r"""One reward per (response, answer) pair, in order.

        Example:
            >>> MathVerifier().score(["\\boxed{0.50}", "\\boxed{5+6}"], ["1/2", "11"]).rewards
            [1.0, 0.0]
        """
        pairs = [
            None if (content := extract_boxed(response)) is None else (content, answer.strip())
            for response, answer in zip(responses, answers, strict=True)
        ]
        verdicts: dict[tuple[str, str] | None, bool | None] = {None: False}
        with self._lock:
            for pair in pairs:
                if pair is not None and pair not in verdicts:
                    known = self._verdicts.get(pair)
                    verdicts[pair] = decide_by_text(*pair) if known is None else known
            asked = [pair for pair, verdict in verdicts.items() if pair and verdict is None]
            outcomes = self._pool.run(asked)
            for pair, outcome in zip(asked, outcomes, strict=True):
                verdicts[pair] = outcome == "equal"
                if outcome in ("equal", "different"):  # a fault may be the machine's: ask again
                    self._cache_verdict(pair, outcome == "equal")
        return Scores(
            rewards=[float(verdicts[pair] or False) for pair in pairs],
            timeouts=outcomes.count("timeout"),
            crashes=outcomes.count("crash"),
        )

    def close(self) -> None:
        """End the workers. A verifier that is never closed ends them when it is collected."""
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _cache_verdict(self, pair: tuple[str, str], verdict: bool) -> None:
        while len(self._verdicts) >= MAX_CACHED_VERDICTS:
            self._verdicts.pop(next(iter(self._verdicts)))
        self._verdicts[pair] = verdict
