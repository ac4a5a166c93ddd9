"""Training prompts x benchmark items -> pairs that are one problem, and how that was seen.

    exact        the same letters and digits                                        (wording.py)
    near         Jaccard index of word 10-grams above 1/2                           (wording.py)
    reworded     mostly the same words and formulas, numbers kept, answers compatible
    translated   mostly the same formulas in another script, answers compatible    (evidence.py)
    related      the same set-up with other numbers, or another question about it

The first four are copies: to train on one is to train on the benchmark. `related` is shown and
kept: textbook sets are full of variants, and a variant is practice, not the test itself.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from counterpoise.task.contamination.answers import AnswerRelation, relate_answers
from counterpoise.task.contamination.evidence import EvidenceIndex, SharedEvidence, extract_features
from counterpoise.task.contamination.items import EvalSet, Item
from counterpoise.task.contamination.symbols import is_cjk
from counterpoise.task.contamination.wording import (
    NEAR_COPY_JACCARD,
    letters_and_digits,
    word_ngrams,
)

Kind = Literal["exact", "near", "reworded", "translated", "related"]
KINDS: tuple[Kind, ...] = ("exact", "near", "reworded", "translated", "related")
COPIES = frozenset(KINDS[:4])

# What it takes, by how the answers relate; measured in docs/contamination.md.
REWORDED_SIMILARITY = {"same": 0.45, "derived": 0.45, "unknown": 0.55}  # reworded: all features
CONTAINED_SHARE, CONTAINED_SIMILARITY = (
    0.85,
    0.40,
)  # reworded, answers unknown: most of the item, and more
FORMULA_SIMILARITY = 0.50  # reworded, answers agree: formulas alone, of weight EVIDENCE
SAME_FORMULA_SIMILARITY = 0.90  # ... even if numbers in words are missing
RELATED_SIMILARITY = 0.60
LOWEST_THRESHOLD = 0.30  # the lowest of these thresholds: below it nothing is asked
MAX_MISSING_NUMBERS = 0.20  # share of the item's numbers that a rewording may lack
TRANSLATED_SIMILARITY = {"same": 0.30, "derived": 0.30, "unknown": 0.60}  # mathematics alone ...
MIN_SYMBOL_WEIGHT = 100.0  # ... of at least this weight
STRIKING_SIMILARITY = 0.70  # with the same answer, this much of it needs ...
MIN_STRIKING_WEIGHT = 15.0  # ... no more weight than two rare numbers have


@dataclass(frozen=True, slots=True)
class CopyMatch:
    """One pair.

    Example:
        Match("near", "amc23", item, train, jaccard=0.76, alike=0.81, symbols=1.0, answers="same")
    """

    kind: Kind
    benchmark: str
    item: Item
    train: Item
    jaccard: float  # of word 10-grams
    alike: float  # of weighted words and formulas
    symbols: float  # of weighted formulas
    answers: AnswerRelation


def find_matches(train: Sequence[Item], benchmarks: Sequence[EvalSet]) -> list[CopyMatch]:
    """All pairs, benchmark by benchmark in the order of its items, the surest first."""
    placed = [(bench.name, item) for bench in benchmarks for item in bench.items]
    items = [item for _, item in placed]
    close = _jaccards(train, items)
    same = _same_letters(train, items)
    of_train = [extract_features(one.problem) for one in train]
    of_items = [extract_features(one.problem) for one in items]
    index = EvidenceIndex.build(of_train, of_items)
    found = []
    for e, (name, item) in enumerate(placed):
        matches = []
        for t in sorted(same[e] | close[e].keys() | set(index.candidates(of_items[e]))):
            shares, jaccard = index.evidence(t, of_items[e]), close[e].get(t, 0.0)
            sure: Kind | None = (
                "exact" if t in same[e] else "near" if jaccard > NEAR_COPY_JACCARD else None
            )
            if not sure and max(shares.similarity, shares.symbol_similarity) < LOWEST_THRESHOLD:
                continue
            if match := _judge(name, item, train[t], sure, jaccard, shares):
                matches.append(match)
        found += sorted(matches, key=lambda m: (KINDS.index(m.kind), -m.alike))
    return found


def reworded_kind(
    evidence: SharedEvidence, answers: AnswerRelation, across_scripts: bool
) -> Kind | None:
    """The rule for pairs that no n-gram shows."""
    if across_scripts:
        if answers == "different":
            return None
        enough = evidence.symbol_similarity >= TRANSLATED_SIMILARITY[answers]
        if enough and evidence.symbol_weight >= MIN_SYMBOL_WEIGHT:
            return "translated"
        striking = (
            evidence.symbol_similarity >= STRIKING_SIMILARITY
            and evidence.symbol_weight >= MIN_STRIKING_WEIGHT
        )
        return "translated" if striking and answers == "same" else None
    if answers != "different" and _reworded(evidence, answers):
        return "reworded"
    return "related" if evidence.similarity >= RELATED_SIMILARITY else None


def _reworded(shares: SharedEvidence, answers: AnswerRelation) -> bool:
    agreed = answers != "unknown"
    formulas = shares.symbol_similarity if shares.symbol_weight >= MIN_SYMBOL_WEIGHT else 0.0
    if (
        shares.missing_number_share > MAX_MISSING_NUMBERS
    ):  # a variant, unless hardly a symbol differs
        return agreed and formulas >= SAME_FORMULA_SIMILARITY
    if shares.similarity >= REWORDED_SIMILARITY[answers] or (
        agreed and formulas >= FORMULA_SIMILARITY
    ):
        return True
    return (
        not agreed
        and shares.contained >= CONTAINED_SHARE
        and shares.similarity >= CONTAINED_SIMILARITY
    )


def _judge(
    benchmark: str,
    item: Item,
    prompt: Item,
    sure: Kind | None,
    jaccard: float,
    shares: SharedEvidence,
) -> CopyMatch | None:
    answers = relate_answers(prompt.answer, item.answer)
    across_scripts = is_cjk(item.problem) != is_cjk(prompt.problem)
    kind = sure or reworded_kind(shares, answers, across_scripts)
    if kind is None:
        return None
    return CopyMatch(
        kind, benchmark, item, prompt, jaccard, shares.similarity, shares.symbol_similarity, answers
    )


def _same_letters(train: Sequence[Item], items: Sequence[Item]) -> list[set[int]]:
    """For each item the prompts with its letters; a text without any matches none."""
    places = defaultdict(set)
    for t, prompt in enumerate(train):
        places[letters_and_digits(prompt.problem)].add(t)
    places.pop("", None)
    return [places.get(letters_and_digits(item.problem), set()) for item in items]


def _jaccards(train: Sequence[Item], items: Sequence[Item]) -> list[dict[int, float]]:
    """For each item the Jaccard index with every prompt that shares a 10-gram with it."""
    grams_of = [word_ngrams(item.problem) for item in items]
    holders = defaultdict(list)
    for e, found in enumerate(grams_of):
        for gram in found:
            holders[gram].append(e)
    close: list[dict[int, float]] = [{} for _ in items]
    for t, prompt in enumerate(train):
        found = word_ngrams(prompt.problem)
        shared = Counter(e for gram in found if gram in holders for e in holders[gram])
        for e, count in shared.items():
            close[e][t] = count / (len(grams_of[e]) + len(found) - count)
    return close
