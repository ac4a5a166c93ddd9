"""Rewards for mathematics: no credit for work left undone, full credit for any finished form."""

import json
from pathlib import Path

import pytest

from counterpoise.variants import VERIFIERS
from counterpoise.verify.math.comparison_pool import ComparisonPool
from counterpoise.verify.math.verifier import MathVerifier

DATA = Path(__file__).parents[4] / "shared" / "data"
BENCHMARKS = "aime24 aime25 amc23 amc83 math500 minerva olympiadbench gsm8k_test"

HACKS_OF_SIX = (
    r"""
2*3 | 3+3 | 12/2 | \frac{12}{2} | 6/1 | \sqrt{36} | 3! | 10-4 | 7-1 | 2^2+2 | 6^1 | 6+0
2(3) | (6)(1) | 2 \cdot 3 | 2 \times 3 | 12 \div 2 | \sum_{k=1}^{3} k | \binom{4}{2}
\lfloor 6.5 \rfloor | |-6| | \log_2 64 | 6=6 | 5+1=6 | x=5+1 | x+y=6 | 6 or 7
6 \text{ or } 7 | \text{6 or 7} | 6, 7, 8 | \{6\} | \{6,7\} | [6,6] | (6,7) | 5 < x < 7
\pm 6 | six | 6x | 6i | 6\pi | 6pi | 6 million | 6 7 | \frac{6}{0} | 10^{10^{10}}
9^{9^{9^{9}}} | 99999999! | 0.6 \times 10^{1} | \max(6,5) | 6 \pmod 7 | -6 | 60 | 6%6
""".strip()
    .replace("\n", " | ")
    .split(" | ")
)

FORMS_OF_SIX = (
    r"""
6 | 6. | 6.0 | 06 | +6 | $6$ | \(6\) | \text{6} | \mathbf{6} | x=6 | x = 6.0 | S_{10}=6
\theta = 6 | AB = 6 | \text{Area} = 6 | \approx 6 | 6^\circ | 6° | \$6 | \$6.00 | 6 apples
6\text{ apples} | 6cm | \text{6 apples} | 6 \text{ cm}^2 | 6\,\mathrm{m/s}^{2} | 6 km/h
6\% | 600% | (6) | {6} | 6e0 | 6_{10} | \angle ABC = 6^{\circ} | 6 \text{ a.m.} | \boxed{6}
\displaystyle 6
""".strip()
    .replace("\n", " | ")
    .split(" | ")
)

EQUAL_FORMS = [
    ("2/4", "1/2"),
    ("0.5", r"\frac{1}{2}"),
    (r"\dfrac{1}{2}", ".5"),
    ("0.333333", "1/3"),
    (r"0.\overline{3}", "1/3"),
    (r"4\frac{2}{3}", r"\frac{14}{3}"),
    ("4 2/3", r"\frac{14}{3}"),
    (r"\frac{-35}{9}", r"-\frac{35}{9}"),
    ("58500", "58,500"),
    (r"58{,}500", "58500"),
    ("11111111100", r"11,\! 111,\! 111,\! 100"),
    ("8.7e8", r"8.7 \times 10^{8}"),
    (r"87 \cdot 10^7", r"8.7 \times 10^{8}"),
    (r"8.7 \times 10^8", "870,000,000"),
    ("62.5", "62.5%"),
    ("0.625", "62.5%"),
    ("5", "x=5"),
    ("−2", "-2"),
    ("137.5", r"137 \frac{1}{2}"),
    ("18.9", r"\$18.90"),
    (r"\sqrt{12}", r"2\sqrt{3}"),
    (r"\frac{1}{\sqrt{3}}", r"\frac{\sqrt{3}}{3}"),
    (r"0.5\pi", r"\frac{\pi}{2}"),
    (r"2(9+\pi)", r"18+2\pi"),
    ("243", "3^{5}"),
    ("-5i+6", "6 - 5i"),
    ("7, 3, 5", "3, 5, 7"),
    (r"(6.0, \frac{2\pi}{4})", r"\left( 6, \frac{\pi}{2} \right)"),
    (r"\frac{n^2+n}{2}", r"\frac{n(n+1)}{2}"),
    ("2x + 3 = y", "y = 2x + 3"),
    ("evelyn", r"\text{Evelyn}"),
    ("C", r"\text{(C)}"),
    (r"1 \text{ and } -2", "1,-2"),
    ("-2, 5 and 7", "7, 5, -2"),
    (r"E_{2}, E_{1}", "E_{1},E_{2}"),
    ("52_{8}", "52_8"),
    ("52", "52_8"),
    (r"\frac{4A}{3+3i}e^{it}", r"\frac{4 A}{3+3 i} e^{i t}"),
    ("2, 2, 3", "2, 3"),
    (r"\frac{\cos x}{\sin x}", r"\cot x"),
    (r"\frac{9a}{20} + \frac{11}{20}", r"\frac{11+9a}{20}"),
    (r"n 2^n - 2^{n+1} + 1", r"(n-2) 2^{n}+1"),
    (r"\frac{t^2}{2} e^{-t} - t e^{-t} + C e^{-t}", r"\left(\frac{t^{2}}{2}-t+C\right) e^{-t}"),
    (r"1-\sin^2 x", r"\cos^2 x"),
]
# found by `poise verify-check`; the first of each pair once answered the second
WRONG_FORMS = [
    ("52_9", "52_8"),
    ("4210_{6}", "4210_{5}"),
    ("16, 3, 1", "16,3,1,1"),
    ("-2", "-2,-2"),
    (r"-\frac{d x}{d t}=k x-a", r"\frac{d x}{d t}=k x-a"),
    ("6 7", "67"),
    ("6 and 7", "6"),
    ("1 /", "1"),
    # the question itself
    ("19x + 1 - 4x - 81", "15x - 80"),
    ("(-k + 4) + (-2 + 3k)", "2k+2"),
    (r"\frac{(10r^3)(4r^6)}{8r^4}", "5r^5"),
    (r"\frac{\sec x}{\sin x} - \frac{\sin x}{\cos x}", r"\cot x"),
    (r"\frac{4+6a}{5}-\frac{1+3a}{4}", r"\frac{11+9a}{20}"),
]


@pytest.fixture(scope="module")
def verifier():
    with MathVerifier(timeout_seconds=10.0) as verifier:
        yield verifier


def box(answer):
    return f"Therefore the answer is $\\boxed{{{answer}}}$."


def golds_of(name):
    path = DATA / f"{name}.jsonl"
    if not path.exists():
        pytest.skip(f"{path} is not there: benchmark answers are not part of the repository")
    return [json.loads(line)["answer"] for line in path.read_text(encoding="utf-8").splitlines()]


def test_work_left_undone_scores_nothing(verifier):
    scores = verifier.score([box(hack) for hack in HACKS_OF_SIX], ["6"] * len(HACKS_OF_SIX))
    assert [h for h, reward in zip(HACKS_OF_SIX, scores.rewards, strict=True) if reward] == []


def test_every_finished_form_of_a_number_scores(verifier):
    scores = verifier.score([box(form) for form in FORMS_OF_SIX], ["6"] * len(FORMS_OF_SIX))
    assert [f for f, reward in zip(FORMS_OF_SIX, scores.rewards, strict=True) if not reward] == []


def test_equal_forms_score(verifier):
    answers, golds = zip(*EQUAL_FORMS, strict=True)
    scores = verifier.score([box(answer) for answer in answers], golds)
    missed = [pair for pair, reward in zip(EQUAL_FORMS, scores.rewards, strict=True) if not reward]
    assert missed == []


def test_wrong_forms_score_nothing(verifier):
    answers, golds = zip(*WRONG_FORMS, strict=True)
    scores = verifier.score([box(answer) for answer in answers], golds)
    accepted = [pair for pair, reward in zip(WRONG_FORMS, scores.rewards, strict=True) if reward]
    assert accepted == []


@pytest.mark.parametrize(
    "response",
    ["6", "the answer is 6", r"\boxed{6", r"\boxed{}", r"\fbox{6}", box("6" * 100_000), ""],
)
def test_no_readable_box_scores_nothing(verifier, response):
    assert verifier.score([response], ["6"]).rewards == [0.0]


def test_the_last_box_counts(verifier):
    responses = [r"\boxed{5}, no: \boxed{6}", r"\boxed{6}, no: \boxed{5}"]
    assert verifier.score(responses, ["6", "6"]).rewards == [1.0, 0.0]


@pytest.mark.parametrize("answer", ["0=0", "x=x", "y=y"])
def test_tautologies_score_nothing(verifier, answer):
    assert verifier.score([box(answer)] * 2, ["N=n", "y=2x+3"]).rewards == [0.0, 0.0]


@pytest.mark.parametrize("name", BENCHMARKS.split())
def test_every_benchmark_answer_scores_when_boxed(verifier, name):
    golds = golds_of(name)
    scores = verifier.score([box(gold) for gold in golds], golds)
    assert [g for g, reward in zip(golds, scores.rewards, strict=True) if not reward] == []


@pytest.mark.slow
def test_every_answer_of_minerva_equals_itself_by_computer_algebra():
    """The other benchmarks: tests/lab/verifier_audit/test_verify_check_command.py."""
    golds = golds_of("minerva")
    compare = "counterpoise.verify.math.equivalence:equivalent"
    pool = ComparisonPool(compare, timeout_seconds=30.0, workers=2)
    outcomes = pool.run([(gold, gold) for gold in golds])
    pool.close()
    assert [gold for gold, o in zip(golds, outcomes, strict=True) if o != "equal"] == []


def test_a_real_power_tower_costs_one_reward():
    with MathVerifier(timeout_seconds=2.0, workers=1) as verifier:
        towers = [box("2^{10^{10^{10}}}"), box(r"\sqrt{10^{10^{10}}}")]
        scores = verifier.score([*towers, box(r"\sqrt{12}")], [r"2\sqrt{3}"] * 3)
    assert scores.rewards == [0.0, 0.0, 1.0]
    assert scores.crashes == 0


def test_faults_are_counted_and_not_remembered(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent)
    compare = "scripted_compare:compare"
    with MathVerifier(timeout_seconds=0.6, workers=2, compare=compare) as verifier:
        responses = [box(rf"\pi {word}") for word in ("a", "hang", "hang", "die", "b y")]
        golds = [r"\pi b y"] * 5
        for _ in range(2):
            scores = verifier.score(responses, golds)
            assert scores.rewards == [0.0, 0.0, 0.0, 0.0, 1.0]
            assert (scores.timeouts, scores.crashes) == (1, 1)  # equal answers are asked once
            lost = [{}, {"lost": "timeout"}, {"lost": "timeout"}, {"lost": "crash"}, {}]
            assert scores.logged == lost
        assert verifier.score(responses[:1], golds[:1]).logged == []


def test_no_worker_starts_for_numbers_and_verdicts_are_kept():
    with VERIFIERS.load("math")() as verifier:
        verifier.score([box("11"), box("5+6"), "no box"], ["11"] * 3)
        assert verifier._pool._workers == []
        assert verifier.score([box(r"\sqrt{12}")], [r"2\sqrt{3}"]).rewards == [1.0]
        verifier.close()
        assert verifier.score([box(r"\sqrt{12}")], [r"2\sqrt{3}"]).rewards == [1.0]
        assert verifier._pool._workers == []


def test_memory_of_verdicts_is_bounded(monkeypatch):
    monkeypatch.setattr("counterpoise.verify.math.verifier.MAX_CACHED_VERDICTS", 3)
    verifier = MathVerifier()
    for k in range(10):
        verifier._cache_verdict((str(k), "x"), True)
    assert list(verifier._verdicts) == [("7", "x"), ("8", "x"), ("9", "x")]


def test_lengths_must_match(verifier):
    with pytest.raises(ValueError, match="shorter"):
        verifier.score(["a"], [])
