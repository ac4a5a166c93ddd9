"""Samples of slime's and miles' dumps -> the rollouts of a step, with their schedule.

A sample is {"tokens": prompt and response, "response_lengths", "loss_masks" over the response, and
lists of numbers over the response: "rollout_log_probs" by the sampler, "log_probs" by the trainer
before the first optimizer step of the rollout batch, "advantages", "entropy"}. `rewards` are
normalised within groups; `raw_reward` is what the reward function said, in one list for the whole
rollout batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from counterpoise.errors import PoiseError, format_count
from counterpoise.hosts.importing.formats import (
    ImportContext,
    ImportedRollout,
    ImportedStep,
    answer_text,
    check_reward,
    hash_tokens,
    render_text,
)
from counterpoise.hosts.importing.token_spans import is_token_list, select_numbers, split_by_mask
from counterpoise.hosts.slime.dump_files import KNOWN_VERSIONS, to_list
from counterpoise.hosts.slime.match_samples import match_samples
from counterpoise.hosts.slime.schedule import Shard, build_schedule, read_layout

REQUIRED_COLUMNS = ("tokens", "response_lengths", "loss_masks")


@dataclass(slots=True)
class SampleCounts:
    """What was guessed or left out, and how often."""

    groups_guessed: int = 0  # rollout batches without a sampling dump
    not_scheduled: int = 0
    incomplete: int = 0  # rollout batches of which ranks are missing
    unknown_rewards: int = 0  # rollout batches, because ranks are missing
    sliced_numbers: int = 0  # samples with lists that are shorter than their responses
    without_reward: int = 0
    empty: int = 0
    rewards_by_order: int = 0

    def notes(self) -> list[str]:
        meanings = {
            "groups are not in training dumps: samples with equal prompts are taken as a group, "
            "in {}": (self.groups_guessed, "iteration"),
            "rewards were matched to samples by the order of sample indices, in {}": (
                self.rewards_by_order, "iteration"),
            "no plan, because the files do not tell the optimizer steps, in {}": (
                self.not_scheduled, "iteration"),
            "no plan, because files of some ranks are missing, in {}": (
                self.incomplete, "iteration"),
            "left out, because files of some ranks are missing and rewards cannot be matched to "
            "samples without them or rollout_data/N.pt: {}": (self.unknown_rewards, "iteration"),
            "left out because they cover a part of the response only (context parallelism): the "
            "numbers of {}": (self.sliced_numbers, "sample"),
            "left out because nothing scored them: {}": (self.without_reward, "sample"),
            "left out because their response is empty: {}": (self.empty, "sample"),
        }  # fmt: skip
        return [
            meaning.format(format_count(number, noun))
            for meaning, (number, noun) in meanings.items()
            if number
        ]


class RolloutDump:
    """What was sampled: one dict for each sample."""

    def __init__(self, content: dict[str, Any], where: str) -> None:
        samples = content.get("samples")
        if not isinstance(samples, list) or not all(isinstance(item, dict) for item in samples):
            raise PoiseError(f"{where}: 'samples' is not a list of samples: {KNOWN_VERSIONS}")
        self.where = where
        self.samples: list[dict[str, Any]] = samples


@dataclass(frozen=True, slots=True)
class LocalShard:
    """A rank's samples and its part of the schedule."""

    rank: int
    train_indices: list[int]  # of its samples in TrainSamples.samples
    micro_batches: list[list[int]] | None
    micro_batches_per_step: list[int] | None


@dataclass(frozen=True, slots=True)
class TrainSamples:
    """What was trained, of all data-parallel ranks.

    A train index is a position in `samples`; the dumps' own field sample_index is slime's number of
    a sample in the run. Samples of one rollout have the same rollout_ids, and with miles also the
    same sample_index.
    """

    where: str
    samples: list[dict[str, Any]]
    shards: list[LocalShard]
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
            shards.append(LocalShard(rank, train_indices, micro_batches, micro_batches_per_step))
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
        shards: list[LocalShard] = []
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
            shards.append(
                LocalShard(len(shards), train_indices, micro_batches, micro_batches_per_step)
            )
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


def build_step(
    rollout_id: int,
    sampling_dump: RolloutDump | None,
    train_samples: TrainSamples | None,
    context: ImportContext,
    counts: SampleCounts,
) -> ImportedStep | None:
    """The rollouts of a batch in the order of sampling, and the schedule of those trained.

    None if there is none, or if nothing says which reward is whose.
    """
    where = train_samples.where if train_samples else sampling_dump.where if sampling_dump else ""
    rewards_by_order = bool(
        train_samples and sampling_dump is None and _rewards_need_order(train_samples)
    )
    if rewards_by_order and train_samples and not train_samples.is_complete:
        counts.unknown_rewards += 1
        return None
    train_index_of_position = _match(sampling_dump, train_samples)
    num_positions = len(sampling_dump.samples) if sampling_dump else len(train_index_of_position)
    rollouts: list[ImportedRollout] = []
    rollout_of_train_index: dict[int, int] = {}
    for position in range(num_positions):
        train_index = train_index_of_position.get(position)
        training_record: dict[str, Any] = {}
        if train_index is not None and train_samples:
            training_record = train_samples.samples[train_index]
        sampling_record = sampling_dump.samples[position] if sampling_dump else {}
        reward = _find_reward(training_record, sampling_record, train_samples, position, context)
        if reward is None and train_index is None:
            counts.without_reward += 1
            continue
        rollout = _build_rollout(
            rollout_id, training_record, sampling_record, reward, context, counts, where
        )
        if rollout is None:
            counts.empty += 1
            continue
        if train_index is not None:
            rollout_of_train_index[train_index] = len(rollouts)
        rollouts.append(rollout)
    if not rollouts:
        return None
    counts.groups_guessed += sampling_dump is None
    counts.rewards_by_order += rewards_by_order
    schedule = None
    if train_samples and not train_samples.is_complete:
        counts.incomplete += 1
    elif train_samples:
        shards = _shards_of_rollouts(train_samples, rollout_of_train_index)
        schedule = build_schedule(shards, train_samples.where)
        counts.not_scheduled += schedule is None
    return ImportedStep(rollout_id, tuple(rollouts), schedule)


def _shards_of_rollouts(
    train_samples: TrainSamples, rollout_of_train_index: Mapping[int, int]
) -> list[Shard]:
    """The shards with indices of rollouts in place of train indices.

    A sample that gave no rollout is taken out of its micro-batch; its index becomes -1, so that the
    places of the other samples in the shard do not change.
    """
    shards = []
    for shard in train_samples.shards:
        micro_batches = shard.micro_batches
        if micro_batches is not None:
            micro_batches = [
                [
                    index
                    for index in micro_batch
                    if shard.train_indices[index] in rollout_of_train_index
                ]
                for micro_batch in micro_batches
            ]
        rollout_indices = [
            rollout_of_train_index.get(train_index, -1) for train_index in shard.train_indices
        ]
        shards.append(
            Shard(shard.rank, rollout_indices, micro_batches, shard.micro_batches_per_step)
        )
    return shards


def _match(sampling_dump: RolloutDump | None, train_samples: TrainSamples | None) -> dict[int, int]:
    """The train index of every sample that was trained, by position in the sampled batch."""
    if train_samples is None:
        return {}
    samples = train_samples.samples
    if sampling_dump is not None:
        return match_samples(
            samples, train_samples.where, sampling_dump.samples, sampling_dump.where
        )
    # By position or index where all samples have one; otherwise as they come.
    for name in ("rollout_position", "sample_index"):
        if all(sample.get(name) is not None for sample in samples):
            order = sorted(
                range(len(samples)), key=lambda train_index: int(samples[train_index][name])
            )
            return dict(enumerate(order))
    return {train_index: train_index for train_index in range(len(samples))}


def _find_reward(
    training_record: Mapping[str, Any],
    sampling_record: Mapping[str, Any],
    train_samples: TrainSamples | None,
    position: int,
    context: ImportContext,
) -> Any:
    """What the reward function said of a sample; None if nothing did."""
    reward = training_record.get("local_raw_reward")
    raw_rewards = train_samples.raw_rewards if train_samples else None
    if reward is None and training_record and raw_rewards is not None:
        reward_position = training_record.get("rollout_position", position)
        if 0 <= reward_position < len(raw_rewards):
            reward = raw_rewards[reward_position]
    if reward is None:
        reward = sampling_record.get("reward")
    if isinstance(reward, dict):
        if context.reward not in reward:
            raise PoiseError(
                f"rewards are dicts with the keys {', '.join(map(str, reward))}: name the "
                f"one that is trained, as --reward {next(iter(reward), 'NAME')}"
            )
        reward = reward[context.reward]
    elif reward is not None:
        context.refuse_reward_option("has one reward here")
    return reward.item() if reward is not None and hasattr(reward, "item") else reward


def _rewards_need_order(train_samples: TrainSamples) -> bool:
    """Whether only the order of samples ties them to the list of rewards."""
    return not any({"local_raw_reward", "rollout_position"} & set(s) for s in train_samples.samples)


def _build_rollout(
    rollout_id: int,
    training_record: Mapping[str, Any],
    sampling_record: Mapping[str, Any],
    reward: Any,
    context: ImportContext,
    counts: SampleCounts,
    where: str,
) -> ImportedRollout | None:
    tokens = to_list(training_record.get("tokens", sampling_record.get("tokens")))
    length = training_record.get("response_lengths", sampling_record.get("response_length"))
    if tokens is None or not is_token_list(tokens) or length is None or int(length) > len(tokens):
        raise PoiseError(f"{where}: a sample has no tokens, or fewer than its response: remove it")
    length = int(length)
    prompt, response = tokens[: len(tokens) - length], tokens[len(tokens) - length :]
    if not response:
        return None
    mask = to_list(training_record.get("loss_masks", sampling_record.get("loss_mask")))
    if not mask or len(mask) != length:
        mask = [1] * length
    spans = split_by_mask(tokens, [0] * len(prompt) + mask)
    # A sample whose mask is all 0 took part in its step without any loss.
    response_positions = (
        [position - len(prompt) for position in spans.trained_positions] if spans else range(length)
    )
    numbers = {}
    for name in ("rollout_log_probs", "log_probs", "advantages", "entropy"):
        values = to_list(training_record.get(name, sampling_record.get(name)))
        if values is not None and len(values) != length:
            counts.sliced_numbers += name == "advantages"
            values = None
        numbers[name] = select_numbers(values, response_positions) if values is not None else None
    advantages = numbers["advantages"] if spans else [0.0] * length
    advantage = sum(advantages) / len(advantages) if advantages else None
    if advantage is None and training_record.get("rewards") is not None:
        advantage = float(training_record["rewards"])
    prompt_id = f"{context.title}/{hash_tokens(prompt)}"
    group_index = sampling_record.get("group_index")
    prompt_text, response_text = sampling_record.get("prompt"), sampling_record.get("response")
    return ImportedRollout(
        group=f"{rollout_id}:{prompt_id if group_index is None else group_index}",
        prompt_id=prompt_id,
        reward=check_reward(reward, where),
        prompt=None if prompt_text is None else render_text(prompt_text, where),
        response=None if response_text is None else str(response_text),
        answer=answer_text(sampling_record.get("label")),
        prompt_tokens=spans.prompt if spans else prompt,
        response_tokens=spans.response if spans else response,
        sampled_logprobs=numbers["rollout_log_probs"],
        finished=_is_finished(training_record, sampling_record),
        turns=spans.turns if spans else [],
        advantage=advantage,
        advantages_T=advantages,
        trainer_logprobs=numbers["log_probs"],
        entropies=numbers["entropy"],
    )


def _is_finished(
    training_record: Mapping[str, Any], sampling_record: Mapping[str, Any]
) -> bool | None:
    if "status" in sampling_record:
        return bool(sampling_record["status"] == "completed")
    return None if "truncated" not in training_record else not int(training_record["truncated"])
