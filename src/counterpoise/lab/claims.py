"""docs/data/claims.csv: the paper's claims, one line for each claim and model.

What was measured, how and by which rule is written by hand. The effect, its interval, the verdict
and the full rule follow from the stored records, wherever the line names a number in them:

    record           the table of a study, such as docs/data/embedded-proxy.parquet
    record_number    a number of the study's finding, such as "sign agreement, adamw"

SmolLM2's older studies stored their numbers alone (docs/data/smollm2-studies.parquet): then the
effect follows and the verdict stays as it is written. Lines of training experiments name no number;
tests/test_claims.py compares them with the runs.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from counterpoise.errors import PoiseError
from counterpoise.files import atomic_write
from counterpoise.lab.studies.records import read_table
from counterpoise.lab.studies.study import load_study
from counterpoise.statistics.finding import Finding

CLAIMS = Path("docs/data/claims.csv")
STORED_NUMBERS = Path("docs/data/smollm2-studies.parquet")
NOT_STORED = "not stored"
# The study of each claim, and which of the claims that it judges it is.
STUDIES_OF_CLAIMS = {
    "1": ("flipping", 0), "2": ("flipping", 1), "3": ("coupling", 0), "4": ("masking", 0),
    "5": ("polarity", 0), "6": ("value", 0), "7": ("budget", 0), "8": ("composition", 0),
    "9": ("repeated", 0), "10": ("variance", 0), "11": ("proxy", 0), "15": ("shared", 0),
    "16": ("shared", 1), "17": ("shared", 2),
}  # fmt: skip
SIGNED_UNITS = ("", "points")  # differences, which are written with their sign
MeasuredInterval = tuple[float, float | None, float | None]  # value, low, high; None: no interval
PrintedInterval = tuple[str, str, str]  # the same as text; "" for None


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim on one model, as claims.csv prints it.

    Example:
        Claim(number="4", claim="...", figure="Table 1", model="embedded", quantity="Boost Rate",
              unit="%", decimals="0", effect="31", low="27", high="34", paper="74",
              n="64 prompts", verdict="not replicated", ...)
    """

    number: str
    claim: str
    figure: str
    model: str
    quantity: str  # what the effect is
    unit: str  # "%", "points", "times" or ""
    decimals: str  # of effect, low and high
    effect: str  # "" where nothing was measured
    low: str
    high: str
    paper: str  # the paper's value; "" where it prints none
    n: str
    verdict: str  # a Verdict of statistics/finding.py, or "not tested"
    criterion: str  # the rule in a phrase
    rule: str  # in full, as the study or the experiment has it
    rule_fixed: str  # "before the runs", "after the runs" or "not run"
    command: str
    record: str  # file, or NOT_STORED
    record_number: str  # name of the number in that file; "" where it has to be computed

    @property
    def effect_text(self) -> str:
        """The effect as the page prints it: "35 % [21, 49]"."""
        return interval_text((self.effect, self.low, self.high), self.unit)


def interval_text(printed: PrintedInterval, unit: str) -> str:
    """A number with its unit and interval as the page prints it: "35 % [21, 49]"."""
    value, low, high = printed
    with_unit = f"{value} {unit}".strip() if value else ""
    return f"{with_unit} [{low}, {high}]" if low else with_unit


def read_claims(path: Path) -> list[Claim]:
    names = [column.name for column in fields(Claim)]
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            if reader.fieldnames != names:
                raise PoiseError(f"{path} must have the columns {', '.join(names)}")
            lines = list(reader)
            # A line with a comma too many has a field without a name, one with too few a None.
            if any(None in line or None in line.values() for line in lines):
                raise PoiseError(f"{path} has a line with too many or too few fields: quote commas")
            return [Claim(**line) for line in lines]
    except FileNotFoundError as fault:
        raise PoiseError(
            f"{path} is missing: run `poise study replication` in a checkout of the repository"
        ) from fault


def write_claims(path: Path, claims: Sequence[Claim]) -> None:
    names = [column.name for column in fields(Claim)]
    with atomic_write(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([getattr(claim, name) for name in names] for claim in claims)


@dataclass
class StoredRecords:
    """The records below `root` that claims name; each table is judged once."""

    root: Path
    findings: dict[str, Finding] = field(default_factory=dict)

    def judge(self, study: str, record: str) -> Finding:
        """What the study says of its stored table."""
        if record not in self.findings:
            records = read_table(self.root / record).records
            self.findings[record] = load_study(study).judge(records)
        return self.findings[record]

    def find_number(self, study: str, record: str, name: str) -> MeasuredInterval:
        """A number of the study's finding, by its name."""
        if Path(record) == STORED_NUMBERS:
            return self.smollm2_numbers[study, name]
        for number in self.judge(study, record).numbers:
            if number.name == name:
                return number.value, number.low, number.high
        raise PoiseError(f"{record} has no number {name!r}: {CLAIMS}")

    @cached_property
    def smollm2_numbers(self) -> dict[tuple[str, str], MeasuredInterval]:
        """(study, name) -> (value, low, high) of the studies whose records are not stored."""
        lines: list[dict[str, Any]] = pq.read_table(self.root / STORED_NUMBERS).to_pylist()
        return {
            (line["study"], line["number"]): (line["value"], line["low"], line["high"])
            for line in lines
        }


def recompute_claim(claim: Claim, stored: StoredRecords) -> Claim:
    if not claim.record_number:
        return claim
    study_name, claim_index = STUDIES_OF_CLAIMS[claim.number]
    measured = stored.find_number(study_name, claim.record, claim.record_number)
    effect, low, high = print_interval(measured, claim.unit, int(claim.decimals))
    verdict = claim.verdict
    if Path(claim.record) != STORED_NUMBERS:
        finding = stored.judge(study_name, claim.record)
        verdict = finding.claims[claim_index].verdict if finding.claims else finding.verdict
    rule = load_study(study_name).rule
    return replace(claim, rule=rule, verdict=verdict, effect=effect, low=low, high=high)


def print_interval(measured: MeasuredInterval, unit: str, decimals: int) -> PrintedInterval:
    """The number and its interval as text; shares become percent, differences get a sign."""
    scale = 100 if unit in ("%", "points") else 1
    sign = "+" if unit in SIGNED_UNITS else ""
    value, low, high = (
        "" if number is None else f"{scale * number:{sign}.{decimals}f}" for number in measured
    )
    return value, low, high
