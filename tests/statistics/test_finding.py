"""Verdicts on several claims, joined into one."""

from __future__ import annotations

import json

import pytest

from counterpoise.statistics.finding import (
    ClaimVerdict,
    Finding,
    Verdict,
    finding_to_json,
    join_verdicts,
)


@pytest.mark.parametrize(
    ("first", "second", "joined"),
    [
        ("replicated", "replicated", "replicated"),
        ("untestable here", "untestable here", "untestable here"),
        ("replicated", "not replicated", "not replicated"),
        ("untestable here", "not replicated", "not replicated"),
        ("replicated", "untestable here", "inconclusive"),
        ("replicated", "inconclusive", "inconclusive"),
    ],
)
def test_one_refuted_claim_refutes_the_whole(
    first: Verdict, second: Verdict, joined: Verdict
) -> None:
    assert join_verdicts([ClaimVerdict("a", first), ClaimVerdict("b", second)]) == joined


def test_claims_are_in_the_json() -> None:
    finding = Finding("replicated", "So.", (), claims=(ClaimVerdict("a", "replicated"),))
    content = json.loads(finding_to_json({"study": "x"}, finding, 1.0))
    assert content["claims"] == [{"claim": "a", "verdict": "replicated"}]
