"""Write the tables of docs/results/replication.md from docs/data/claims.csv: `make docs`.

claims.csv has a line for each claim and model: effect, interval, n, verdict, rule, command and the
file with the records. The page shows the verdicts side by side, then what each number is and when
the claim counts as replicated. `tests/test_claims.py` recomputes the numbers from the records.
"""

from __future__ import annotations

import csv
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).parents[1]
CLAIMS = ROOT / "docs" / "data" / "claims.csv"
PAGE = ROOT / "docs" / "results" / "replication.md"
BEGIN, END = "<!-- claims: written by docs/claims_table.py -->", "<!-- end of claims -->"

Claim = dict[str, str]  # one line of claims.csv, values as they are printed


def read_claims() -> list[Claim]:
    with CLAIMS.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def effect_text(claim: Claim) -> str:
    """The effect as the page prints it.

    Example:
        effect_text({"effect": "35", "unit": "%", "low": "21", "high": "49"})  # "35 % [21, 49]"
    """
    value = " ".join(filter(None, (claim["effect"], claim["unit"]))) if claim["effect"] else ""
    return f"{value} [{claim['low']}, {claim['high']}]" if claim["low"] else value


def claim_cell(claim: Claim) -> str:
    return ", ".join(filter(None, (f"**{claim['verdict']}**", effect_text(claim), claim["n"])))


def claims_tables() -> str:
    """Both tables: verdicts by model, then the number, the criterion and the command."""
    claims = read_claims()
    by_number = [list(lines) for _, lines in groupby(claims, lambda claim: claim["number"])]
    models = [claim["model"] for claim in by_number[0]]
    lines = [f"| claim | {' | '.join(models)} |", "|---" * (len(models) + 1) + "|"]
    for same in by_number:
        title = f"{same[0]['number']}. {same[0]['claim']} ({same[0]['figure']})"
        lines.append(f"| {title} | {' | '.join(map(claim_cell, same))} |")
    lines += ["", "| | the number | replicated if | embedded: command |", "|---|---|---|---|"]
    for first, *_ in by_number:
        mark = " *" if first["rule_fixed"] == "after the runs" else ""
        command = f"`{first['command']}`" if first["command"] else ""
        lines.append(
            f"| {first['number']} | {first['quantity']} | {first['criterion']}{mark} | {command} |"
        )
    return "\n".join(lines)


def page_with_tables(text: str) -> str:
    """The page with the tables between its two marks replaced."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{claims_tables()}\n\n{END}{after}"


def main() -> None:
    PAGE.write_text(page_with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
