r"""reward = 1 if the last `\boxed{...}` of the response equals the reference answer; else 0.

    no box                                      0
    decided by the text alone (decide.py)       0 or 1
    otherwise, Math-Verify in a worker process  1 if equal; 0 if not, on a timeout, on a crash

Equality is mathematical, but an answer must be worked out: 5+6 does not answer 11. numbers.py
defines what counts as a number, and unfinished_work.py covers other references. An answer of more
than 2,000 characters scores 0, unless the reference is as long.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Self

from counterpoise.types import Prompt
from counterpoise.verify.math.boxed import extract_boxed
from counterpoise.verify.math.comparison_pool import ComparisonPool
from counterpoise.verify.math.decide import decide_by_text
from counterpoise.verify.scores import Scores

MAX_CACHED_VERDICTS = 65_536  # caching pays because responses of a group often share an answer
MATH_VERIFY = "counterpoise.verify.math.equivalence:equivalent"


class MathVerifier:
    """Scores mathematical answers. Workers start when they are first needed; `close` ends them.

    `compare` names the function `(given, reference) -> bool` that workers run: "module:function".
    """

    def __init__(
        self, timeout_seconds: float = 5.0, workers: int = 2, compare: str = MATH_VERIFY
    ) -> None:
        self._pool = ComparisonPool(compare, timeout_seconds, workers)
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
            None if (given := extract_boxed(response)) is None else (given, reference.strip())
            for response, reference in zip(responses, answers, strict=True)
        ]
        # None stands for a response without a box; its verdict is False. Duplicate pairs are
        # compared once.
        verdicts: dict[tuple[str, str] | None, bool | None] = {None: False}
        with self._lock:
            for pair in pairs:
                if pair is not None and pair not in verdicts:
                    cached = self._verdicts.get(pair)
                    verdicts[pair] = decide_by_text(*pair) if cached is None else cached
            undecided = [pair for pair, verdict in verdicts.items() if pair and verdict is None]
            outcomes = self._pool.run(undecided)
            lost = {
                pair: outcome
                for pair, outcome in zip(undecided, outcomes, strict=True)
                if outcome in ("timeout", "crash")
            }
            for pair, outcome in zip(undecided, outcomes, strict=True):
                verdicts[pair] = outcome == "equal"
                # A timeout or a crash may be the machine's fault: compare this pair again the
                # next time it occurs.
                if outcome in ("equal", "different"):
                    self._cache_verdict(pair, outcome == "equal")
        return Scores(
            rewards=[float(verdicts[pair] or False) for pair in pairs],
            timeouts=outcomes.count("timeout"),
            crashes=outcomes.count("crash"),
            logged=[{"lost": lost[pair]} if pair in lost else {} for pair in pairs] if lost else [],
        )

    def close(self) -> None:
        """End the workers; without a call, they end when the verifier is garbage-collected."""
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _cache_verdict(self, pair: tuple[str, str], verdict: bool) -> None:
        while len(self._verdicts) >= MAX_CACHED_VERDICTS:
            self._verdicts.pop(next(iter(self._verdicts)))
        self._verdicts[pair] = verdict
