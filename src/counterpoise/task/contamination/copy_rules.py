"""Find training prompts that are copies of benchmark problems, by five kinds of evidence.

    exact        the same letters, digits and operators                             (wording.py)
    near         Jaccard index of word 10-grams above 1/2                           (wording.py)
    reworded     mostly the same words and formulas, the same numbers, compatible answers
    translated   mostly the same formulas in another script, compatible answers    (evidence.py)
    related      the same situation with other numbers, or another question about it

The first four are copies: to train on one is to train on the benchmark. `related` pairs are shown
but not removed: textbook sets are full of variants, and a variant is practice, not the test itself.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from counterpoise.task.contamination.answers import AnswerRelation, relate_answers
from counterpoise.task.contamination.evidence import EvidenceIndex, SharedEvidence, extract_features
from counterpoise.task.contamination.items import BenchmarkItems, Item
from counterpoise.task.contamination.symbols import is_cjk
from counterpoise.task.contamination.wording import (
    NEAR_COPY_JACCARD,
    jaccard_with_operators,
    letters_digits_and_operators,
    word_ngrams,
)

Kind = Literal["exact", "near", "reworded", "translated", "related"]
KINDS: tuple[Kind, ...] = ("exact", "near", "reworded", "translated", "related")
COPIES = frozenset(KINDS[:4])

# Thresholds of similarity; some depend on how the answers relate. How often they are right is in
# docs/guide/your-data-and-reward.md. Pairs below the lowest of them are skipped.
LOWEST_THRESHOLD = 0.30
# Reworded: over words and formulas.
REWORDED_SIMILARITY = {"same": 0.45, "derived": 0.45, "unknown": 0.55}
MAX_MISSING_NUMBERS = 0.20  # share of the item's numbers that a rewording may lack
# With unknown answers, a pair below 0.55 is still reworded if it reaches both of these.
CONTAINED_SHARE, CONTAINED_SIMILARITY = 0.85, 0.40
# With the same or derived answers, a pair is also reworded if its formulas alone are this similar
# and the shared ones together weigh at least MIN_SYMBOL_WEIGHT. A pair that reaches the second
# threshold may lack any share of the numbers: some are written as words, of which symbols.py only
# knows two to twenty.
FORMULA_SIMILARITY, SAME_FORMULA_SIMILARITY = 0.50, 0.90
RELATED_SIMILARITY = 0.60  # over words and formulas; numbers and answers may differ
# Translated: over formulas, if the shared ones together weigh at least MIN_SYMBOL_WEIGHT. With the
# same answer, STRIKING_SIMILARITY needs only MIN_STRIKING_WEIGHT, the weight of two rare numbers.
TRANSLATED_SIMILARITY = {"same": 0.30, "derived": 0.30, "unknown": 0.60}
MIN_SYMBOL_WEIGHT = 100.0
STRIKING_SIMILARITY, MIN_STRIKING_WEIGHT = 0.70, 15.0


@dataclass(frozen=True, slots=True)
class CopyMatch:
    """A benchmark problem and a training prompt that matches it.

    Example:
        CopyMatch("near", "amc23", item, prompt, jaccard=0.76, similarity=0.81,
                  symbol_similarity=1.0, answers="same")
    """

    kind: Kind
    benchmark: str
    item: Item  # of the benchmark
    prompt: Item  # of the training set
    jaccard: float  # Jaccard index of word 10-grams
    similarity: float  # of words and formulas together (evidence.py)
    symbol_similarity: float  # of formulas alone
    answers: AnswerRelation


def find_matches(train: Sequence[Item], benchmarks: Sequence[BenchmarkItems]) -> list[CopyMatch]:
    """All pairs in the order of benchmarks and items; an item's most certain pair comes first."""
    named_items = [(bench.name, item) for bench in benchmarks for item in bench.items]
    items = [item for _, item in named_items]
    jaccards = _jaccards(train, items)
    exact_copies = _exact_copies(train, items)
    train_features = [extract_features(item.problem) for item in train]
    item_features = [extract_features(item.problem) for item in items]
    index = EvidenceIndex.build(train_features, item_features)
    all_matches = []
    for item_index, (name, item) in enumerate(named_items):
        item_matches = []
        for prompt_index in sorted(
            exact_copies[item_index]
            | jaccards[item_index].keys()
            | set(index.candidates(item_features[item_index]))
        ):
            evidence = index.evidence(prompt_index, item_features[item_index])
            jaccard = jaccards[item_index].get(prompt_index, 0.0)
            textual_kind: Kind | None = None
            if prompt_index in exact_copies[item_index]:
                textual_kind = "exact"
            elif jaccard == 1:  # the same words: do they differ in operators?
                jaccard = jaccard_with_operators(item.problem, train[prompt_index].problem)
            if not textual_kind and jaccard > NEAR_COPY_JACCARD:
                textual_kind = "near"
            # Most candidates share little: skip them before comparing answers.
            similarity = max(evidence.similarity, evidence.symbol_similarity)
            if not textual_kind and similarity < LOWEST_THRESHOLD:
                continue
            match = _match_pair(name, item, train[prompt_index], textual_kind, jaccard, evidence)
            if match:
                item_matches.append(match)
        all_matches += sorted(
            item_matches, key=lambda match: (KINDS.index(match.kind), -match.similarity)
        )
    return all_matches


def kind_by_evidence(
    evidence: SharedEvidence, answers: AnswerRelation, across_scripts: bool
) -> Kind | None:
    """The kind of a pair that is neither exact nor near; None if it does not match."""
    if across_scripts:
        if answers == "different":
            return None
        is_similar = evidence.symbol_similarity >= TRANSLATED_SIMILARITY[answers]
        if is_similar and evidence.symbol_weight >= MIN_SYMBOL_WEIGHT:
            return "translated"
        is_striking = (
            evidence.symbol_similarity >= STRIKING_SIMILARITY
            and evidence.symbol_weight >= MIN_STRIKING_WEIGHT
        )
        return "translated" if is_striking and answers == "same" else None
    if answers != "different" and _is_reworded(evidence, answers):
        return "reworded"
    return "related" if evidence.similarity >= RELATED_SIMILARITY else None


def _is_reworded(evidence: SharedEvidence, answers: AnswerRelation) -> bool:
    answers_agree = answers in ("same", "derived")
    formula_similarity = (
        evidence.symbol_similarity if evidence.symbol_weight >= MIN_SYMBOL_WEIGHT else 0.0
    )
    # With other numbers it is a variant of the problem, unless almost all formulas are the same.
    if evidence.missing_number_share > MAX_MISSING_NUMBERS:
        return answers_agree and formula_similarity >= SAME_FORMULA_SIMILARITY
    if evidence.similarity >= REWORDED_SIMILARITY[answers] or (
        answers_agree and formula_similarity >= FORMULA_SIMILARITY
    ):
        return True
    return (
        not answers_agree
        and evidence.contained >= CONTAINED_SHARE
        and evidence.similarity >= CONTAINED_SIMILARITY
    )


def _match_pair(
    benchmark: str,
    item: Item,
    prompt: Item,
    textual_kind: Kind | None,
    jaccard: float,
    evidence: SharedEvidence,
) -> CopyMatch | None:
    answers = relate_answers(prompt.answer, item.answer)
    across_scripts = is_cjk(item.problem) != is_cjk(prompt.problem)
    kind = textual_kind or kind_by_evidence(evidence, answers, across_scripts)
    if kind is None:
        return None
    return CopyMatch(
        kind,
        benchmark,
        item,
        prompt,
        jaccard,
        evidence.similarity,
        evidence.symbol_similarity,
        answers,
    )


def _exact_copies(train: Sequence[Item], items: Sequence[Item]) -> list[set[int]]:
    """For each item, the prompts with the same letters, digits and operators."""
    prompts_by_text = defaultdict(set)
    for prompt_index, prompt in enumerate(train):
        text = letters_digits_and_operators(prompt.problem)
        if any(map(str.isalnum, text)):  # texts without any letter are not copies of each other
            prompts_by_text[text].add(prompt_index)
    return [
        prompts_by_text.get(letters_digits_and_operators(item.problem), set()) for item in items
    ]


def _jaccards(train: Sequence[Item], items: Sequence[Item]) -> list[dict[int, float]]:
    """For each item, {prompt: Jaccard index} of the prompts that share a 10-gram with it."""
    item_grams = [word_ngrams(item.problem) for item in items]
    items_by_gram = defaultdict(list)
    for item_index, grams in enumerate(item_grams):
        for gram in grams:
            items_by_gram[gram].append(item_index)
    jaccards: list[dict[int, float]] = [{} for _ in items]
    for prompt_index, prompt in enumerate(train):
        prompt_grams = word_ngrams(prompt.problem)
        shared = Counter(
            item_index
            for gram in prompt_grams
            if gram in items_by_gram
            for item_index in items_by_gram[gram]
        )
        for item_index, count in shared.items():
            jaccards[item_index][prompt_index] = count / (
                len(item_grams[item_index]) + len(prompt_grams) - count
            )
    return jaccards
