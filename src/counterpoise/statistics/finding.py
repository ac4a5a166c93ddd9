"""Results of a measurement: records, numbers with intervals, and a verdict."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from counterpoise import __version__

SCHEMA = 1  # version of NAME.json and of the table beside it
Record = dict[str, Any]  # plain values; a key missing from a record is None in the parquet file
Records = Sequence[Record]
# "inconclusive": the measurement could have decided and did not. "untestable here": the claim
# presupposes something that this model or task does not have, so no amount of data would decide.
Verdict = Literal["replicated", "not replicated", "inconclusive", "untestable here"]


@dataclass(frozen=True, slots=True)
class Number:
    """One number of a figure, beside the paper's.

    Example:
        Number("boosted, positive rollouts", 0.46, 0.44, 0.49, paper=0.45, unit="share")
    """

    name: str
    value: float
    # The 95 % interval: by bootstrap over prompts, or for training runs by Student's t over seeds.
    low: float | None = None
    high: float | None = None
    paper: float | None = None  # None: the paper prints no number
    unit: str = ""  # "share" is shown in percent


@dataclass(frozen=True, slots=True)
class ClaimVerdict:
    """The verdict on one of several claims that a study judges separately.

    Example:
        ClaimVerdict("tokens of negative rollouts are boosted", "replicated")
    """

    claim: str
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of a study: its verdict, the reason, and the numbers behind it."""

    verdict: Verdict
    because: str  # one or two sentences with the numbers that decided
    numbers: tuple[Number, ...]
    notes: tuple[str, ...] = ()  # what a reader must also know: limits, surprises
    claims: tuple[ClaimVerdict, ...] = ()  # of a study with several claims; `verdict` joins them


def join_verdicts(claims: Sequence[ClaimVerdict]) -> Verdict:
    """The verdict on all claims together.

    "not replicated" if any claim is; "replicated" or "untestable here" only if every claim is;
    otherwise "inconclusive".
    """
    verdicts = {claim.verdict for claim in claims}
    if "not replicated" in verdicts:
        return "not replicated"
    return verdicts.pop() if len(verdicts) == 1 else "inconclusive"


def finding_to_json(about: Mapping[str, Any], finding: Finding, seconds: float) -> str:
    """The text of NAME.json, which lab/studies/page.py reads.

    `about` holds study, title, shows, claim and rule, and the settings of the measurement. JSON has
    no nan, so nan becomes null.
    """
    content = {
        "schema": SCHEMA,
        **about,
        **asdict(finding),
        "seconds": round(seconds, 1),
        "version": __version__,
    }
    # json.dumps writes NaN and Infinity, which are not JSON; reading them back makes both None.
    finite_content = json.loads(json.dumps(content), parse_constant=lambda _: None)
    return json.dumps(finite_content, indent=1, ensure_ascii=False)
