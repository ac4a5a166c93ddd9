"""Import prime-rl's token exports, OUTPUT_DIR/token_exports/step_N/rank_R.jsonl.

Each line is a sequence:

    {"schema_version": 1, "step": 7, "export_step": 7, "rank": 0, "env_name": "maths",
     "token_ids": [...], "loss_mask": [...], "rewards": [...], "inference_logprobs": [...], ...}

The lists cover prompt and response together; `loss_mask` marks the trained tokens, and the prompt
is everything before the first of them. `rewards` repeats the rollout's reward. Groups are not
exported: sequences of a step with the same environment and prompt tokens form a group. The
trained tokens become `response_tokens`; an environment's messages between them become `turns`.
Sequences without a trained token are not exported. In newer versions a step that is complete has a
file STABLE. While a trainer could serve several runs, `export_step` was the step of the run and
`step` the trainer's own; where there is no `export_step` they are the same.

The trainer takes one optimizer step with all sequences of a step, of all ranks: that is the plan,
with the data-parallel `rank` and the micro-batch (`micro_step`) of each. From 2026-06-27 (0be5ac45)
exports have no rewards; then the run's traces are to be imported, or --reward advantage takes the
mean advantage of a sequence for its reward.

Read in prime-rl at 004274ec, d2f82fa6 (without export_step) and 559b4477 (without rewards),
src/prime_rl/trainer/rl/token_export.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from counterpoise.errors import PoiseError
from counterpoise.hosts.importing.formats import (
    ImportContext,
    ImportedRollout,
    ImportedStep,
    Schedule,
    check_reward,
    hash_tokens,
)
from counterpoise.hosts.importing.json_lines import check_step, peek_object, read_objects
from counterpoise.hosts.importing.token_spans import is_token_list, select_numbers, split_by_mask

EXPORT_SCHEMA = 1
KNOWN_FORMAT = "prime-rl at 559b4477"
TOKEN_LISTS = ("token_ids", "loss_mask", "inference_logprobs")
REQUIRED_FIELDS = ("schema_version", "step", *TOKEN_LISTS)
ADVANTAGE = "advantage"  # for --reward: the advantages in place of rewards


def find_files(path: Path) -> list[Path]:
    """Look in the output folder, token_exports, one step's folder, or at one rank's file."""
    if path.is_file():
        files = [path] if recognises_file(path) else []
    else:
        patterns = ("rank_*.jsonl", "step_*/rank_*.jsonl", "token_exports/step_*/rank_*.jsonl")
        files = [
            file for pattern in patterns for file in path.glob(pattern) if recognises_file(file)
        ]
    return sorted(
        files, key=lambda f: (_trailing_number(f.parent.name), f.parent, _trailing_number(f.stem))
    )


def recognises_file(file: Path) -> bool:
    """By the fields of its first line; by its name too, if that line cannot be read."""
    record = peek_object(file) if file.suffix == ".jsonl" else {}
    if file.match("rank_*.jsonl"):
        return not record or bool(set(TOKEN_LISTS) & record.keys())
    return set(TOKEN_LISTS) <= record.keys()


def _trailing_number(name: str) -> int:
    """12 for step_12 or rank_12; -1 when there is no number."""
    digits = name.rpartition("_")[2]
    return int(digits) if digits.isdecimal() else -1


def read_steps(files: Sequence[Path], context: ImportContext) -> Iterator[ImportedStep]:
    if context.reward not in ("", ADVANTAGE):
        raise PoiseError(
            f"--reward names columns of TRL's files; prime-rl writes one reward, or none: then "
            f"--reward {ADVANTAGE} takes the advantages for rewards"
        )
    folders = {folder: list(group) for folder, group in groupby(files, key=lambda f: f.parent)}
    # Older versions write no STABLE at all: then every folder counts.
    stable = [folder for folder in folders if (folder / "STABLE").exists()]
    if stable and len(stable) < len(folders):
        context.notes.count(
            "left out because they are incomplete: {}", "step", len(folders) - len(stable)
        )
    for folder in stable or folders:
        rollouts: list[ImportedRollout] = []
        rank_of_rollout: dict[int, int] = {}
        micro_batch_of_rollout: dict[int, int] = {}
        step_number: int | None = None
        for file in folders[folder]:
            for where, record in read_objects(file, REQUIRED_FIELDS, KNOWN_FORMAT):
                step = check_step(record.get("export_step", record["step"]), where)
                if step_number not in (None, step):
                    raise PoiseError(f"{where}: step {step} in a folder of step {step_number}")
                step_number = step
                for name, number_of_rollout in (
                    ("rank", rank_of_rollout),
                    ("micro_step", micro_batch_of_rollout),
                ):
                    if isinstance(record.get(name), int):
                        number_of_rollout[len(rollouts)] = record[name]
                rollouts.append(_parse_rollout(record, step, where, context.reward == ADVANTAGE))
        if step_number is not None:
            schedule = Schedule(
                (tuple(range(len(rollouts))),),
                rank_of_rollout if len(rank_of_rollout) == len(rollouts) else {},
                micro_batch_of_rollout if len(micro_batch_of_rollout) == len(rollouts) else {},
            )
            yield ImportedStep(step_number, tuple(rollouts), schedule)
    context.notes.add(
        "groups are not exported: sequences of a step with equal prompts are taken as a group"
    )
    if context.reward:
        context.notes.add(
            "by --reward advantage the mean advantage of a sequence stands for its reward, also "
            "where rewards are exported"
        )


def _parse_rollout(
    record: dict[str, Any], step: int, where: str, reward_is_advantage: bool
) -> ImportedRollout:
    if record["schema_version"] != EXPORT_SCHEMA:
        version = record["schema_version"]
        raise PoiseError(
            f"{where}: schema_version {version!r} is not known: this reads {EXPORT_SCHEMA}, as "
            f"written by {KNOWN_FORMAT}"
        )
    names = (*TOKEN_LISTS, "rewards") if "rewards" in record else TOKEN_LISTS
    if not all(isinstance(record[name], list) for name in names):
        raise PoiseError(f"{where}: {', '.join(names)} must be lists: written by another tool")
    if not set(map(type, record["loss_mask"])) <= {bool, int}:
        raise PoiseError(f"{where}: loss_mask must be true or false: written by another tool")
    lengths = {len(record[name]) for name in names}
    tokens = record["token_ids"]
    if not is_token_list(tokens):
        raise PoiseError(
            f"{where}: token_ids holds something else than token ids: written by another tool"
        )
    spans = split_by_mask(tokens, record["loss_mask"]) if len(lengths) == 1 else None
    if spans is None:
        raise PoiseError(
            f"{where}: {', '.join(names)} differ in length, or no token was trained: remove "
            "the line"
        )
    logprobs = [record["inference_logprobs"][position] for position in spans.trained_positions]
    if not all(value is None or isinstance(value, int | float) for value in logprobs):
        raise PoiseError(f"{where}: inference_logprobs must be numbers: written by another tool")
    advantages = select_numbers(record.get("advantages"), spans.trained_positions)
    advantage = sum(advantages) / len(advantages) if advantages else None
    if reward_is_advantage:
        if advantage is None:
            raise PoiseError(f"{where}: no advantages were exported: import the run's traces")
        sequence_reward: Any = advantage
    else:
        sequence_reward = _sequence_reward(record, spans.trained_positions, where)
    env_name = record.get("env_name") or "prime-rl"
    prompt_id = f"{env_name}/{hash_tokens(spans.prompt)}"
    return ImportedRollout(
        group=f"{step}:{prompt_id}",
        prompt_id=prompt_id,
        reward=check_reward(sequence_reward, where),
        prompt_tokens=spans.prompt,
        response_tokens=spans.response,
        sampled_logprobs=None if None in logprobs else logprobs,  # null where one was not finite
        turns=spans.turns,
        advantage=advantage,
        advantages_T=advantages,
        trainer_logprobs=select_numbers(record.get("trainer_logprobs"), spans.trained_positions),
        entropies=select_numbers(record.get("entropy"), spans.trained_positions),
    )


def _sequence_reward(record: dict[str, Any], trained: Sequence[int], where: str) -> Any:
    """The reward that `rewards` repeats for every token."""
    if "rewards" not in record:
        raise PoiseError(
            f"{where}: no 'rewards': prime-rl exports none since 2026-06-27; import the run's "
            f"traces, or take the advantages for rewards by --reward {ADVANTAGE}"
        )
    rewards = [record["rewards"][token_index] for token_index in trained]
    if any(reward != rewards[0] for reward in rewards):
        raise PoiseError(
            f"{where}: rewards differ within the sequence: only one reward a sequence can be read"
        )
    if rewards[0] is None:
        raise PoiseError(f"{where}: no reward was exported: train with a task that gives one")
    return rewards[0]
