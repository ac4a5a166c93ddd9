"""Reward the wording of a response: its overlap in n-grams with the worked solution, 0 to 1.

    r = sum_k w_k m_k / sum_k w_k

    m     BLEU-1  BLEU-2  BLEU-3  BLEU-4  ROUGE-1  ROUGE-2  ROUGE-L
    w     0.10    0.05    0.02    0.01    0.10     0.05     0.02

BLEU-n is the geometric mean of the clipped n-gram precisions up to n, times the brevity penalty;
ROUGE-n is the F1 of n-grams, ROUGE-L that of the longest common subsequence. Words are compared
without letter case; punctuation counts as words. A problem without a worked solution has no such
reward. The measures and weights are the style reward of CRPO's code, arXiv:2605.25511, whose
function that computes them is not public.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

from counterpoise.config import RunConfig
from counterpoise.types import Prompt, Response

BLEU_WEIGHTS = (0.10, 0.05, 0.02, 0.01)
ROUGE_WEIGHTS = (0.10, 0.05)
ROUGE_L_WEIGHT = 0.02
# Responses and solutions are cut to it: the longest common subsequence takes quadratic time.
MAX_WORDS = 2048


def reward(prompt: Prompt, response: Response, config: RunConfig) -> float:
    """The overlap of the response with the problem's worked solution; nan without one."""
    return text_overlap(response.text, prompt.solution) if prompt.solution else math.nan


def text_overlap(text: str, reference: str) -> float:
    """
    Example:
        >>> text_overlap("Arr, matey!", "arr , matey !")
        1.0
    """
    words, reference_words = split_words(text)[:MAX_WORDS], split_words(reference)[:MAX_WORDS]
    if not words or not reference_words:
        return 0.0
    total = sum(
        weight * bleu(words, reference_words, n) for n, weight in enumerate(BLEU_WEIGHTS, 1)
    )
    total += sum(
        weight * rouge(words, reference_words, n) for n, weight in enumerate(ROUGE_WEIGHTS, 1)
    )
    total += ROUGE_L_WEIGHT * rouge_l(words, reference_words)
    return total / (sum(BLEU_WEIGHTS) + sum(ROUGE_WEIGHTS) + ROUGE_L_WEIGHT)


def split_words(text: str) -> list[str]:
    return re.findall(r"\w+|[^\w\s]", text.lower())


def count_ngrams(words: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def bleu(words: Sequence[str], reference: Sequence[str], max_n: int) -> float:
    """Geometric mean of the precisions of 1 to max_n-grams, times the brevity penalty."""
    log_precision = 0.0
    for n in range(1, max_n + 1):
        ngrams = count_ngrams(words, n)
        num_shared = (ngrams & count_ngrams(reference, n)).total()
        if not num_shared:
            return 0.0
        log_precision += math.log(num_shared / ngrams.total()) / max_n
    return math.exp(log_precision + min(0.0, 1 - len(reference) / len(words)))


def rouge(words: Sequence[str], reference: Sequence[str], n: int) -> float:
    """F1 of the n-grams."""
    ngrams, reference_ngrams = count_ngrams(words, n), count_ngrams(reference, n)
    total = ngrams.total() + reference_ngrams.total()
    return 2 * (ngrams & reference_ngrams).total() / total if total else 0.0


def rouge_l(words: Sequence[str], reference: Sequence[str]) -> float:
    """F1 of the longest common subsequence."""
    lengths = [0] * (len(reference) + 1)
    for word in words:
        diagonal = 0
        for i, reference_word in enumerate(reference, 1):
            above = lengths[i]
            lengths[i] = diagonal + 1 if word == reference_word else max(above, lengths[i - 1])
            diagonal = above
    return 2 * lengths[-1] / (len(words) + len(reference))
