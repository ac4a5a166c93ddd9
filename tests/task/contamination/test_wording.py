"""Exact and near copies, against the definitions taken literally."""

import random

import pytest

from counterpoise.task.contamination.copy_rules import find_matches
from counterpoise.task.contamination.items import BenchmarkItems, Item
from counterpoise.task.contamination.wording import (
    letters_digits_and_operators,
    split_words,
    word_ngrams,
)


def test_letters_digits_and_operators_are_what_counts():
    assert (
        letters_digits_and_operators(r"Find the well-known $\left(x^{2}\right)$!")
        == letters_digits_and_operators("find the well known x^2")
        == "findthewellknownx^2"
    )
    assert letters_digits_and_operators("3 × 4 − 1.5") == letters_digits_and_operators("3*4-1.5")
    assert letters_digits_and_operators("$x-y$ or x-y") == "x-yorx-y"
    assert letters_digits_and_operators(r"$ab-cd$ and \pi-x") == "ab-cdandpi-x"
    assert letters_digits_and_operators("the x-axis, state-of-the-art") == "thexaxisstateoftheart"
    assert letters_digits_and_operators("a *prime* number, 2*3*4") == "aprimenumber2*3*4"
    assert letters_digits_and_operators("of 1,000 (or 10, 20) by 5!") == "of1000or10,20by5!"
    assert letters_digits_and_operators("$2\\left(3+4\\right)$ (3+4)") == "2⟨3+4⟩3+4"
    assert letters_digits_and_operators("In turn:\n - the first plays\n- 2 + 3") == (
        "inturnthefirstplays-2+3"
    )


def kinds_of(problem, item):
    noise = [Item(f"n{n}", f"What is {n} + {n + 3}?") for n in range(30, 60)]
    matches = find_matches([*noise, Item("p", problem)], [BenchmarkItems("b", [Item("e", item)])])
    return [match.kind for match in matches if match.prompt.id == "p"]


@pytest.mark.parametrize(
    ("problem", "other"),
    [("What is (2*3) + 4?", "What is 2*(3 + 4)?"), ("What is 5! - 1?", "What is 5 - 1?"),
     ("Which of 1, 2, 3?", "Which of 12, 3?")],
)  # fmt: skip
def test_brackets_factorials_and_lists_are_compared(problem, other):
    assert kinds_of(problem, problem) == ["exact"]
    assert not {"exact", "near"}.intersection(kinds_of(problem, other))


@pytest.mark.parametrize("problem", ["What is 12 - 5?", "What is 12 / 5?", "What is 1.2 + 5?"])
def test_problems_that_differ_in_an_operator_are_not_copies(problem):
    assert kinds_of("what is $12+5$", "What is 12 + 5?") == ["exact"]
    assert kinds_of(problem, "What is 12 + 5?") in ([], ["related"])


def test_a_long_text_with_one_other_operator_is_near():
    """40 words and an operator have 32 grams; the other operator is in 10 of each: 22 / 42."""
    words = [chr(97 + n % 26) * (1 + n // 26) for n in range(40)]
    texts = [" ".join([*words[:30], operator, *words[30:]]) for operator in "+-"]
    (match,) = find_matches([Item("p", texts[0])], [BenchmarkItems("b", [Item("e", texts[1])])])
    assert (match.kind, match.jaccard) == ("near", 22 / 42)


def test_a_chinese_character_is_a_word():
    assert split_words("设 x_1=Ab2") == ["设", "x", "1", "ab2"]


@pytest.mark.parametrize(
    ("text", "words", "other"),
    [
        (
            "У Маши было 12 яблок и 5 груш. Сколько фруктов у Маши?",
            ["маши", "было", "12", "яблок", "5", "груш", "сколько", "фруктов", "маши"],
            "Поезд ехал 12 часов, потом стоял 5 минут. Когда он приехал в город?",
        ),
        (
            "철수는 사과 12개와 배 5개를 가지고 있다.",
            ["철수는", "사과", "12", "개와", "5", "개를", "가지고", "있다"],
            "기차가 12시간 달리고 5분 동안 멈췄다.",
        ),
    ],
    ids=["Russian", "Korean"],
)
def test_words_of_other_scripts_tell_problems_with_the_same_numbers_apart(text, words, other):
    assert split_words(text) == words
    assert "near" not in kinds_of(other, text)
    assert split_words("2π r and α") == ["2", "r", "and"]


def test_grams_of_short_and_empty_texts():
    assert word_ngrams("one two") == {("one", "two")}
    assert word_ngrams("$ $") == frozenset()
    assert find_matches([Item("p", "$ $")], [BenchmarkItems("bench", [Item("e", "- -")])]) == []


def test_jaccard_of_a_text_that_lost_its_last_word():
    """19 words have 10 grams; without the last they have 9, all shared: 9 / 10."""
    text = [str(n) for n in range(19)]
    prompt, item = Item("p", " ".join(text)), Item("e", " ".join(text[:-1]))
    (match,) = find_matches([prompt], [BenchmarkItems("bench", [item])])
    assert (match.kind, match.jaccard) == ("near", 0.9)


def test_every_pair_by_brute_force():
    """The index of grams finds what comparing all pairs finds, with the same Jaccard index."""
    rng = random.Random(0)
    text = [" ".join(rng.choices("abcdefgh", k=rng.randrange(5, 40))) for _ in range(20)]
    train = [Item(str(i), one) for i, one in enumerate(text + [t[: len(t) * 4 // 5] for t in text])]
    items = [Item(f"e{i}", one.upper() + "!") for i, one in enumerate(text)]
    found = {
        (m.item.id, m.prompt.id): (m.kind, m.jaccard)
        for m in find_matches(train, [BenchmarkItems("bench", items)])
        if m.kind in ("exact", "near")
    }
    slow = {}
    for item in items:
        for prompt in train:
            left, right = (
                {tuple(w[i : i + 10]) for i in range(max(1, len(w) - 9))}
                for w in (item.problem.lower().strip("!").split(), prompt.problem.split())
            )
            share = len(left & right) / len(left | right)
            same = item.problem.lower().strip("!").replace(" ", "") == prompt.problem.replace(
                " ", ""
            )
            if same or share > 0.5:
                slow[item.id, prompt.id] = ("exact" if same else "near", share)
    assert found == slow
    assert {kind for kind, _ in slow.values()} == {"exact", "near"}
