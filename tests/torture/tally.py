"""The counts of a torture, and the table of docs/results/trust.md that they become."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from server import Outcome

BEGIN, END = "<!-- table: make torture -->", "<!-- end of table -->"
COUNTS = ("injected", "disks", "runs", "differences", "tracebacks", "hangs")
MAX_EXAMPLES = 5


@dataclass(slots=True)
class Tally:
    """One line of the table, or what one case adds to it."""

    fault: str
    injected: int = 0  # faults, including those that leave the same disk as another one
    disks: int = 0  # different contents of the folder after the fault, where equal ones are skipped
    runs: int = 0  # processes or readings afterwards
    differences: int = 0
    tracebacks: int = 0
    hangs: int = 0
    examples: list[str] = field(default_factory=list)  # of what went wrong

    def count(self, outcome: Outcome) -> None:
        self.runs += 1
        self.tracebacks += outcome.has_traceback or not (outcome.is_clean or outcome.hung)
        self.hangs += outcome.hung
        if not outcome.is_clean:
            self.note(f"exit code {outcome.code}: {outcome.printed[-600:]}")

    def blame(self, what: str) -> None:
        """Count a difference and keep its description."""
        self.differences += 1
        self.note(what)

    def note(self, what: str) -> None:
        if len(self.examples) < MAX_EXAMPLES:
            self.examples.append(what)

    def add(self, other: Tally) -> None:
        for name in COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for example in other.examples:
            self.note(example)

    @property
    def is_clean(self) -> bool:
        return not (self.differences or self.tracebacks or self.hangs)


def sum_tallies(tallies: Iterable[Tally]) -> list[Tally]:
    """One tally for each fault, in the order in which faults appear."""
    sums: dict[str, Tally] = {}
    for tally in tallies:
        sums.setdefault(tally.fault, Tally(tally.fault)).add(tally)
    return list(sums.values())


def format_table(tallies: list[Tally]) -> str:
    lines = ["|fault|injected|different disks|runs after it|differences|tracebacks|hangs|"]
    lines.append("|---|---|---|---|---|---|---|")
    lines += [
        f"|{tally.fault}|{tally.injected:,}|{f'{tally.disks:,}' if tally.disks else ''}|"
        f"{tally.runs:,}|{tally.differences}|{tally.tracebacks}|{tally.hangs}|"
        for tally in tallies
    ]
    return "\n".join(lines)


def write_table(page: Path, tallies: list[Tally], remark: str) -> None:
    """Replace the table of the page."""
    text = page.read_text(encoding="utf-8")
    table = f"{BEGIN}\n\n{format_table(tallies)}\n\n{remark}\n\n{END}"
    pattern = re.escape(BEGIN) + ".*" + re.escape(END)
    page.write_text(re.sub(pattern, lambda _: table, text, flags=re.DOTALL), encoding="utf-8")
