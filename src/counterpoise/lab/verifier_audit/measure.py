"""Run the verifier on all cases, one call each: wrong verdicts, timeouts, crashes, seconds."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from counterpoise.lab.verifier_audit.cases import KINDS, RIGHT, AuditCase, box_answer, make_cases
from counterpoise.types import Prompt
from counterpoise.verify.math.comparison_pool import ComparisonPool
from counterpoise.verify.math.numbers import parse_number
from counterpoise.verify.math.verifier import MATH_VERIFY, MathVerifier
from counterpoise.verify.scores import Verifier

SCHEMA = 1
# References that are not numbers, checked against themselves by Math-Verify alone.
ALGEBRA_KIND = "algebra"
MAX_LISTED_CASES = 50  # wrong verdicts listed for each kind


@dataclass(slots=True)
class Tally:
    """The counts and times of one kind of case."""

    cases: int = 0
    timeouts: int = 0
    crashes: int = 0  # a crash gives reward 0, which is the right verdict on a wrong answer
    seconds: float = 0.0
    slowest: float = 0.0
    slowest_case: AuditCase | None = None
    wrong: list[AuditCase] = field(default_factory=list)

    def add(
        self, case: AuditCase, right: bool, seconds: float, *, timeouts: int, crashes: int
    ) -> None:
        self.cases += 1
        self.timeouts += timeouts
        self.crashes += crashes
        self.seconds += seconds
        if seconds > self.slowest:
            self.slowest, self.slowest_case = seconds, case
        if right != case.right:
            self.wrong.append(case)


def audit_verifier(
    problems: Sequence[Prompt], items: int, pairs: int, timeout_seconds: float
) -> dict[str, Tally]:
    """Audit the verifier on one benchmark; returns a tally for every kind of case."""
    with MathVerifier(timeout_seconds, workers=1) as verifier:
        tallies = tally_cases(make_cases(problems, items, pairs), verifier)
    return {
        **tallies,
        ALGEBRA_KIND: tally_algebra([problem.answer for problem in problems], timeout_seconds),
    }


def tally_cases(cases: Iterable[AuditCase], verifier: Verifier) -> dict[str, Tally]:
    """A tally for every kind of case; each response is verified in a separate call."""
    tallies = {kind: Tally() for kind in KINDS}
    roots = count(2)  # a new one for every warm-up, because verdicts are cached
    _warm_up(verifier, next(roots))
    for case in cases:
        start_time = time.perf_counter()
        scores = verifier.score([case.response], [case.gold])
        seconds = time.perf_counter() - start_time
        tallies[case.kind].add(
            case,
            scores.rewards[0] > 0,
            seconds,
            timeouts=scores.timeouts,
            crashes=scores.crashes,
        )
        if scores.timeouts + scores.crashes:  # the worker was killed: start another, untimed
            _warm_up(verifier, next(roots))
    return tallies


def tally_algebra(golds: Sequence[str], timeout_seconds: float) -> Tally:
    """Time computer algebra on answers that comparing the text would settle at once."""
    tally, pool = Tally(), ComparisonPool(MATH_VERIFY, timeout_seconds, workers=1)
    pool.run([("1", "1")])
    for gold in dict.fromkeys(golds):
        if parse_number(gold, bare_units=False) is not None:  # numbers never reach computer algebra
            continue
        start_time = time.perf_counter()
        outcome = pool.run([(gold, gold)])[0]
        seconds = time.perf_counter() - start_time
        case = AuditCase(ALGEBRA_KIND, "", box_answer(gold), gold, right=True)
        tally.add(
            case,
            outcome == "equal",
            seconds,
            timeouts=int(outcome == "timeout"),
            crashes=int(outcome == "crash"),
        )
    pool.close()
    return tally


def tallies_to_data(tallies: dict[str, Tally]) -> dict[str, Any]:
    """The tallies of one benchmark as JSON data, for --json."""
    num_verified = sum(tally.cases for kind, tally in tallies.items() if kind in KINDS)
    return {
        "schema": SCHEMA,
        "verified": num_verified,
        "seconds": round(sum(tallies[kind].seconds for kind in KINDS), 3),
        "slowest_seconds": round(max(tally.slowest for tally in tallies.values()), 3),
        "timeouts": sum(tally.timeouts for tally in tallies.values()),
        "crashes": sum(tally.crashes for tally in tallies.values()),
        "kinds": {kind: _kind_to_data(kind, tally) for kind, tally in tallies.items()},
    }


def _kind_to_data(kind: str, tally: Tally) -> dict[str, Any]:
    slowest = tally.slowest_case
    return {
        "expected": 1 if kind in (*RIGHT, ALGEBRA_KIND) else 0,
        "cases": tally.cases,
        "wrong": len(tally.wrong),
        "timeouts": tally.timeouts,
        "crashes": tally.crashes,
        "mean_ms": round(1000 * tally.seconds / tally.cases, 3) if tally.cases else None,
        "slowest_ms": round(1000 * tally.slowest, 1),
        "slowest": {"gold": slowest.gold, "response": slowest.response} if slowest else None,
        "wrong_cases": [
            {"form": case.form, "gold": case.gold, "response": case.response}
            for case in tally.wrong[:MAX_LISTED_CASES]
        ],
    }


def _warm_up(verifier: Verifier, root: int) -> None:
    """Start a worker before timing, by verifying a pair that is not in the cache."""
    verifier.score([box_answer(f"\\sqrt{{{3 * root * root}}}")], [f"{root}\\sqrt{{3}}"])
