"""Dynamic sampling: what is dropped, what takes its place, and that nothing is lost."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from counterpoise.sample.dynamic_sampling import has_spread, refill_groups, replacement_prompts
from counterpoise.types import Group, Ints, Prompt, Rollout

NOTHING: Ints = np.empty(0, np.int32)


def group(key: str, *rewards: float) -> Group:
    made = [Rollout(key, "", "", "", r, NOTHING, NOTHING, NOTHING) for r in rewards]
    return Group(key, 1, tuple(made))


class Supply:
    """Groups to come, and how many were asked for at a time."""

    def __init__(self, *groups: Group) -> None:
        self.left, self.asked = list(groups), []

    def __call__(self, wanted: int) -> list[Group]:
        self.asked.append(wanted)
        given, self.left = self.left[:wanted], self.left[wanted:]
        return given


def keys(groups: list[Group]) -> str:
    return "".join(g.key for g in groups)


FIRST = [group("a", 0, 1), group("b", 1, 1), group("c", 0, 0), group("d", 1, 0)]


def test_groups_without_spread_give_way_round_by_round() -> None:
    supply = Supply(group("e", 0, 0), group("f", 0, 1), group("g", 1, 0), group("h", 1, 0))
    found = refill_groups(FIRST, supply, max_refills=5)
    assert (keys(found.groups), keys(found.dropped)) == ("afgd", "bec")
    assert (found.rounds, supply.asked) == (3, [2, 1])  # as many as are missing, no more


def test_the_limit_leaves_what_nobody_replaced() -> None:
    supply = Supply(group("e", 0, 0), group("f", 0, 1), group("g", 1, 0))
    found = refill_groups(FIRST, supply, max_refills=1)
    assert (keys(found.groups), keys(found.dropped), found.rounds) == ("afcd", "be", 2)


def test_nothing_is_asked_where_it_is_off_or_nothing_is_missing() -> None:
    supply = Supply()
    assert refill_groups(FIRST, supply, max_refills=0).groups == FIRST
    assert refill_groups([FIRST[0]], supply, max_refills=3).rounds == 1
    assert supply.asked == []


def test_it_ends_when_there_are_no_prompts_left() -> None:
    supply = Supply(group("e", 1, 1))
    found = refill_groups(FIRST, supply, max_refills=9)
    assert (keys(found.groups), keys(found.dropped), found.rounds) == ("abcd", "e", 2)


def test_spread_is_of_the_verifiers_reward() -> None:
    assert has_spread(group("a", 0.0, 0.5))
    assert not has_spread(group("a", 0.5, 0.5))
    assert not has_spread(group("a", 1.0))


@given(st.data(), st.integers(1, 6), st.integers(0, 5))
def test_every_group_is_kept_or_dropped_once(data: st.DataObject, P: int, rounds: int) -> None:
    """And a group with spread is never dropped, nor a place ever lost."""

    def groups(prefix: str, count: int) -> list[Group]:
        return [
            group(f"{prefix}{i}", *data.draw(st.lists(st.sampled_from([0, 1]), min_size=2)))
            for i in range(count)
        ]

    first, later = groups("p", P), groups("q", data.draw(st.integers(0, 10)))
    supply = Supply(*later)
    found = refill_groups(first, supply, rounds)
    drawn = len(first) + len(later) - len(supply.left)
    names = [g.key for g in found.groups + found.dropped]
    assert len(found.groups) == P
    assert len(names) == len(set(names)) == drawn
    assert not any(has_spread(g) for g in found.dropped)
    assert found.rounds <= rounds + 1


def test_further_prompts_are_all_others_in_an_order_of_their_own() -> None:
    train_set = [(Prompt(str(i), "?", "1"), NOTHING) for i in range(20)]
    asked = [prompt for prompt, _ in train_set[:5]]
    order = [prompt.id for prompt, _ in replacement_prompts(train_set, asked, seed=3, iteration=7)]
    assert sorted(order, key=int) == [str(i) for i in range(5, 20)]
    assert order == [p.id for p, _ in replacement_prompts(train_set, asked, seed=3, iteration=7)]
    assert order != [p.id for p, _ in replacement_prompts(train_set, asked, seed=3, iteration=8)]
