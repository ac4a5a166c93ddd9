r"""Measure how much of one problem is in another, with more weight on rare features.

The features of a problem are its words and, from its mathematics (symbols.py), every number, every
run of two or three symbols and every whole formula. A feature that n of N problems have weighs
log(N / n), so a feature of all problems weighs 0. For a training prompt t and a benchmark item e

    contained = W(t & e) / W(e)       similarity = W(t & e) / W(t | e)       W: sum of weights

Similarity is also computed over the mathematics alone, which a translation keeps. An index of rare
features gives the candidates for comparison: pairs without a shared rare feature are compared only
if they share a 10-gram or all of their letters (copy_rules.py).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import nlargest

from counterpoise.task.contamination.symbols import numbers_in, symbol_runs, without_drawings
from counterpoise.task.contamination.wording import split_words

RARE_FEATURE_LIMIT = 100  # features of more problems than this are not used to find candidates
MAX_CANDIDATES = 40  # training prompts compared with one item


@dataclass(frozen=True, slots=True)
class ProblemFeatures:
    """The features of one problem. Words have the prefix "w:", mathematics has none."""

    words: frozenset[str]
    symbols: frozenset[str]
    numbers: Counter[str]


@dataclass(frozen=True, slots=True)
class SharedEvidence:
    """How much of a benchmark item is in a training prompt."""

    contained: float  # W(t & e) / W(e), over words and mathematics
    similarity: float  # W(t & e) / W(t | e), over words and mathematics
    symbol_similarity: float  # the same, over the mathematics alone
    symbol_weight: float  # W(t & e) of the mathematics
    missing_number_share: float  # share of the item's numbers that the prompt lacks


def extract_features(text: str) -> ProblemFeatures:
    """
    Example:
        >>> sorted(extract_features("Find $x^2$").symbols)
        ['2', '^ 2', 'x ^', 'x ^ 2']
    """
    text = without_drawings(text)
    formulas = symbol_runs(text)
    symbols = {" ".join(run) for run in formulas}
    for run in formulas:
        symbols.update(symbol for symbol in run if symbol[0].isdigit())
        symbols.update(
            " ".join(run[start : start + length])
            for length in (2, 3)
            for start in range(len(run) - length + 1)
        )
    prose = frozenset(
        f"w:{word}" for word in split_words(text) if len(word) > 1 or not word.isascii()
    )
    return ProblemFeatures(prose, frozenset(symbols), Counter(numbers_in(formulas)))


@dataclass(slots=True)
class EvidenceIndex:
    """The training prompts by their rare features, and the weight of every feature."""

    train: Sequence[ProblemFeatures]
    weights: dict[str, float]
    holders: dict[str, list[int]] = field(default_factory=dict)  # feature -> training prompts
    # Cache of `_whole_weight`: all words or all symbols of a problem -> the sum of their weights
    whole_weights: dict[frozenset[str], float] = field(default_factory=dict)

    @classmethod
    def build(
        cls, train: Sequence[ProblemFeatures], items: Sequence[ProblemFeatures]
    ) -> EvidenceIndex:
        counts: Counter[str] = Counter()
        for problem in [*train, *items]:
            counts.update(problem.words)
            counts.update(problem.symbols)
        num_problems = len(train) + len(items)
        weights = {feature: math.log(num_problems / count) for feature, count in counts.items()}
        # Only features of benchmark items can lead to a match, so only these are indexed.
        item_features = {
            feature for problem in items for feature in problem.words | problem.symbols
        }
        holders = defaultdict(list)
        for prompt_index, problem in enumerate(train):
            for feature in (problem.words | problem.symbols) & item_features:
                if counts[feature] <= RARE_FEATURE_LIMIT:
                    holders[feature].append(prompt_index)
        return cls(train, weights, holders)

    def candidates(self, item: ProblemFeatures) -> list[int]:
        """The training prompts that share most rare features, overall and in mathematics."""
        # Mathematics gets half of the places, because a translation shares no words.
        candidates: set[int] = set()
        for features in (item.symbols, item.words | item.symbols):
            scores: dict[int, float] = defaultdict(float)
            for feature in features:
                for prompt_index in self.holders.get(feature, ()):
                    scores[prompt_index] += self.weights[feature]
            candidates.update(nlargest(MAX_CANDIDATES // 2, scores, key=scores.__getitem__))
        return sorted(candidates)

    def evidence(self, prompt_index: int, item: ProblemFeatures) -> SharedEvidence:
        prompt = self.train[prompt_index]
        words_union, shared_words = self._union_and_shared(prompt.words, item.words)
        symbols_union, shared_symbols = self._union_and_shared(prompt.symbols, item.symbols)
        item_weight = self._whole_weight(item.words) + self._whole_weight(item.symbols)
        num_missing_numbers = sum((item.numbers - prompt.numbers).values()) if item.numbers else 0
        return SharedEvidence(
            contained=_ratio(shared_words + shared_symbols, item_weight),
            similarity=_ratio(shared_words + shared_symbols, words_union + symbols_union),
            symbol_similarity=_ratio(shared_symbols, symbols_union),
            symbol_weight=shared_symbols,
            missing_number_share=_ratio(num_missing_numbers, item.numbers.total()),
        )

    def _union_and_shared(self, left: frozenset[str], right: frozenset[str]) -> tuple[float, float]:
        """(weight of the union, weight of the intersection)."""
        shared = self._weight(left & right)
        return self._whole_weight(left) + self._whole_weight(right) - shared, shared

    def _whole_weight(self, features: frozenset[str]) -> float:
        """The weight of all words or all symbols of a problem; cached, since it is needed often."""
        weight = self.whole_weights.get(features)
        if weight is None:
            weight = self.whole_weights[features] = self._weight(features)
        return weight

    def _weight(self, features: Iterable[str]) -> float:
        return sum(map(self.weights.__getitem__, features))


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator > 0 else 0.0
