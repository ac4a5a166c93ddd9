"""The places of a group's rollouts: where they go the same way, and where they part.

A place is a token together with everything the response said before it. Rollouts that reach the
same place are in the same state, so an update moves them by the same amount; the place is the unit
that is counted, not the rollout.

    right "She has 4 + 3"        places   She  has  4  +  3        reached by both: She has 4
    wrong "She has 4 * 3"                              *  3        the two 3 are different places

Counts of a place are those of the rollouts of its group that pass through it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from counterpoise.types import Row


@dataclass(slots=True)
class Place:
    """One token after one prefix, in the rollouts of one prompt."""

    token: int
    num_right: int = 0  # rollouts of positive advantage
    num_wrong: int = 0


def find_places(rows: Sequence[Row]) -> tuple[list[Place], list[list[int]]]:
    """Every place of every group of `rows`, and for each row the indices of its places [T]."""
    places: list[Place] = []
    places_of_rows: list[list[int]] = []
    # A place is known by the place before it (for the first token, its group) and its token.
    index_after: dict[tuple[int | str, int], int] = {}
    for row in rows:
        previous: int | str = row.group
        row_places: list[int] = []
        for token in row.content.response_tokens.tolist():
            place_index = index_after.setdefault((previous, token), len(places))
            if place_index == len(places):
                places.append(Place(token))
            if row.sign > 0:
                places[place_index].num_right += 1
            else:
                places[place_index].num_wrong += 1
            row_places.append(place_index)
            previous = place_index
        places_of_rows.append(row_places)
    return places, places_of_rows
