"""The samples of a rollout batch, from slime's and miles' dumps of sampling and of training.

A sample is {"tokens": prompt and response, "response_lengths", "loss_masks" over the response, and
lists of numbers over the response: "rollout_log_probs" by the sampler, "log_probs" by the trainer
before the first optimizer step of the rollout batch, "advantages", "entropy"}. `rewards` are
normalised within groups; `raw_reward` is what the reward function said, in one list for the whole
rollout batch.

Which sample of the sampling dump each sample of the training dumps is: slime writes the position in
the rollout batch. miles writes the sample's index only, which samples of one rollout may share;
then tokens decide, as they do where there is no index either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from counterpoise.errors import PoiseError
from counterpoise.hosts.importing.formats import hash_tokens
from counterpoise.hosts.slime.dump_files import KNOWN_VERSIONS, to_list
from counterpoise.hosts.slime.schedule import Shard, read_layout

REQUIRED_COLUMNS = ("tokens", "response_lengths", "loss_masks")
Sample = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SampleRecord:
    """All that the dumps say of one sample; a dump that lacks it says nothing.

    Example:
        SampleRecord("train_data/7.pt", reward=1.0, trained={"tokens": [5, 6], ...}, train_index=3)
    """

    where: str  # the dump that errors name
    reward: Any  # as the dump holds it; None if nothing scored the sample
    sampled: Sample = field(default_factory=dict)  # in the sampling dump
    trained: Sample = field(default_factory=dict)  # in a training dump
    train_index: int | None = None  # in TrainSamples.samples; None: not trained

    def value(self, trained_name: str, sampled_name: str = "") -> Any:
        """A field of the training dump, else of the sampling dump, which may name it otherwise."""
        return self.trained.get(trained_name, self.sampled.get(sampled_name or trained_name))


class RolloutDump:
    """What was sampled: one dict for each sample."""

    def __init__(self, content: dict[str, Any], where: str) -> None:
        samples = content.get("samples")
        if not isinstance(samples, list) or not all(isinstance(item, dict) for item in samples):
            raise PoiseError(f"{where}: 'samples' is not a list of samples: {KNOWN_VERSIONS}")
        self.where = where
        self.samples: list[dict[str, Any]] = samples


@dataclass(frozen=True, slots=True)
class TrainSamples:
    """What was trained, of all data-parallel ranks.

    A train index is a position in `samples`; the dumps' own field sample_index is slime's number of
    a sample in the run. Samples of one rollout have the same rollout_ids, and with miles also the
    same sample_index.
    """

    where: str
    samples: list[dict[str, Any]]
    shards: list[Shard]
    raw_rewards: list[Any] | None  # of the whole rollout batch, in its order
    num_rollouts: int | None  # how many different rollout_ids all ranks have; None: not written

    @classmethod
    def from_whole_dump(cls, content: dict[str, Any], where: str) -> TrainSamples:
        """slime since 2026-08-12: one file with `samples` and `dp_shards`."""
        samples, layouts = content.get("samples"), content.get("dp_shards")
        if not isinstance(samples, list) or not isinstance(layouts, list):
            present = ", ".join(map(str, content))
            raise PoiseError(f"{where}: no 'dp_shards' (fields: {present}): {KNOWN_VERSIONS}")
        shards = []
        for layout in layouts:
            rank = int(layout["data_parallel_rank"])
            train_indices = _local_order(samples, layout, rank, where)
            micro_batches, micro_batches_per_step = read_layout(layout, len(train_indices), where)
            shards.append(Shard(rank, train_indices, micro_batches, micro_batches_per_step))
        sizes = to_list(layouts[0].get("global_batch_sizes")) if layouts else None
        return cls(
            where,
            samples,
            shards,
            to_list(content.get("raw_reward")),
            sum(sizes) if sizes else None,
        )

    @classmethod
    def from_rank_dumps(cls, rank_dumps: Sequence[tuple[dict[str, Any], str]]) -> TrainSamples:
        """miles, and slime before: a file for each rank, in the order of ranks."""
        samples: list[dict[str, Any]] = []
        shards: list[Shard] = []
        seen_samples: set[tuple[Any, ...]] = set()
        for content, where in rank_dumps:
            columns = content.get("rollout_data")
            if not isinstance(columns, dict):
                raise PoiseError(f"{where}: 'rollout_data' is not a dict: {KNOWN_VERSIONS}")
            local_samples = _split_columns(columns, where)
            identity = tuple(
                (sample.get("sample_index"), hash_tokens(to_list(sample["tokens"]) or []))
                for sample in local_samples
            )
            # Ranks of tensor and pipeline parallelism hold the same samples.
            if identity in seen_samples:
                continue
            seen_samples.add(identity)
            train_indices = list(range(len(samples), len(samples) + len(local_samples)))
            micro_batches, micro_batches_per_step = read_layout(columns, len(train_indices), where)
            shards.append(Shard(len(shards), train_indices, micro_batches, micro_batches_per_step))
            samples += local_samples
        first_columns = rank_dumps[0][0]["rollout_data"]
        sizes = to_list(first_columns.get("num_rollouts", first_columns.get("global_batch_sizes")))
        return cls(
            rank_dumps[0][1],
            samples,
            shards,
            to_list(first_columns.get("raw_reward")),
            sum(sizes) if sizes else None,
        )

    @property
    def is_complete(self) -> bool:
        """Whether the samples of all ranks are there."""
        if self.num_rollouts is None:
            return self.raw_rewards is None or len(self.samples) >= len(self.raw_rewards)
        rollout_ids = {
            sample.get("rollout_ids", train_index)
            for train_index, sample in enumerate(self.samples)
        }
        return len(rollout_ids) >= self.num_rollouts

    @property
    def rewards_need_order(self) -> bool:
        """Whether only the order of samples ties them to the list of rewards."""
        return not any({"local_raw_reward", "rollout_position"} & set(s) for s in self.samples)

    @property
    def batch_order(self) -> list[int]:
        """The train indices in the order of the rollout batch, as far as the dump tells it."""
        train_indices = list(range(len(self.samples)))
        for name in ("rollout_position", "sample_index"):
            if all(sample.get(name) is not None for sample in self.samples):
                return sorted(train_indices, key=lambda index: int(self.samples[index][name]))
        return train_indices

    def reward(self, train_index: int, position: int) -> Any:
        """What the reward function said of a sample; `position` is its place in the batch."""
        sample = self.samples[train_index]
        if sample.get("local_raw_reward") is not None or self.raw_rewards is None:
            return sample.get("local_raw_reward")
        reward_position = sample.get("rollout_position", position)
        is_known = 0 <= reward_position < len(self.raw_rewards)
        return self.raw_rewards[reward_position] if is_known else None


def _local_order(
    samples: list[dict[str, Any]], layout: dict[str, Any], rank: int, where: str
) -> list[int]:
    """The train indices of a shard's samples, in the shard's own order."""
    for shard_field, sample_field in (
        ("partition", "rollout_position"),
        ("sample_indices", "sample_index"),
    ):
        ids = to_list(layout.get(shard_field))
        if ids is not None and None not in ids:
            index_of_id = {
                sample.get(sample_field): train_index for train_index, sample in enumerate(samples)
            }
            missing = [number for number in ids if number not in index_of_id]
            if missing:
                raise PoiseError(
                    f"{where}: sample {missing[0]} of dp_shards is not among the samples: "
                    f"{KNOWN_VERSIONS}"
                )
            return [index_of_id[number] for number in ids]
    # Samples without any number stay in the order in which ranks were gathered.
    return [
        train_index
        for train_index, sample in enumerate(samples)
        if sample.get("data_parallel_rank") == rank
    ]


def _split_columns(columns: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """One dict for each sample, from lists over a rank's samples."""
    missing = [name for name in REQUIRED_COLUMNS if name not in columns]
    if missing:
        present = ", ".join(map(str, columns))
        raise PoiseError(f"{where}: no '{missing[0]}' (fields: {present}): {KNOWN_VERSIONS}")
    lengths = to_list(columns["response_lengths"]) or []
    renamed = {"sample_indices": "sample_index", "partition": "rollout_position"}
    samples: list[dict[str, Any]] = [{} for _ in lengths]
    whole_batch = ("raw_reward", "micro_batch_indices", "num_microbatches", "num_rollouts")
    for name, values in columns.items():
        items = values if isinstance(values, list | tuple) else to_list(values)
        if name in whole_batch or items is None or len(items) != len(lengths):
            continue
        for sample, value in zip(samples, items, strict=True):
            if value is not None:
                sample[renamed.get(name, name)] = value
    return samples


def join_samples(
    sampling_dump: RolloutDump | None, train_samples: TrainSamples | None
) -> list[SampleRecord]:
    """The samples of a rollout batch in the order of sampling, trained or not."""
    if train_samples is None:
        assert sampling_dump is not None, "a rollout batch has one of both dumps"
        return [
            SampleRecord(sampling_dump.where, sample.get("reward"), sample)
            for sample in sampling_dump.samples
        ]
    where, trained = train_samples.where, train_samples.samples
    if sampling_dump is None:
        return [
            SampleRecord(
                where,
                train_samples.reward(train_index, position),
                trained=trained[train_index],
                train_index=train_index,
            )
            for position, train_index in enumerate(train_samples.batch_order)
        ]
    matches = _match_by_number_or_tokens(trained, where, sampling_dump.samples, sampling_dump.where)
    records = []
    for position, sampled in enumerate(sampling_dump.samples):
        train_index = matches.get(position)
        if train_index is None:
            records.append(SampleRecord(where, sampled.get("reward"), sampled))
            continue
        reward = train_samples.reward(train_index, position)
        if reward is None:
            reward = sampled.get("reward")
        records.append(SampleRecord(where, reward, sampled, trained[train_index], train_index))
    return records


def _match_by_number_or_tokens(
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
