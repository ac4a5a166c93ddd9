r"""How much of one problem is in another, rare things counting more.

A problem is a set of features: its words, and of its mathematics (symbols.py) every number, every
run of two or three symbols and every whole formula. A feature that n of N problems have weighs
log(N / n): what every problem has weighs nothing. For a training prompt t and a benchmark item e

    contained = W(t & e) / W(e)         alike = W(t & e) / W(t | e)         W: sum of weights

once over all features and once over the mathematics alone, which a translation keeps. Pairs that
share no rare feature are never looked at: an index of the rare ones hands out the candidates.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import nlargest

from counterpoise.task.contamination.symbols import numbers_in, symbol_runs, without_drawings
from counterpoise.task.contamination.wording import split_words

RARE_FEATURE_LIMIT = 100  # problems that may have a feature for it to hand out candidates
MAX_CANDIDATES = 40  # training prompts looked at for one item


@dataclass(frozen=True, slots=True)
class ProblemFeatures:
    """One problem. Prefixes keep the families apart: "w:" words, none for mathematics."""

    words: frozenset[str]
    symbols: frozenset[str]
    numbers: Counter[str]


@dataclass(frozen=True, slots=True)
class SharedEvidence:
    """What a training prompt has of a benchmark item."""

    contained: float
    similarity: float
    symbol_similarity: float
    symbol_weight: float  # of the shared mathematics: log(N/n), summed
    missing_number_share: float  # share of the item's numbers that the prompt lacks


def extract_features(text: str) -> ProblemFeatures:
    """
    Example:
        >>> sorted(features("Find $x^2$").symbols)
        ['2', 'x ^', 'x ^ 2', '^ 2']
    """
    text = without_drawings(text)
    formulas = symbol_runs(text)
    symbols = {" ".join(run) for run in formulas}
    for run in formulas:
        symbols.update(symbol for symbol in run if symbol[0].isdigit())
        symbols.update(" ".join(run[i : i + n]) for n in (2, 3) for i in range(len(run) - n + 1))
    prose = frozenset(
        f"w:{word}" for word in split_words(text) if len(word) > 1 or not word.isascii()
    )
    return ProblemFeatures(prose, frozenset(symbols), Counter(numbers_in(formulas)))


@dataclass(slots=True)
class EvidenceIndex:
    """The training prompts by their rare features, and the weight of every feature."""

    train: Sequence[ProblemFeatures]
    weights: dict[str, float]
    holders: dict[str, list[int]] = field(default_factory=dict)

    @classmethod
    def build(
        cls, train: Sequence[ProblemFeatures], items: Sequence[ProblemFeatures]
    ) -> EvidenceIndex:
        counts: Counter[str] = Counter()
        for one in [*train, *items]:
            counts.update(one.words)
            counts.update(one.symbols)
        total = len(train) + len(items)
        weights = {name: math.log(total / count) for name, count in counts.items()}
        wanted = {name for one in items for name in one.words | one.symbols}
        holders = defaultdict(list)
        for place, one in enumerate(train):
            for name in (one.words | one.symbols) & wanted:
                if counts[name] <= RARE_FEATURE_LIMIT:
                    holders[name].append(place)
        return cls(train, weights, holders)

    def candidates(self, item: ProblemFeatures) -> list[int]:
        """Training prompts that share the most rare features: of all, and of mathematics alone."""
        found: set[int] = set()
        for names in (item.symbols, item.words | item.symbols):
            heard: dict[int, float] = defaultdict(float)
            for name in names:
                for place in self.holders.get(name, ()):
                    heard[place] += self.weights[name]
            found.update(nlargest(MAX_CANDIDATES // 2, heard, key=heard.__getitem__))
        return sorted(found)

    def evidence(self, place: int, item: ProblemFeatures) -> SharedEvidence:
        one = self.train[place]
        words, shared_words = self._sums(one.words, item.words)
        symbols, shared_symbols = self._sums(one.symbols, item.symbols)
        all_item = self._weight(item.words) + self._weight(item.symbols)
        missing = sum((item.numbers - one.numbers).values()) if item.numbers else 0
        return SharedEvidence(
            contained=_ratio(shared_words + shared_symbols, all_item),
            similarity=_ratio(shared_words + shared_symbols, words + symbols),
            symbol_similarity=_ratio(shared_symbols, symbols),
            symbol_weight=shared_symbols,
            missing_number_share=_ratio(missing, item.numbers.total()),
        )

    def _sums(self, one: frozenset[str], other: frozenset[str]) -> tuple[float, float]:
        """Weight of the union and of what is shared."""
        shared = self._weight(one & other)
        return self._weight(one) + self._weight(other) - shared, shared

    def _weight(self, names: Iterable[str]) -> float:
        return sum(self.weights[name] for name in names)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
