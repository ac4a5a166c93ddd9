"""Exact and near copies, against the definitions taken literally."""

import random

from counterpoise.task.contamination.copy_rules import find_matches
from counterpoise.task.contamination.items import BenchmarkItems, Item
from counterpoise.task.contamination.wording import letters_and_digits, split_words, word_ngrams


def test_letters_and_digits_are_what_counts():
    assert (
        letters_and_digits(r"Find $\left(x^{2}\right)$!")
        == letters_and_digits("find x^2")
        == "findx2"
    )
    assert letters_and_digits("$-+$") == ""


def test_a_chinese_character_is_a_word():
    assert split_words("设 x_1=Ab2") == ["设", "x", "1", "ab2"]


def test_grams_of_short_and_empty_texts():
    assert word_ngrams("one two", 10) == {("one", "two")}
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
