r"""reward = 1 if the program in the response passes all tests of its problem; else 0.

    program   the last code block that is marked python, python3 or py, or has no mark; one that
              is not closed ends with the response; at most 50,000 characters
    tests     the problem's answer, as Python (checks.py): assert solve([1, 2]) == 3
    0         no program, an error, a wrong value, a timeout, a crash

Every program runs in a process of its own without network and files (sandbox.py). `logged` says of
each response what came out and which protection was in force; rollouts/ has it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from counterpoise.types import Prompt
from counterpoise.verify.code.checks import parse_tests
from counterpoise.verify.code.sandbox import available_layers, name_protection, run_sandboxed
from counterpoise.verify.scores import Scores

# ```code``` within a line is skipped. A block of any language is matched, so that the fence that
# closes it is not taken for one that opens. A fence with a language always opens a block, even
# where the block before it was not closed.
BLOCK = re.compile(
    r"```[^`\n]+```|```(?P<language>[^`\n]*)\n(?P<text>.*?)(?:(?=```\w+[ \t]*\n)|```|\Z)", re.DOTALL
)
PROGRAM_LANGUAGES = ("", "python", "python3", "py")
MAX_PROGRAM_CHARACTERS = 50_000
PASSED, NO_PROGRAM = "passed", "no program"


class CodeVerifier:
    """Scores programs by running them, `workers` at a time."""

    def __init__(self, timeout_seconds: float = 5.0, workers: int = 2) -> None:
        self._timeout_seconds = timeout_seconds
        self._workers = workers

    def score(
        self, responses: Sequence[str], answers: Sequence[str], prompts: Sequence[Prompt] = ()
    ) -> Scores:
        r"""One reward for each (response, tests) pair, in order.

        Example:
            >>> CodeVerifier().score(["```python\nf = abs\n```"], ["assert f(-2) == 2"]).rewards
            [1.0]
        """
        pairs = [
            (extract_program(response), tests)
            for response, tests in zip(responses, answers, strict=True)
        ]
        # Responses of a group are often the same program.
        distinct = list(dict.fromkeys(pairs))
        with ThreadPoolExecutor(self._workers) as executor:
            verdicts = dict(zip(distinct, executor.map(self._judge, distinct), strict=True))
        protection = name_protection(available_layers())
        logged: list[Mapping[str, Any]] = [
            {
                "code": verdicts[pair],
                "sandbox": protection,
                **({"lost": verdicts[pair]} if verdicts[pair] in ("timeout", "crash") else {}),
            }
            for pair in pairs
        ]
        outcomes = [verdicts[pair] for pair in pairs]
        return Scores(
            rewards=[float(outcome == PASSED) for outcome in outcomes],
            timeouts=outcomes.count("timeout"),
            crashes=outcomes.count("crash"),
            logged=logged,
        )

    def _judge(self, pair: tuple[str | None, str]) -> str:
        """`passed`, or what went wrong first."""
        program, tests = pair
        checks = parse_tests(tests)
        if program is None or len(program) > MAX_PROGRAM_CHARACTERS:
            return NO_PROGRAM
        sent = [(check.kind, check.text) for check in checks]
        result = run_sandboxed(program, sent, self._timeout_seconds)
        if result.outcome != "ran":
            return result.outcome
        for number, (check, reply) in enumerate(zip(checks, result.replies, strict=True), start=1):
            if not check.passes(reply):
                # The reply comes from the untrusted process: 40 characters of it are enough.
                return f"test {number} of {len(checks)}: {str(reply.get('error', 'wrong'))[:40]}"
        return PASSED

    def close(self) -> None:
        """Nothing to release."""


def extract_program(response: str) -> str | None:
    """The last block of Python, or of no language; None without one.

    Example:
        >>> extract_program("```python\\nx = 1\\n```\\nIt prints:\\n```text\\n1\\n```\\nDone.")
        'x = 1\\n'
    """
    programs = [
        block["text"]
        for block in BLOCK.finditer(response)
        if block["language"] is not None and block["language"].strip().lower() in PROGRAM_LANGUAGES
    ]
    return programs[-1] if programs else None
