"""Each kind of pair on problems made up for it, among others that are like them."""

import pytest

from counterpoise.task.contamination.answers import relate_answers
from counterpoise.task.contamination.copy_rules import find_matches
from counterpoise.task.contamination.items import BenchmarkItems, Item
from counterpoise.task.contamination.search import find_overlap
from counterpoise.task.contamination.shared_spans import shared_spans

BEEKEEPER = Item(
    "bees",
    "A beekeeper in Ghent owns $17$ hives. Each hive holds either $2310$ or $4096$ bees, and the "
    "hives together hold $58{,}054$ bees. How many hives hold $4096$ bees?",
    "8",
)
LATTICE = Item(
    "lattice",
    r"Let $a_{1},a_{2},\ldots$ be such that $a_{1}=3$ and $a_{n+1}=a_{n}^{2}-5a_{n}+\frac{7}{n+2}$ "
    r"for $n\ge 1$. Find the smallest $k$ such that $\left|a_{k}-a_{k+3}\right|<\frac{1}{2024}$.",
    r"\frac{19}{4}",
)
GARDEN = [
    Item(f"garden-{n}", f"A gardener plants {n} tulips in each of {n + 3} rows. How many?", str(n))
    for n in range(2, 60)
]
SEQUENCES = [
    Item(f"sequence-{n}", rf"Let $b_1={n}$ and $b_{{m+1}}=b_m+{n + 1}$. Find $b_{{10}}$.", str(n))
    for n in range(2, 60)
]
NOISE = [*GARDEN, *SEQUENCES]
BENCH = [BenchmarkItems("made up", [BEEKEEPER, LATTICE])]


def kind_of(problem, answer, wanted):
    found = find_matches([*NOISE, Item("new", problem, answer)], BENCH)
    pairs = {(m.item.id, m.prompt.id): m.kind for m in found}
    assert all(train == "new" for _, train in pairs)
    return pairs.get((wanted, "new"))


def test_the_same_letters():
    text = BEEKEEPER.problem.replace("$", "").replace("{,}", ",").upper()
    assert kind_of(text, "8", "bees") == "exact"


def test_a_sentence_more_is_near():
    assert kind_of("Think hard. " + BEEKEEPER.problem, "8", "bees") == "near"


REWORDED = (
    "In Ghent there is a beekeeper with $17$ hives holding $58{,}054$ bees together. Any of the "
    "hives holds $2310$ bees or else $4096$ bees. Of how many hives does a beekeeper say the latter"
)


def test_other_words_and_the_same_answer():
    assert kind_of(REWORDED, "8", "bees") == "reworded"


def test_other_numbers_are_no_copy():
    other = BEEKEEPER.problem.replace("17", "23").replace("2310", "1111").replace("owns", "has")
    assert kind_of(other, "8", "bees") == "related"


def test_other_numbers_in_other_words_are_nothing():
    other = REWORDED.replace("17", "23").replace("2310", "1111").replace("4096", "5050")
    assert kind_of(other, "9", "bees") is None


CHINESE = (
    r"数列 a_1,a_2,\cdots 满足 a_1=3，且对 n\geq1 有 a_{n+1}=a_n^2-5a_n+\df{7}{n+2}. "
    r"求最小的 k，使得 |a_k-a_{k+3}|<\dfrac1{2024}."
)


@pytest.mark.parametrize("answer", [r"\dfrac{19}{4}", "23", "4.75"])
def test_a_translation_with_the_answer_or_m_plus_n(answer):
    assert kind_of(CHINESE, answer, "lattice") == "translated"


def test_a_translation_with_another_answer_needs_no_report():
    assert kind_of(CHINESE, r"\sqrt{2}", "lattice") is None


def test_counts_and_copies():
    train = [
        *NOISE,
        Item("x", BEEKEEPER.problem),
        Item("y", REWORDED, "8"),
        Item("z", CHINESE, "23"),
    ]
    found = find_overlap(train, BENCH)
    assert found.counts_by_kind("made up") == {
        "exact": 1, "near": 0, "reworded": 0, "translated": 1, "related": 0,
    }  # fmt: skip
    assert found.count_copied("made up") == 2
    assert {item.id for item in found.train_copies()} == {"x", "y", "z"}
    assert find_overlap(NOISE, BENCH).matches == []


@pytest.mark.parametrize(
    ("answer", "gold", "relation"),
    [
        ("0.5", r"\frac{1}{2}", "same"),
        ("3", r"\frac{1}{2}", "derived"),
        ("9", "1,3,5", "derived"),
        ("7", "(1,-2), (1,3)", "derived"),
        ("5", r"2\sqrt{7}+1", "unknown"),
        ("", "5", "unknown"),
        ("4", "5", "different"),
        (r"\sqrt{2}", "5", "different"),
        (r"2\sqrt{3}", r"\sqrt{2}", "different"),
    ],
)
def test_answers(answer, gold, relation):
    assert relate_answers(answer, gold) == relation


def test_shared_spans_put_together_are_the_texts():
    left, right = shared_spans("Find $x^2$ of 12 swans.", "求 x^2, 12 只")
    assert "".join(text for text, _ in left) == "Find $x^2$ of 12 swans."
    assert [text for text, shared in left if shared] == ["x^2", "12"]
    assert [text for text, shared in right if shared] == ["x^2", "12"]
