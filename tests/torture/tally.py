"""The counts of a torture, and the table of docs/results/trust.md that they become."""

from __future__ import annotations

import math
import re
import time
from dataclasses import dataclass, field
from pathlib import Path

from server import Outcome

BEGIN, END = "<!-- table: make torture -->", "<!-- end of table -->"


@dataclass(slots=True)
class Tally:
    """One line of the table."""

    fault: str
    injected: int = 0  # faults, including those that leave the same disk as another one
    runs: int = 0  # processes or readings afterwards
    differences: int = 0
    tracebacks: int = 0
    hangs: int = 0
    examples: list[str] = field(default_factory=list)  # of what went wrong

    def count(self, outcome: Outcome) -> None:
        self.runs += 1
        self.tracebacks += outcome.has_traceback or not outcome.is_clean
        self.hangs += outcome.hung

    def blame(self, what: str) -> None:
        """Count a difference and keep its description."""
        self.differences += 1
        self.note(what)

    def note(self, what: str) -> None:
        if len(self.examples) < 5:
            self.examples.append(what)

    @property
    def is_clean(self) -> bool:
        return not (self.differences or self.tracebacks or self.hangs)


@dataclass(slots=True)
class Budget:
    """How much a phase may do: until a time, or a number of cases."""

    ends_at: float
    cases: int

    @classmethod
    def of(cls, seconds: float, cases: int) -> Budget:
        return cls(time.monotonic() + seconds, cases)

    def spend(self) -> bool:
        """Take one case; False if the budget is used up."""
        self.cases -= 1
        return self.cases >= 0 and time.monotonic() < self.ends_at

    def split(self, share: float) -> Budget:
        """A budget of a share of this one."""
        seconds = self.ends_at - time.monotonic()
        return Budget.of(share * seconds, math.ceil(share * self.cases))


def format_table(tallies: list[Tally]) -> str:
    lines = ["| fault | injected | runs after it | differences | tracebacks | hangs |"]
    lines.append("|---|---|---|---|---|---|")
    lines += [
        f"| {tally.fault} | {tally.injected:,} | {tally.runs:,} | {tally.differences} | "
        f"{tally.tracebacks} | {tally.hangs} |"
        for tally in tallies
    ]
    return "\n".join(lines)


def write_table(page: Path, tallies: list[Tally], remark: str) -> None:
    """Replace the table of the page."""
    text = page.read_text(encoding="utf-8")
    table = f"{BEGIN}\n\n{format_table(tallies)}\n\n{remark}\n\n{END}"
    pattern = re.escape(BEGIN) + ".*" + re.escape(END)
    page.write_text(re.sub(pattern, lambda _: table, text, flags=re.DOTALL), encoding="utf-8")
