"""Search training prompts for benchmark problems, and report matches with their counts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from counterpoise.task.contamination.copy_rules import COPIES, KINDS, CopyMatch, Kind, find_matches
from counterpoise.task.contamination.items import BenchmarkItems, Item

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class OverlapReport:
    """All matches between one training set and several benchmarks."""

    matches: list[CopyMatch]
    benchmarks: dict[str, int]  # name -> number of items
    num_prompts: int  # of the training set
    seconds: float

    def counts_by_kind(self, benchmark: str) -> dict[Kind, int]:
        """The number of a benchmark's items by the kind of their most certain match.

        Example:
            {"exact": 8, "near": 12, "reworded": 7, "translated": 0, "related": 0}
        """
        best_kind: dict[int, Kind] = {}
        for match in self.matches:  # an item's most certain match comes first
            if match.benchmark == benchmark:
                best_kind.setdefault(id(match.item), match.kind)
        return {
            kind: sum(kind_of_item == kind for kind_of_item in best_kind.values()) for kind in KINDS
        }

    def count_copied(self, benchmark: str) -> int:
        """The number of items of a benchmark that have a copy in the training set."""
        return sum(
            count for kind, count in self.counts_by_kind(benchmark).items() if kind in COPIES
        )

    def train_copies(self) -> list[Item]:
        """The training prompts that are copies of a benchmark problem, in no particular order."""
        return list(
            {
                id(match.prompt): match.prompt for match in self.matches if match.kind in COPIES
            }.values()
        )


def find_overlap(train: Sequence[Item], benchmarks: Sequence[BenchmarkItems]) -> OverlapReport:
    start_time = time.perf_counter()
    matches = find_matches(train, benchmarks)
    sizes = {bench.name: len(bench.items) for bench in benchmarks}
    return OverlapReport(matches, sizes, len(train), time.perf_counter() - start_time)


def overlap_to_data(report: OverlapReport) -> dict[str, Any]:
    """The report with all texts as JSON data, for --json and contamination.json.

    The keys keep the names they had in earlier versions, so that old files can still be read. At
    the top `train` is the number of training prompts; in a match it is the training prompt, `alike`
    is the similarity, and `symbols` is the similarity of the formulas alone.
    """
    return {
        "schema": SCHEMA,
        "train": report.num_prompts,
        "train_copies": len(report.train_copies()),
        "seconds": round(report.seconds, 2),
        "benchmarks": [
            {
                "name": name,
                "items": size,
                "copied": report.count_copied(name),
                **report.counts_by_kind(name),
            }
            for name, size in report.benchmarks.items()
        ],
        "matches": [_match_to_data(match) for match in report.matches],
    }


def _match_to_data(match: CopyMatch) -> dict[str, Any]:
    return {
        "kind": match.kind,
        "benchmark": match.benchmark,
        "item": _item_to_data(match.item),
        "train": _item_to_data(match.prompt),
        "jaccard": round(match.jaccard, 3),
        "alike": round(match.similarity, 3),
        "symbols": round(match.symbol_similarity, 3),
        "answers": match.answers,
    }


def _item_to_data(item: Item) -> dict[str, Any]:
    return {
        "id": item.id,
        "line": item.line or None,
        "problem": item.problem,
        "answer": item.answer,
    }
