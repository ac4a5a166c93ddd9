"""How often `poise audit` names the planted cause first, and how often a healthy run alarms.

`poise study audit` makes the runs (plant.py), audits them, stores the level of every finding of
every run in OUT/audit.parquet, and writes the page from it: with --budget full in a checkout of the
repository docs/results/audit.md, with the records in docs/data/, otherwise OUT/audit.md. Thresholds
were set on seed 0, so it is left out: seeds count from 1.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterpoise.errors import PoiseError
from counterpoise.files import atomic_write
from counterpoise.lab.sick_runs.plant import ALL_RUNS, AnyRun, EditedRun, plant_run
from counterpoise.lab.studies.records import read_table, write_records
from counterpoise.lab.studies.run import make_study_folder
from counterpoise.report.audit.rank import audit_run
from counterpoise.report.audit.records import AuditReport, percent
from counterpoise.statistics.prompt_intervals import wilson_interval

STUDY_NAME = "audit"
CALIBRATION_SEED = 0
SEEDS_OF_BUDGET = {"quick": 1, "full": 4}
PAGE = Path("docs/results/audit.md")
RECORDS = Path("docs/data/embedded-audit.parquet")
# Tested on real runs: tests/hosts/trl/test_same_audit.py and tests/hosts/verl/test_coupling.py.
ROUTES = (
    "## One run, two routes",
    "",
    "For one run of stock TRL and one of verl, the recorded folder and an import of the trainer's "
    "own files were audited. What both measure is equal in level, order and numbers; otherwise the "
    "import names what is missing.",
    "",
    "| finding | `PoiseCallback`, `+poise.run_folder` | import |",
    "|---|---|---|",
    "| duplicates, rewards, echo, no signal, prompts; answers (verl) | yes | the same |",
    "| learning rate | success, clip, entropy | success |",
    "| lengths | yes | of re-encoded texts; cut-offs unknown |",
    "| rare sign | by step | by iteration |",
    "| cut groups, unused rollouts, entropy, sampler, cancelling types | yes | no |",
)


@dataclass(frozen=True, slots=True)
class AuditedRun:
    """What an audit said of a planted run.

    Example:
        AuditedRun("lr-x10", 1, "learning_rate", (("learning_rate", "alarm"), ...))
    """

    name: str
    seed: int
    expected: str  # "": healthy
    levels: tuple[tuple[str, str], ...]  # (finding, level) in the order of the audit

    @property
    def first(self) -> str:
        """The first alarm or warning; "" if there is none."""
        return next((name for name, level in self.levels if level in ("alarm", "warning")), "")

    @property
    def alarms(self) -> tuple[str, ...]:
        return tuple(name for name, level in self.levels if level == "alarm")

    @property
    def is_right(self) -> bool:
        """The planted cause comes first as an alarm; a healthy run has no alarm."""
        if not self.expected:
            return not self.alarms
        return self.first == self.expected and self.expected in self.alarms


def audit_planted_runs(
    seeds: Sequence[int],
    out: Path,
    say: Callable[[str], None],
    runs: Sequence[AnyRun] = ALL_RUNS,
) -> list[AuditedRun]:
    """Make and audit every planted run for every seed."""
    return [
        summarise_audit(planted, seed, audit_run(plant_run(planted, seed, out, say)))
        for seed in seeds
        for planted in runs
    ]


def summarise_audit(planted: AnyRun, seed: int, report: AuditReport) -> AuditedRun:
    levels = tuple((finding.name, str(finding.level)) for finding in report.findings)
    return AuditedRun(planted.name, seed, planted.finding, levels)


def run_audit_study(
    budget: str, sizes: Sequence[str], out: Path, say: Callable[[str], None]
) -> Path:
    """`poise study audit`: make the runs, audit them, write the table; returns its path."""
    num_seeds = _number_of_seeds(budget, sizes)
    seeds = range(CALIBRATION_SEED + 1, CALIBRATION_SEED + 1 + num_seeds)
    started = time.monotonic()
    rows = audit_planted_runs(seeds, out / "sick_runs", say)
    is_published = budget == "full" and PAGE.parent.is_dir() and RECORDS.parent.is_dir()
    settings = {"model": "embedded", "budget": budget, "seeds": list(seeds)}
    for path in (out / "audit.parquet", *([RECORDS] if is_published else [])):
        write_records(path, to_records(rows), settings, time.monotonic() - started, STUDY_NAME)
    return _write_page(rows, PAGE if is_published else out / "audit.md")


def write_page_of_records(table_path: Path, out: Path) -> Path:
    """`poise study audit --records FILE`: the page of stored records; returns its path.

    In a checkout, docs/data/embedded-audit.parquet gives docs/results/audit.md.
    """
    if not table_path.is_file():
        raise PoiseError(f"--records {table_path}: there is no such file")
    table = read_table(table_path)
    try:
        rows = from_records(table.records)
    except KeyError as fault:
        raise PoiseError(
            f"{table_path} holds no records of the study {STUDY_NAME}: no column {fault}"
        ) from fault
    is_published = table_path.resolve() == RECORDS.resolve() and PAGE.parent.is_dir()
    make_study_folder(out)
    return _write_page(rows, PAGE if is_published else out / "audit.md")


def _write_page(rows: Sequence[AuditedRun], page_path: Path) -> Path:
    with atomic_write(page_path) as temporary:
        temporary.write_text(confusion_page(rows), encoding="utf-8")
    return page_path


def to_records(rows: Sequence[AuditedRun]) -> list[dict[str, Any]]:
    """A record for every finding of every run, in the order of the audit."""
    return [
        {
            "run": row.name,
            "seed": row.seed,
            "expected": row.expected,
            "rank": rank,
            "finding": name,
            "level": level,
        }
        for row in rows
        for rank, (name, level) in enumerate(row.levels)
    ]


def from_records(records: Sequence[Mapping[str, Any]]) -> list[AuditedRun]:
    """The runs of stored records."""
    levels: dict[tuple[str, int, str], list[tuple[int, str, str]]] = {}
    for record in records:
        run = (record["run"], record["seed"], record["expected"])
        ranked_finding = (record["rank"], record["finding"], record["level"])
        levels.setdefault(run, []).append(ranked_finding)
    return [
        AuditedRun(*run, tuple((name, level) for _, name, level in sorted(findings)))
        for run, findings in levels.items()
    ]


def _number_of_seeds(budget: str, sizes: Sequence[str]) -> int:
    if budget not in SEEDS_OF_BUDGET:
        raise PoiseError(f"unknown budget '{budget}': choose quick or full")
    seeds = SEEDS_OF_BUDGET[budget]
    for text in sizes:
        name, _, value = text.partition("=")
        if name != "seeds" or not value.isdecimal() or int(value) < 1:
            raise PoiseError(f"--size {text}: this study has one size, as in --size seeds=2")
        seeds = int(value)
    return seeds


def confusion_page(rows: Sequence[AuditedRun]) -> str:
    """The text of docs/results/audit.md."""
    seeds = sorted({row.seed for row in rows})
    sick = [row for row in rows if row.expected]
    healthy = [row for row in rows if not row.expected]
    lines = [
        "# What `poise audit` finds",
        "",
        "<!-- Written by `poise study audit`: edit lab/sick_runs, not this page. -->",
        "",
        f"Planted causes named first, as an alarm: {sum(row.is_right for row in sick)} of "
        f"{len(sick)}. Healthy runs without an alarm: {sum(row.is_right for row in healthy)} of "
        f"{len(healthy)}. So few runs prove little: the 95 % intervals begin at "
        f"{_lowest_share(sick)} and {_lowest_share(healthy)}. "
        f"Seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))} "
        f"([records](../data/{RECORDS.name})); thresholds were set on seed {CALIBRATION_SEED}. "
        "Runs are the demo with nine iterations of ten prompts; edited ones are the healthy `demo` "
        "with changed files.",
        "",
        "| run | first finding | right |",
        "|---|---|---|",
    ]
    for planted in ALL_RUNS:
        if of_run := [row for row in rows if row.name == planted.name]:
            lines.append(_table_line(planted, of_run))
    return "\n".join([*lines, "", *ROUTES, ""])


def _lowest_share(rows: Sequence[AuditedRun]) -> str:
    """The lower end of Wilson's interval for the share that is right."""
    if not rows:
        return percent(0.0)
    share = sum(row.is_right for row in rows) / len(rows)
    return percent(wilson_interval(share, len(rows))[0])


def _table_line(planted: AnyRun, rows: Sequence[AuditedRun]) -> str:
    firsts = Counter(row.first or "none" for row in rows)
    other_alarms = Counter(name for row in rows for name in row.alarms if name != row.first)
    made_by = " (edited)" if isinstance(planted, EditedRun) else ""
    also = f"; also {_format_counts(other_alarms, len(rows))}" if other_alarms else ""
    cells = (
        f"{planted.name}{made_by}: {planted.planted}",
        f"{_format_counts(firsts, len(rows)).replace('`none`', 'none')}{also}",
        f"{sum(row.is_right for row in rows)}/{len(rows)}",
    )
    return f"| {' | '.join(cells)} |"


def _format_counts(counts: Counter[str], total: int) -> str:
    """Names, with a count where it is not all of them."""
    return ", ".join(
        f"`{name}`" if count == total else f"`{name}` ({count})"
        for name, count in counts.most_common()
    )
