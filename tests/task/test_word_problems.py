"""The embedded task: sound arithmetic in every solution, disjoint splits, slips at their rate."""

from __future__ import annotations

import random
import re
from collections import Counter

import pytest

from counterpoise.task import word_problems
from counterpoise.task.scene import BOYS, GIRLS, OPERATIONS, Scene, SolutionStep
from counterpoise.task.slips import with_slips
from counterpoise.task.split_heldout import drop_heldout_texts, hold_out, normalize_problem
from counterpoise.task.story_families import FAMILIES
from counterpoise.task.word_problems import (
    HELDOUT_MODULUS,
    STEPS,
    load,
    make_problem,
    split_of_skeleton,
    tell_story,
)
from counterpoise.types import Prompt
from counterpoise.variants import TASKS

MANY = 3000
EQUATION = re.compile(r"(-?\d+) ([-+*/]) (-?\d+) = (-?\d+)")
BOXED = re.compile(r" The answer is \\boxed\{(\d+)\}\.$")


def equations(solution: str) -> list[tuple[int, str, int, int]]:
    return [(int(a), sign, int(b), int(c)) for a, sign, b, c in EQUATION.findall(solution)]


def boxed(solution: str) -> str:
    found = BOXED.search(solution)
    assert found, solution
    return found[1]


@pytest.fixture(scope="module")
def problems() -> dict[str, list[Prompt]]:
    return {split: [make_problem(split, i) for i in range(MANY)] for split in ("train", "heldout")}


# -- the problems -------------------------------------------------------------------------------


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_every_worked_solution_is_right(problems: dict[str, list[Prompt]], split: str) -> None:
    for prompt in problems[split]:
        steps = equations(prompt.solution)
        assert 2 <= len(steps) <= 4
        for a, sign, b, c in steps:
            found = {"+": a + b, "-": a - b, "*": a * b, "/": a / b}[sign]
            assert found == c, prompt  # "/" too: halves come out even
        assert prompt.answer == boxed(prompt.solution) == str(steps[-1][3])
        assert int(prompt.answer) >= 0
        assert all(c >= 0 for *_, c in steps)
        assert prompt.problem.endswith("?")
        assert "{" not in prompt.problem
        assert "  " not in prompt.problem


def test_every_number_of_a_step_was_told_or_worked_out(problems: dict[str, list[Prompt]]) -> None:
    for prompt in problems["train"]:
        known = {int(n) for n in re.findall(r"\d+", prompt.problem)}
        known.add(2)  # "half of them", "all the way around"
        for a, _, b, c in equations(prompt.solution):
            assert {a, b} <= known, prompt
            known.add(c)


@pytest.mark.parametrize("level", STEPS)
def test_levels_are_graded(level: int) -> None:
    fewest, most = STEPS[level]
    lengths = Counter(
        len(equations(make_problem("train", i, (level,)).solution)) for i in range(300)
    )
    assert set(lengths) == set(range(fewest, most + 1))
    assert min(lengths.values()) > 100 or len(lengths) == 1


def test_levels_are_taken_in_turn_and_grow() -> None:
    means = []
    for level in STEPS:
        drawn = [make_problem("train", i, (level,)) for i in range(400)]
        told = [int(n) for p in drawn for n in re.findall(r"\d+", p.problem)]
        means.append(sum(told) / len(told))
    assert means == sorted(means)
    mixed = [make_problem("train", i, (1, 4)) for i in range(40)]
    assert all(len(equations(p.solution)) == (2, 4)[i % 2] for i, p in enumerate(mixed))


def test_a_problem_is_a_function_of_its_place() -> None:
    assert [make_problem("train", i) for i in range(50)] == [
        make_problem("train", i) for i in range(50)
    ]
    assert make_problem("train", 7, seed=1) != make_problem("train", 7, seed=2)
    assert (
        make_problem("train", 0).problem
        == "Paul has 37 dollars. He buys 5 nuts for 5 dollars each. "
        "How many dollars does Paul have left?"
    )
    state = random.getstate()
    make_problem("train", 3)
    assert random.getstate() == state


def test_a_larger_set_begins_with_the_smaller() -> None:
    small, large = load(size=20, heldout=5), TASKS.load("word_problems")(size=40, heldout=9)
    assert large.train[:20] == small.train
    assert large.heldout[:5] == small.heldout
    assert small.name == "word_problems"
    assert small.train[3].id == "word_problems/train/3"
    ids = [p.id for p in [*large.train, *large.heldout]]
    assert len(set(ids)) == len(ids)


def test_problems_hardly_repeat(problems: dict[str, list[Prompt]]) -> None:
    texts = {p.problem for p in problems["train"]}
    assert len(texts) > 0.99 * MANY
    answers = Counter(p.answer for p in problems["train"])
    assert answers.most_common(1)[0][1] < 0.05 * MANY  # no answer is worth guessing


# -- families -----------------------------------------------------------------------------------


def test_at_least_eight_families_and_all_are_told() -> None:
    assert len(FAMILIES) >= 8
    rng = random.Random(0)
    told = {name: tell_story(name, 3, rng) for name in FAMILIES}
    assert len({scene.skeleton for scene in told.values()}) == len(told)
    leads = [frozenset(p.split()[0] for p in scene.sentences) for scene in told.values()]
    assert len(leads) == len(FAMILIES)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_family_at_every_level(family: str) -> None:
    rng = random.Random(1)
    signs = set()
    for level in STEPS:
        for _ in range(100):
            scene = tell_story(family, level, rng)
            fewest, most = STEPS[level]
            assert fewest <= len(scene.steps) <= most
            for step in scene.steps:
                assert OPERATIONS[step.sign](step.left, step.right) == step.value >= 0
                assert str(step).endswith(f" = {step.value} {step.unit}.")
                assert step.unit
                signs.add(step.sign)
            assert scene.question.endswith("?")
            assert scene.value == scene.steps[-1].value
    assert len(signs) >= 2


def test_distractors_by_level() -> None:
    """A number that no step uses: never at level 1, always at level 4."""

    def distracted(level: int) -> float:
        found = 0
        for i in range(200):
            p = make_problem("train", i, (level,))
            used = Counter(n for a, _, b, _ in equations(p.solution) for n in (a, b))
            told = Counter(map(int, re.findall(r"\d+", p.problem)))
            found += any(told[n] > used[n] for n in told)
        return found / 200

    assert distracted(1) == 0.0
    assert 0.15 < distracted(2) < 0.45
    assert distracted(4) > 0.95  # now and then it repeats a number of the story


def test_a_scene_is_peopled_consistently() -> None:
    for seed in range(50):
        scene = Scene(random.Random(seed), 2)
        assert scene.name != scene.other
        assert (scene.He == "She") == (scene.name in GIRLS)
        assert (scene.him == "him") == (scene.name in BOYS)


@pytest.mark.parametrize("bound", range(1, 9))
def test_what_is_taken_away_leaves_something(bound: int) -> None:
    scene = Scene(random.Random(0), 1)
    taken = {scene.quantity_below(bound) for _ in range(100)}
    assert max(taken) == bound - 1
    assert min(taken) == min(2, bound - 1)


# -- splits -------------------------------------------------------------------------------------


def skeleton(prompt: Prompt) -> str:
    return ";".join(f"{a}{sign}{b}" for a, sign, b, _ in equations(prompt.solution))


@pytest.mark.parametrize("seed", [0, 1])
def test_no_arithmetic_is_on_both_sides_of_a_family(seed: int) -> None:
    """Drawn as the task draws, for every family: the skeleton decides the side."""
    sides: dict[tuple[str, str], set[str]] = {}
    rng = random.Random(seed)
    for family in FAMILIES:
        for _ in range(500):
            scene = tell_story(family, 1 + rng.randrange(4), rng)
            side = split_of_skeleton(family, scene.skeleton)
            sides.setdefault((family, scene.skeleton), set()).add(side)
    assert all(len(found) == 1 for found in sides.values())
    share = sum(found == {"heldout"} for found in sides.values()) / len(sides)
    assert share == pytest.approx(1 / HELDOUT_MODULUS, abs=0.02)


def test_splits_are_disjoint_over_thousands(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, str]] = []

    def listening(family: str, level: int, rng: random.Random) -> Scene:
        scene = tell_story(family, level, rng)
        told.append((family, scene.skeleton))
        return scene

    monkeypatch.setattr(word_problems, "tell_story", listening)
    found: dict[str, set[tuple[str, str]]] = {"train": set(), "heldout": set()}
    for split, skeletons in found.items():
        for i in range(MANY):
            text = skeleton(make_problem(split, i))
            assert told[-1][1] == text  # the last one told is the one that was taken
            skeletons.add(told[-1])
    assert found["train"].isdisjoint(found["heldout"])
    assert min(map(len, found.values())) > MANY / 2


def test_seeds_do_not_break_the_split() -> None:
    train = {make_problem("train", i, (1,), seed=5).problem for i in range(2000)}
    heldout = {make_problem("heldout", i, (1,), seed=6).problem for i in range(500)}
    assert train.isdisjoint(heldout)


def prompts(*texts: str) -> list[Prompt]:
    return [Prompt(f"id{i}", text, "1") for i, text in enumerate(texts)]


def test_holding_out_by_hash() -> None:
    rows = prompts(*(f"problem {i}" for i in range(20)))
    train, kept = hold_out(rows, 5, "here")
    assert (len(train), len(kept)) == (15, 5)
    assert hold_out(rows[::-1], 5, "here")[1] == kept
    assert hold_out(rows, 0, "here") == (rows, [])


def test_equal_texts_stay_on_one_side() -> None:
    assert normalize_problem(" What\n is  1+1? ") == normalize_problem("what is 1+1?")
    rows = prompts("A b", "a  B", "c")
    assert drop_heldout_texts(rows, rows[1:2], "here") == rows[2:]


# -- slips --------------------------------------------------------------------------------------

SUM = SolutionStep("It is", 40, "+", 30, 70, "pens")
CHAIN = [
    SolutionStep("a", 20, "*", 31, 620, "x"),
    SolutionStep("b", 620, "-", 77, 543, "x"),
    SolutionStep("c", 5000, "+", 543, 5543, "x"),
]
NUMBERS = [20, 31, 77]  # small ones: no slip here goes below zero


def test_no_slips_change_nothing() -> None:
    assert with_slips(CHAIN, NUMBERS, random.Random(0), 0.0) == CHAIN


@pytest.mark.parametrize("rate", [0.1, 0.24, 1.0])
def test_slips_come_at_their_rate(rate: float) -> None:
    """Half the slips take one of four numbers, one of them the right one; half miss the result in
    five ways, one of which draws its last digit and hits in ten: rate * (3/4 + 49/50) / 2."""
    rng, draws = random.Random(0), 20_000
    slipped = sum(with_slips([SUM], [40, 30, 5, 9], rng, rate) != [SUM] for _ in range(draws))
    expected = rate * (3 / 4 + 49 / 50) / 2
    assert slipped / draws == pytest.approx(expected, abs=4 * (expected / draws) ** 0.5)


def test_what_was_written_is_carried_on() -> None:
    rng, wrong = random.Random(0), 0
    for _ in range(2000):
        first, second, third = with_slips(CHAIN, NUMBERS, rng, 0.3)
        assert first.left == 20
        assert second.left == first.value  # not 620, whatever became of it
        assert third.left == 5000
        assert third.right in (second.value, *NUMBERS)
        for step in (first, second, third):
            off = step.value - OPERATIONS[step.sign](step.left, step.right)
            assert abs(off) <= 10
        wrong += (first, second, third) != tuple(CHAIN)
    one, other = 0.3 * (2 / 3 + 49 / 50) / 2, 0.3 * (1 + 49 / 50) / 2  # 543 is no number told
    assert wrong / 2000 == pytest.approx(1 - (1 - one) ** 2 * (1 - other), abs=0.045)


def test_a_slip_below_zero_is_noticed_and_the_line_written_as_it_should_be() -> None:
    steps = [SolutionStep("a", 6, "/", 2, 3, "x"), SolutionStep("b", 3, "-", 2, 1, "x")]
    mended = 0
    for seed in range(2000):
        first, second = with_slips(steps, [6, 2, 90], random.Random(seed), 0.5)
        assert second.value >= 0
        if second.left != first.value:
            assert second == steps[1]
            mended += 1
    assert mended > 0


def test_slips_spoil_solutions_and_never_answers() -> None:
    flawless = [make_problem("train", i, (3,)) for i in range(1000)]
    careless_ones = [make_problem("train", i, (3,), slips=0.24) for i in range(1000)]
    right = 0
    for a, b in zip(flawless, careless_ones, strict=True):
        assert (a.id, a.problem, a.answer) == (b.id, b.problem, b.answer)
        steps = equations(b.solution)
        assert len(steps) == len(equations(a.solution))
        assert boxed(b.solution) == str(steps[-1][3])
        right += boxed(b.solution) == b.answer
    assert 0.45 < right / 1000 < 0.65  # about (1 - 0.2) ** 3.5, and slips that do no harm


def test_held_out_solutions_have_no_slips() -> None:
    task = load(size=50, heldout=50, slips=1.0)
    assert all(boxed(p.solution) == p.answer for p in task.heldout)
    assert not all(boxed(p.solution) == p.answer for p in task.train)
