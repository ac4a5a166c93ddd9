"""Findings about prompts: benchmark problems, duplicates, never or always solved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from counterpoise.report.audit.audited_run import AuditRun
from counterpoise.report.audit.needs import BINARY_REWARDS, ROLLOUTS, needs
from counterpoise.report.audit.records import (
    AuditFinding,
    Example,
    Level,
    Measurement,
    grade_above,
    percent,
    unsupported,
)
from counterpoise.report.audit.thresholds import (
    BENCHMARK_SHARE,
    DUPLICATE_SHARE,
    MIN_ROLLOUTS,
    UNUSABLE_PROMPTS,
)
from counterpoise.report.texts import make_visible
from counterpoise.statistics.prompt_intervals import share_estimate, wilson_interval
from counterpoise.store.folder import CONTAMINATION
from counterpoise.task.contamination.copy_rules import COPIES
from counterpoise.task.contamination.items import Item, read_benchmarks
from counterpoise.task.contamination.search import find_overlap, overlap_to_data
from counterpoise.task.contamination.training_overlap import read_contamination

BENCHMARK_TITLE = "Prompts that are benchmark problems"
DUPLICATE_TITLE = "Duplicate prompts"
UNUSABLE_TITLE = "Prompts never or always solved"


def benchmark_prompts(run: AuditRun) -> AuditFinding:
    """Training prompts that copy, reword or translate a benchmark problem."""
    overlap = _read_overlap(run)
    if overlap is None:
        return unsupported(
            BENCHMARK_TITLE,
            f"{CONTAMINATION} or benchmark files",
            remedy="name files in task.benchmarks, or with poise audit --bench",
        )
    train, copies = max(1, overlap["train"]), overlap["train_copies"]
    share = copies / train
    level: Level = "clear"
    if copies:
        level = "alarm" if share >= BENCHMARK_SHARE else "warning"
    copied = [match for match in overlap["matches"] if match["kind"] in COPIES]
    return AuditFinding(
        title=BENCHMARK_TITLE,
        level=level,
        verdict=f"{copies:,} of {train:,} training prompts are copies of benchmark problems",
        measurements=(
            Measurement("training prompts that are copies", share, unit="share"),
            *(
                Measurement(
                    f"{make_visible(benchmark['name'], 80)}: problems in the training set",
                    benchmark["copied"] / max(1, benchmark["items"]),
                    unit="share",
                )
                for benchmark in overlap["benchmarks"]
            ),
        ),
        threshold=f"warning for any copy, alarm from {percent(BENCHMARK_SHARE)} of the prompts",
        cost="the score on these benchmarks no longer measures ability",
        remedy="poise contamination --train FILE --bench FILES --write-clean CLEAN writes the file "
        "without them",
        examples=tuple(
            Example(
                make_visible(str(match["train"]["id"]), 200),
                None,
                f"{match['kind']} of {make_visible(match['benchmark'], 80)} "
                f"{make_visible(str(match['item']['id']), 80)}: "
                f"{make_visible(match['train']['problem'], 200)}",
            )
            for match in copied[:5]
        ),
    )


def _read_overlap(run: AuditRun) -> dict[str, Any] | None:
    """What the run found when it started, or a search of the prompts that it sampled."""
    stored_path = run.path / CONTAMINATION
    if run.benchmark_files and run.rollout_files:
        items = [Item(*fields) for fields in run.rollout_totals.texts.values()]
        return overlap_to_data(find_overlap(items, read_benchmarks(list(run.benchmark_files))))
    return read_contamination(stored_path) if stored_path.is_file() else None


def benchmark_files_of(run_path: Path, named: list[str]) -> list[Path]:
    """Files of `task.benchmarks` that still exist, for a run without contamination.json."""
    if (run_path / CONTAMINATION).is_file():
        return []
    return [path for path in map(Path, named) if path.is_file()]


@needs(DUPLICATE_TITLE, ROLLOUTS)
def duplicate_prompts(run: AuditRun) -> AuditFinding:
    """Groups whose prompt repeats the text of another prompt."""
    if run.rollout_totals.num_rollouts and not run.rollout_totals.with_prompt:
        return unsupported(
            DUPLICATE_TITLE,
            "prompt in rollouts/",
            remedy="where the trainer wrote tokens, import the run again with --tokenizer",
        )
    tallies = run.rollout_totals.prompts.values()
    groups, copies = sum(t.groups for t in tallies), sum(t.copies for t in tallies)
    share = copies / max(1, groups)
    low, high = wilson_interval(share, max(1, groups))
    return AuditFinding(
        title=DUPLICATE_TITLE,
        level=grade_above(low, *DUPLICATE_SHARE),
        verdict=f"{copies:,} of {groups:,} groups have a prompt whose text also occurs under "
        "another id, or twice in an iteration",
        measurements=(
            Measurement("groups with a repeated prompt", share, low, high, "share"),
            Measurement("distinct texts", len(tallies)),
        ),
        threshold=f"warning from {percent(DUPLICATE_SHARE[0])}, alarm from "
        f"{percent(DUPLICATE_SHARE[1])} of "
        "groups, by the lower end of the interval",
        cost=f"the data are {groups / max(1, groups - copies):.1f} times smaller than they look; "
        "repeated prompts are learned by heart",
        remedy="remove repeated texts from task.path",
        examples=tuple(run.rollout_totals.examples.get("duplicate", ())),
        explains=("reward_gap",),
    )


@needs(UNUSABLE_TITLE, ROLLOUTS, BINARY_REWARDS)
def unusable_prompts(run: AuditRun) -> AuditFinding:
    """Prompts whose rollouts all scored 0, or all scored above 0."""
    tallies = [t for t in run.rollout_totals.prompts.values() if t.rollouts >= MIN_ROLLOUTS]
    if not tallies:
        return unsupported(
            UNUSABLE_TITLE, f"prompts with {MIN_ROLLOUTS} rollouts or more: there are 0"
        )
    never = [t for t in tallies if t.solved == 0]
    always = [t for t in tallies if t.solved == t.rollouts]
    estimate = share_estimate([float(t.solved in (0, t.rollouts)) for t in tallies])
    spent = sum(t.rollouts for t in (*never, *always))
    level = grade_above(estimate.low, UNUSABLE_PROMPTS)
    return AuditFinding(
        title=UNUSABLE_TITLE,
        level="note" if level == "clear" and (never or always) else level,
        verdict=f"of {len(tallies):,} prompts with {MIN_ROLLOUTS} rollouts or more, {len(never):,} "
        f"{'was' if len(never) == 1 else 'were'} never solved and {len(always):,} always",
        measurements=(
            Measurement("never solved", len(never) / len(tallies), unit="share"),
            Measurement("always solved", len(always) / len(tallies), unit="share"),
            Measurement.of("either", estimate, "share"),
        ),
        threshold=f"warning from {percent(UNUSABLE_PROMPTS)}, by the lower end of the interval",
        cost=f"{spent:,} of {run.rollout_totals.num_rollouts:,} rollouts",
        remedy="leave them out of task.path, or sample.refills = 2 draws others instead",
        examples=tuple(
            Example(make_visible(t.first_group, 200), None, f"{t.solved} of {t.rollouts} solved")
            for t in (*never[:3], *always[:2])
        ),
    )
