"""Import slime's debug dumps, train_data/N.pt with its schedule and rollout_data/N.pt.

    DUMP/train_data/7.pt      slime: the samples of rollout batch 7 and `dp_shards`, their schedule
    DUMP/train_data/7_3.pt    miles, and slime before 2026-08-12: what rank 3 was given
    DUMP/rollout_data/7.pt    what was sampled: texts, groups, rewards

DUMP is the folder of --dump-details. A rollout batch becomes one iteration. Training dumps have
tokens, log-probabilities, advantages and the real schedule (schedule.py), but no texts and no
groups: these come from the sampling dump of the same batch (samples.py). Without it, samples with
equal prompt tokens are a group. A sampling dump alone gives rollouts without plans. Files of
evaluations (eval_7.pt) are left out.

Ranks of tensor parallelism write the same samples again, and count once. With context parallelism
miles writes a slice of each list of numbers, which is left out.

Read in slime at 624b824a (slime/observability/{train,rollout}_data_utils.py, slime/ray/rollout.py)
and miles at 31f1ca96 (miles/utils/train_dump_utils.py, miles/ray/rollout/debug_data.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from counterpoise.errors import PoiseError
from counterpoise.hosts.importing.formats import (
    ImportContext,
    ImportedRollout,
    ImportedStep,
    RolloutSource,
    Schedule,
    answer_text,
    check_reward,
    hash_tokens,
    render_text,
)
from counterpoise.hosts.importing.notes import ImportNotes
from counterpoise.hosts.importing.token_spans import is_token_list, select_numbers, split_by_mask
from counterpoise.hosts.slime.dump_files import (
    KNOWN_VERSIONS,
    NEWEST_FORMAT,
    DumpHead,
    load_dump,
    peek_head,
    to_list,
)
from counterpoise.hosts.slime.samples import RolloutDump, SampleRecord, TrainSamples, join_samples
from counterpoise.hosts.slime.schedule import build_schedule

FOLDERS = (".", "train_data", "rollout_data")  # searched below the path that the user gives


def find_files(is_miles: bool, path: Path) -> list[Path]:
    """The dumps at a path, in the order of rollout batches; then a folder's other .pt files."""
    if path.is_file():
        candidates = [path] if path.suffix == ".pt" else []
    else:
        candidates = [file for folder in FOLDERS for file in (path / folder).glob("*.pt")]
    readable_heads = {file: head for file in candidates if (head := _peek_unless_evaluation(file))}
    # A sampling dump does not always say whose it is: the training dumps beside it do.
    deciding = [head for head in readable_heads.values() if head.kind != "rollouts"] or list(
        readable_heads.values()
    )
    if not deciding or any(head.is_miles for head in deciding) != is_miles:
        return []
    dumps = sorted(
        readable_heads,
        key=lambda file: (readable_heads[file].rollout_id, readable_heads[file].rank, str(file)),
    )
    return dumps + sorted(set(candidates) - set(dumps))


def _peek_unless_evaluation(file: Path) -> DumpHead | None:
    """What kind of dump a file is; None for evaluations and other files."""
    return None if file.stem.startswith("eval_") else peek_head(file)


def read_steps(files: Sequence[Path], context: ImportContext) -> Iterator[ImportedStep]:
    files_of_batch: dict[int, list[tuple[DumpHead, Path]]] = {}
    for file in files:
        if head := _peek_unless_evaluation(file):
            files_of_batch.setdefault(head.rollout_id, []).append((head, file))
        elif file.stem.startswith("eval_"):
            context.notes.count("left out: {} of evaluations", "file")
        else:
            context.notes.name("left out because they are no complete dumps: {}", file)
    for rollout_id, dumps in files_of_batch.items():
        context.show_progress(f"rollout batch {rollout_id}")
        step = _read_batch(rollout_id, dumps, context)
        if step is not None:
            yield step


def _read_batch(
    rollout_id: int, dumps: list[tuple[DumpHead, Path]], context: ImportContext
) -> ImportedStep | None:
    """One rollout batch: what was sampled, and what was trained of it."""
    by_kind: dict[str, list[Path]] = {"train": [], "ranks": [], "rollouts": []}
    for head, file in dumps:
        if head.format_version > NEWEST_FORMAT:
            raise PoiseError(
                f"{file}: format_version {head.format_version}, expected at most "
                f"{NEWEST_FORMAT}: {KNOWN_VERSIONS}"
            )
        by_kind[head.kind].append(file)
    for kind in ("train", "rollouts"):
        if len(by_kind[kind]) > 1:
            first_file, second_file = by_kind[kind][:2]
            raise PoiseError(
                f"{first_file} and {second_file} both hold rollout batch {rollout_id}: "
                "import each run by itself"
            )
    sampling_dump = None
    if by_kind["rollouts"]:
        file = by_kind["rollouts"][0]
        sampling_dump = RolloutDump(load_dump(file), str(file))
    train_samples = None
    if by_kind["train"]:
        file = by_kind["train"][0]
        train_samples = TrainSamples.from_whole_dump(load_dump(file), str(file))
    elif by_kind["ranks"]:
        rank_dumps = [(load_dump(file), str(file)) for file in by_kind["ranks"]]
        train_samples = TrainSamples.from_rank_dumps(rank_dumps)
    return _build_step(rollout_id, sampling_dump, train_samples, context)


def _build_step(
    rollout_id: int,
    sampling_dump: RolloutDump | None,
    train_samples: TrainSamples | None,
    context: ImportContext,
) -> ImportedStep | None:
    """The rollouts of a batch in the order of sampling, and the schedule of those trained.

    None if there is none, or if nothing says which reward is whose.
    """
    orders_rewards = (
        train_samples is not None and sampling_dump is None and train_samples.rewards_need_order
    )
    if orders_rewards and train_samples is not None and not train_samples.is_complete:
        context.notes.count(
            "left out, because files of some ranks are missing and rewards cannot be matched to "
            "samples without them or rollout_data/N.pt: {}",
            "iteration",
        )
        return None
    rollouts: list[ImportedRollout] = []
    rollout_of_train_index: dict[int, int] = {}
    for record in join_samples(sampling_dump, train_samples):
        rollout = _build_rollout(record, rollout_id, context)
        if rollout is None:
            continue
        if record.train_index is not None:
            rollout_of_train_index[record.train_index] = len(rollouts)
        rollouts.append(rollout)
    if not rollouts:
        return None
    if sampling_dump is None:
        context.notes.count(
            "groups are not in training dumps: samples with equal prompts are taken as a group, "
            "in {}",
            "iteration",
        )
    context.notes.count(
        "rewards were matched to samples by the order of sample indices, in {}",
        "iteration",
        orders_rewards,
    )
    schedule = None
    if train_samples is not None:
        schedule = _find_schedule(train_samples, rollout_of_train_index, context.notes)
    return ImportedStep(rollout_id, tuple(rollouts), schedule)


def _find_schedule(
    train_samples: TrainSamples, rollout_of_train_index: Mapping[int, int], notes: ImportNotes
) -> Schedule | None:
    if not train_samples.is_complete:
        notes.count("no plan, because files of some ranks are missing, in {}", "iteration")
        return None
    schedule = build_schedule(train_samples.shards, rollout_of_train_index, train_samples.where)
    if schedule is None:
        notes.count(
            "no plan, because the files do not tell the optimizer steps, in {}", "iteration"
        )
    return schedule


def _build_rollout(
    record: SampleRecord, rollout_id: int, context: ImportContext
) -> ImportedRollout | None:
    """The rollout of a sample; None without a response, or if it has no reward and no training."""
    reward = _choose_reward(record.reward, context)
    if reward is None and record.train_index is None:
        context.notes.count("left out because nothing scored them: {}", "sample")
        return None
    where = record.where
    tokens, length = (
        to_list(record.value("tokens")),
        record.value("response_lengths", "response_length"),
    )
    if tokens is None or not is_token_list(tokens) or length is None or int(length) > len(tokens):
        raise PoiseError(f"{where}: a sample has no tokens, or fewer than its response: remove it")
    length = int(length)
    prompt, response = tokens[: len(tokens) - length], tokens[len(tokens) - length :]
    if not response:
        context.notes.count("left out because their response is empty: {}", "sample")
        return None
    mask = to_list(record.value("loss_masks", "loss_mask"))
    if not mask or len(mask) != length:
        mask = [1] * length
    spans = split_by_mask(tokens, [0] * len(prompt) + mask)
    # A sample whose mask is all 0 took part in its step without any loss.
    response_positions = (
        [position - len(prompt) for position in spans.trained_positions] if spans else range(length)
    )
    numbers = {}
    for name in ("rollout_log_probs", "log_probs", "advantages", "entropy"):
        values = to_list(record.value(name))
        if values is not None and len(values) != length:
            if name == "advantages":
                context.notes.count(
                    "left out because they cover a part of the response only (context "
                    "parallelism): the numbers of {}",
                    "sample",
                )
            values = None
        numbers[name] = select_numbers(values, response_positions)
    advantages = numbers["advantages"] if spans else [0.0] * length
    advantage = sum(advantages) / len(advantages) if advantages else None
    if advantage is None and record.trained.get("rewards") is not None:
        advantage = float(record.trained["rewards"])
    prompt_id = f"{context.title}/{hash_tokens(prompt)}"
    group_index = record.sampled.get("group_index")
    prompt_text, response_text = record.sampled.get("prompt"), record.sampled.get("response")
    return ImportedRollout(
        group=f"{rollout_id}:{prompt_id if group_index is None else group_index}",
        prompt_id=prompt_id,
        reward=check_reward(reward, where),
        prompt=None if prompt_text is None else render_text(prompt_text, where),
        response=None if response_text is None else str(response_text),
        answer=answer_text(record.sampled.get("label")),
        prompt_tokens=spans.prompt if spans else prompt,
        response_tokens=spans.response if spans else response,
        sampled_logprobs=numbers["rollout_log_probs"],
        finished=_is_finished(record),
        turns=spans.turns if spans else (),
        advantage=advantage,
        advantages_T=advantages,
        trainer_logprobs=numbers["log_probs"],
        entropies=numbers["entropy"],
    )


def _is_finished(record: SampleRecord) -> bool | None:
    if "status" in record.sampled:
        return bool(record.sampled["status"] == "completed")
    truncated = record.trained.get("truncated")
    return None if truncated is None else not int(truncated)


def _choose_reward(reward: Any, context: ImportContext) -> Any:
    """The reward that --reward names, or the only one; None if nothing scored the sample."""
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


def make_source(title: str, train_files: str) -> RolloutSource:
    return RolloutSource(
        title,
        f"{train_files} (--save-debug-train-data), rollout_data/N.pt (--save-debug-rollout-data)",
        partial(find_files, title == "miles"),
        read_steps,
        has_tokens=True,
    )


SOURCE = make_source("slime", "train_data/N.pt")
# miles grew out of slime: a training dump is what one rank was given; the rest is alike.
MILES = make_source("miles", "train_data/N_RANK.pt")
