"""Read docs/papers.toml: which parts of each paper Counterpoise has, one per line.

    subject | where it is here | how it agrees with an independent reference | what is not there

Where it is: options of a run (`section.option=value`), or a command. Which engines honour the
options is read from their own tables (hosts/*/run_options.py); commands work on the native engine.
A brace {native, TRL} says otherwise. How it agrees:

    1e-10 @microscope/test_coupling.py     the tolerance at which that test compares it with a
                                           literal sum, a closed form or autograd
    claim 3                                the verdicts of docs/data/claims.csv, on all models
    a phrase                               anything else

docs/generate.py writes docs/reference/papers.md; tests/lab/test_papers.py checks that options,
commands, tests, tolerances and claims exist.
"""

from __future__ import annotations

import csv
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from counterpoise.config.load import load_config
from counterpoise.hosts.translate_options import list_refusals
from counterpoise.hosts.trl.run_options import OPTIONS as TRL_OPTIONS
from counterpoise.hosts.verl.run_options import OPTIONS as VERL_OPTIONS

OPTION = re.compile(r"(\w+\.\w+)=(\[[^]]*\]|[\w.]+)")
NOT_TESTED = "not tested"
ENGINES = {"TRL": TRL_OPTIONS, "verl": VERL_OPTIONS}


@dataclass(frozen=True, slots=True)
class PaperItem:
    """One line of a paper's table.

    Example:
        PaperItem("span distances", "credit.weights=shear", "", "2e-3", "credit/test_shear.py", "")
    """

    subject: str
    offered: str  # options, a command, or "-"
    stated_engines: str  # "" if they follow from `offered`
    agreement: str
    test: str  # below tests/; "" if no test decides
    lacks: str

    @property
    def options(self) -> dict[str, str]:
        return dict(OPTION.findall(self.offered))

    @property
    def claims(self) -> list[int]:
        return [int(number) for number in re.findall(r"claim (\d+)", self.agreement)]

    @property
    def engines(self) -> str:
        """The engines that honour its options, by their own tables."""
        if self.stated_engines or self.offered == "-":
            return self.stated_engines or "-"
        if not self.options:
            return "native"
        config = load_config("demo", [f"{name}={value}" for name, value in self.options.items()])
        supporting = [
            engine
            for engine, table in ENGINES.items()
            if not any(
                refusal.startswith(f"{name}=")
                for refusal in list_refusals(config, table)
                for name in self.options
            )
        ]
        return ", ".join(["native", *supporting])


def parse_table(text: str) -> list[PaperItem]:
    """The items of a paper's table."""
    items = []
    for line in text.strip().splitlines():
        subject, offered, agreement, lacks = (cell.strip() for cell in line.split("|"))
        offered, _, engines = offered.partition(" {")
        agreement, _, test = (piece.strip() for piece in agreement.partition("@"))
        items.append(PaperItem(subject, offered, engines.removesuffix("}"), agreement, test, lacks))
    return items


def read_verdicts(claims_file: Path) -> dict[int, list[str]]:
    """The verdicts of each claim, model by model."""
    verdicts: dict[int, list[str]] = {}
    with claims_file.open(encoding="utf-8", newline="") as file:
        for record in csv.DictReader(file):
            verdicts.setdefault(int(record["number"]), []).append(record["verdict"])
    return verdicts


def describe_agreement(item: PaperItem, verdicts: Mapping[int, list[str]]) -> str:
    """Its agreement as a cell; claims become the verdicts on the models they were tested on."""
    if not item.claims:
        return item.agreement
    return "; ".join(_distinct_verdicts(verdicts[number]) for number in item.claims)


def _distinct_verdicts(verdicts: list[str]) -> str:
    tested = [verdict for verdict in verdicts if verdict != NOT_TESTED]
    return ", ".join(dict.fromkeys(tested)) or NOT_TESTED


@dataclass(frozen=True, slots=True)
class Paper:
    name: str
    arxiv: str
    items: list[PaperItem]


def read_papers(papers_file: Path) -> list[Paper]:
    """All papers of docs/papers.toml."""
    content = tomllib.loads(papers_file.read_text(encoding="utf-8"))
    return [
        Paper(paper["name"], paper["arxiv"], parse_table(paper["items"]))
        for paper in content["papers"]
    ]


def papers_lines(papers_file: Path, claims_file: Path) -> list[str]:
    """The tables as Markdown."""
    verdicts = read_verdicts(claims_file)
    lines = []
    for paper in read_papers(papers_file):
        lines += [f"## {paper.name}", "", f"[{paper.arxiv}](https://arxiv.org/abs/{paper.arxiv})"]
        lines.append("")
        lines += ["||here|engines|agreement|not there|", "|---|---|---|---|---|"]
        for item in paper.items:
            offered = item.offered if item.offered == "-" else f"`{item.offered}`"
            agreement = describe_agreement(item, verdicts)
            cells = (item.subject, offered, item.engines, agreement, item.lacks)
            lines.append(f"|{'|'.join(cells)}|")
        lines.append("")
    return lines
