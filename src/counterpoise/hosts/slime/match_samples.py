"""Which sample of the sampling dump each sample of the training dumps is.

slime writes the position in the rollout batch. miles writes the sample's index only, which samples
of one rollout may share; then tokens decide, as they do where there is no index either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from counterpoise.errors import PoiseError
from counterpoise.hosts.slime.dump_files import to_list

Sample = Mapping[str, Any]


def match_samples(
    train_samples: Sequence[Sample],
    train_where: str,
    sampled_samples: Sequence[Sample],
    sampled_where: str,
) -> dict[int, int]:
    """The train index of every sample that was trained, by its position among the sampled ones."""
    positions_of_index: dict[Any, list[int]] = {}
    for candidate, sampled in enumerate(sampled_samples):
        positions_of_index.setdefault(sampled.get("index"), []).append(candidate)
    positions_of_tokens: dict[tuple[int, ...], list[int]] = {}
    matches: dict[int, int] = {}
    for train_index, sample in enumerate(train_samples):
        position = sample.get("rollout_position")
        if position is None and sample.get("sample_index") is not None:
            same_index = positions_of_index.get(int(sample["sample_index"]), [])
            unmatched = [candidate for candidate in same_index if candidate not in matches]
            position = _choose_by_tokens(sample, unmatched, sampled_samples)
        if position is None:
            if not positions_of_tokens:  # slow, so only where it is needed
                for candidate, sampled in enumerate(sampled_samples):
                    positions_of_tokens.setdefault(_tokens(sampled), []).append(candidate)
            same_tokens = positions_of_tokens.get(_tokens(sample), [])
            position = next((number for number in same_tokens if number not in matches), None)
        if position is None or not 0 <= int(position) < len(sampled_samples):
            raise PoiseError(
                f"{train_where} holds a sample that {sampled_where} lacks: "
                "import the folder of training dumps by itself"
            )
        matches[int(position)] = train_index
    return matches


def _choose_by_tokens(
    sample: Sample, positions: Sequence[int], sampled_samples: Sequence[Sample]
) -> int | None:
    """The position at which the sample's tokens are; if they are at none, the first position."""
    if len(positions) < 2:
        return positions[0] if positions else None
    tokens = _tokens(sample)
    equal = (number for number in positions if _tokens(sampled_samples[number]) == tokens)
    return next(equal, positions[0])


def _tokens(sample: Sample) -> tuple[int, ...]:
    return tuple(to_list(sample.get("tokens")) or ())
