"""The optimizer steps of slime and miles, from what each data-parallel rank was given.

    shard = {"partition": places in the rollout batch, or "sample_indices",
             "micro_batch_indices": [[0, 1], [2], ...]    into the shard's own samples
             "num_microbatches": [2, 1, ...]}             for each optimizer step

Rank r computes num_microbatches[s] of its micro-batches in step s, one after the other; the
gradients of all ranks are added up. So step s holds the samples of these micro-batches of all
ranks. Samples that fill no whole step at the end of a rollout batch are in no shard.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from counterpoise.errors import PoiseError
from counterpoise.hosts.importing.formats import Schedule
from counterpoise.hosts.slime.dump_files import KNOWN_VERSIONS, to_list


@dataclass(frozen=True, slots=True)
class Shard:
    """The samples of one data-parallel rank, in its order.

    Example:
        Shard(rank=1, train_indices=[4, 5, 6], micro_batches=[[0, 1], [2]],
              micro_batches_per_step=[1, 1])
    """

    rank: int
    train_indices: list[int]  # of its samples in TrainSamples.samples
    micro_batches: list[list[int]] | None  # None: the trainer's files do not say
    micro_batches_per_step: list[int] | None  # a count for each optimizer step


def read_layout(
    layout: dict[str, Any], num_samples: int, where: str
) -> tuple[list[list[int]] | None, list[int] | None]:
    """(micro_batch_indices, num_microbatches) of a shard, checked; (None, None) if it has none."""
    micro_batches = to_list(layout.get("micro_batch_indices"))
    micro_batches_per_step = to_list(layout.get("num_microbatches"))
    if micro_batches is None or micro_batches_per_step is None:
        return None, None
    indices = [to_list(micro_batch) or [] for micro_batch in micro_batches]
    flat = [index for micro_batch in indices for index in micro_batch]
    if sum(micro_batches_per_step) != len(indices) or sorted(flat) != list(range(num_samples)):
        raise PoiseError(
            f"{where}: {len(indices)} micro-batches of {len(flat)} samples do not fit "
            f"num_microbatches {micro_batches_per_step} and {num_samples} samples: {KNOWN_VERSIONS}"
        )
    return indices, micro_batches_per_step


def build_schedule(
    shards: Sequence[Shard], rollout_of_train_index: Mapping[int, int], where: str
) -> Schedule | None:
    """The steps of all ranks together; None if the files do not tell them.

    A sample that gave no rollout is in no step.
    """
    if not shards or any(shard.micro_batches is None for shard in shards):
        return None
    micro_batches_per_step = shards[0].micro_batches_per_step or []
    if any(shard.micro_batches_per_step != micro_batches_per_step for shard in shards):
        raise PoiseError(
            f"{where}: ranks differ in num_microbatches, though all of them take the same steps: "
            "import each run by itself"
        )
    steps: list[list[int]] = [[] for _ in micro_batches_per_step]
    ranks: dict[int, int] = {}
    micro_batch_of_rollout: dict[int, int] = {}
    for shard in shards:
        micro_batches = iter(shard.micro_batches or [])
        for step, number in zip(steps, micro_batches_per_step, strict=True):
            for micro_batch_number in range(number):
                for index in next(micro_batches):
                    rollout_index = rollout_of_train_index.get(shard.train_indices[index])
                    if rollout_index is None:
                        continue
                    if rollout_index in ranks:
                        raise PoiseError(
                            f"{where}: a sample is on two data-parallel ranks, "
                            f"{ranks[rollout_index]} and {shard.rank}: import each run by itself"
                        )
                    step.append(rollout_index)
                    ranks[rollout_index] = shard.rank
                    micro_batch_of_rollout[rollout_index] = micro_batch_number
    return Schedule(tuple(map(tuple, steps)), ranks, micro_batch_of_rollout)
