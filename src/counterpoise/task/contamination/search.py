"""Pairs of copies with their counts: what the command prints, the page shows, a run stores."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from counterpoise.task.contamination.copy_rules import COPIES, KINDS, Kind, Match, find
from counterpoise.task.contamination.items import EvalSet, Item

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Found:
    """All pairs between one training set and some benchmarks."""

    matches: list[Match]
    benchmarks: dict[str, int]  # name -> number of items
    train: int  # number of prompts
    seconds: float

    def kinds(self, benchmark: str) -> dict[Kind, int]:
        """Items of a benchmark by the surest kind of pair they are in.

        Example:
            {"exact": 8, "near": 12, "reworded": 7, "translated": 0, "related": 0}
        """
        surest: dict[int, Kind] = {}
        for match in self.matches:  # the surest pair of an item comes first
            if match.benchmark == benchmark:
                surest.setdefault(id(match.item), match.kind)
        return {kind: sum(k == kind for k in surest.values()) for kind in KINDS}

    def copied(self, benchmark: str) -> int:
        """Items of a benchmark that are in the training set."""
        return sum(count for kind, count in self.kinds(benchmark).items() if kind in COPIES)

    def copies(self) -> list[Item]:
        """Training prompts that are in a benchmark, in no order."""
        return list({id(m.train): m.train for m in self.matches if m.kind in COPIES}.values())


def search(train: Sequence[Item], benchmarks: Sequence[EvalSet]) -> Found:
    start = time.perf_counter()
    matches = find(train, benchmarks)
    sizes = {bench.name: len(bench.items) for bench in benchmarks}
    return Found(matches, sizes, len(train), time.perf_counter() - start)


def to_data(found: Found) -> dict[str, Any]:
    """Plain data, texts included: --json, and contamination.json of a run."""
    return {
        "schema": SCHEMA,
        "train": found.train,
        "train_copies": len(found.copies()),
        "seconds": round(found.seconds, 2),
        "benchmarks": [
            {"name": name, "items": size, "copied": found.copied(name), **found.kinds(name)}
            for name, size in found.benchmarks.items()
        ],
        "matches": [_pair(match) for match in found.matches],
    }


def _pair(match: Match) -> dict[str, Any]:
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
