"""Pairs of copies with their counts: what the command prints, the page shows, a run stores."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from counterpoise.task.contamination.copy_rules import COPIES, KINDS, CopyMatch, Kind, find_matches
from counterpoise.task.contamination.items import EvalSet, Item

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class OverlapReport:
    """All pairs between one training set and some benchmarks."""

    matches: list[CopyMatch]
    benchmarks: dict[str, int]  # name -> number of items
    train: int  # number of prompts
    seconds: float

    def counts_by_kind(self, benchmark: str) -> dict[Kind, int]:
        """Items of a benchmark by the surest kind of pair they are in.

        Example:
            {"exact": 8, "near": 12, "reworded": 7, "translated": 0, "related": 0}
        """
        surest: dict[int, Kind] = {}
        for match in self.matches:  # the surest pair of an item comes first
            if match.benchmark == benchmark:
                surest.setdefault(id(match.item), match.kind)
        return {kind: sum(k == kind for k in surest.values()) for kind in KINDS}

    def count_copied(self, benchmark: str) -> int:
        """Items of a benchmark that are in the training set."""
        return sum(
            count for kind, count in self.counts_by_kind(benchmark).items() if kind in COPIES
        )

    def train_copies(self) -> list[Item]:
        """Training prompts that are in a benchmark, in no order."""
        return list({id(m.train): m.train for m in self.matches if m.kind in COPIES}.values())


def find_overlap(train: Sequence[Item], benchmarks: Sequence[EvalSet]) -> OverlapReport:
    start = time.perf_counter()
    matches = find_matches(train, benchmarks)
    sizes = {bench.name: len(bench.items) for bench in benchmarks}
    return OverlapReport(matches, sizes, len(train), time.perf_counter() - start)


def overlap_to_data(found: OverlapReport) -> dict[str, Any]:
    """Plain data, texts included: --json, and contamination.json of a run."""
    return {
        "schema": SCHEMA,
        "train": found.train,
        "train_copies": len(found.train_copies()),
        "seconds": round(found.seconds, 2),
        "benchmarks": [
            {
                "name": name,
                "items": size,
                "copied": found.count_copied(name),
                **found.counts_by_kind(name),
            }
            for name, size in found.benchmarks.items()
        ],
        "matches": [_pair(match) for match in found.matches],
    }


def _pair(match: CopyMatch) -> dict[str, Any]:
    return {
        "kind": match.kind,
        "benchmark": match.benchmark,
        "item": _text(match.item),
        "train": _text(match.train),
        "jaccard": round(match.jaccard, 3),
        "alike": round(match.alike, 3),
        "symbols": round(match.symbols, 3),
        "answers": match.answers,
    }


def _text(item: Item) -> dict[str, Any]:
    return {
        "id": item.id,
        "line": item.line or None,
        "problem": item.problem,
        "answer": item.answer,
    }
