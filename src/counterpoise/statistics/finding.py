"""What a measurement leaves: records, numbers with intervals, and a verdict."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from counterpoise import __version__

SCHEMA = 1  # of NAME.json, and of the table beside it
Record = dict[str, Any]  # plain values; a key missing from a record is None in the parquet file
Records = Sequence[Record]
Verdict = Literal["replicated", "not replicated", "inconclusive"]


@dataclass(frozen=True, slots=True)
class Number:
    """One number of a figure, beside the paper's.

    Example:
        Number("boosted, positive rollouts", 0.46, 0.44, 0.49, paper=0.45, unit="share")
    """

    name: str
    value: float
    low: float | None = None  # 95 %, by bootstrap over prompts, or over seeds where arms compare
    high: float | None = None
    paper: float | None = None  # None: the paper prints no number
    unit: str = ""  # "share" is shown in percent


@dataclass(frozen=True, slots=True)
class Finding:
    verdict: Verdict
    because: str  # one or two sentences with the numbers that decided
    numbers: tuple[Number, ...]
    notes: tuple[str, ...] = ()  # what a reader must know besides: limits, surprises


def finding_to_json(about: Mapping[str, Any], finding: Finding, seconds: float) -> str:
    """NAME.json, as lab/studies/page.py reads it. `about`: study, title, shows, claim and rule,
    then
    the settings it was measured at. JSON has no word for nan: null."""
    found = {
        "schema": SCHEMA,
        **about,
        **asdict(finding),
        "seconds": round(seconds, 1),
        "version": __version__,
    }
    whole = json.loads(json.dumps(found), parse_constant=lambda _: None)
    return json.dumps(whole, indent=1, ensure_ascii=False)
