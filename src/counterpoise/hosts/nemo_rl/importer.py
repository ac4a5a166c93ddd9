"""Import NeMo-RL's training batches, LOG_DIR/exp_NNN/train_data_stepN.jsonl.

Each line is a row of the batch of step N, counted from 1 (samples.py shows one):

    content               texts of its messages, without roles; empty with NeMo Gym
    rewards               after scaling and shaping; with dynamic sampling other rows' (see below)
    filtered_rewards      with dynamic sampling: the row's own
    input_lengths         tokens before the padding, which is on the right
    token_ids             prompt, turns of the policy and of the environment, padding
    token_loss_mask       1 for the policy's tokens
    sample_loss_mask      0: left out of the loss (overlong, flagged, or far from the sampler)
    advantages            of each token, after clipping; also for rows that are out of the loss
    generation_logprobs   of each token by the sampler; 0 where the policy did not write it
    prev_logprobs         of each token by the trainer, before the first optimizer step; all 0 where
                          loss_fn.force_on_policy_ratio makes them unnecessary
    agent_ref             NeMo Gym's agent

Number t of a list belongs to token t. With dynamic sampling the writer cuts `rewards`, those of all
that was sampled, to the length of the batch: they are in another order than the rows. With a
leave-one-out baseline dynamic sampling also drops single rows of a group.

Which rows shared an optimizer step is not in the files. NeMo-RL cuts the rows of a step, in their
order, into batches of an option:

    grpo: {num_prompts_per_step: 32, num_generations_per_prompt: 16}
    policy: {train_global_batch_size: 512}

Its log folder has the options only if W&B was on; every checkpoint has them as config.yaml, which
may be copied beside the logs. Where prev_logprobs are all 0 there was one step, which NeMo-RL makes
sure of. Rows that are out of the loss are in no plan. samples.py says how groups and texts are
found. Whether a response was cut off, the versions of weights and images are not written. A run
that was resumed logs to a new exp_NNN. Validation goes to val_data_stepN.jsonl, which is not read;
distillation's files of the same name have no tokens, and are not recognised.

Read in NeMo-RL at 7ea279ab: nemo_rl/utils/logger.py, algorithms/{grpo,grpo_sync,
ppo,advantage_estimator}.py, experience/rollouts.py, distributed/batched_data_dict.py. Files before
0.6.0 have no token_ids.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from counterpoise.errors import PoiseError
from counterpoise.hosts.importing.formats import (
    ImportContext,
    ImportedRollout,
    ImportedStep,
    RolloutSource,
    Schedule,
)
from counterpoise.hosts.importing.json_lines import check_step, peek_object, read_objects
from counterpoise.hosts.importing.notes import ImportNotes
from counterpoise.hosts.nemo_rl.samples import (
    KNOWN_FORMAT,
    REQUIRED_FIELDS,
    Sample,
    name_prompts,
    parse_sample,
)

STEP_IN_NAME = re.compile(r"[0-9]+$")
NAME_PATTERN = "train_data_step*.jsonl"
CONFIG_PATTERNS = ("config.yaml", "wandb/wandb/*run-*/files/config.yaml")
LONGEST_CONFIG = 1 << 22  # in bytes; real ones have some kilobytes
# Files of every version have these, and distillation's have not.
DISTINCTIVE_FIELDS = {"generation_logprobs", "prev_logprobs", "input_lengths", "idx"}


def find_files(path: Path) -> list[Path]:
    """The files of a log folder by step, or one file of any name with NeMo-RL's fields."""
    if path.is_file():
        is_candidate = path.suffix == ".jsonl"
        return [path] if is_candidate and peek_object(path).keys() >= DISTINCTIVE_FIELDS else []
    files = sorted(path.glob(NAME_PATTERN), key=lambda file: (len(file.name), file.name))
    # A damaged first line must not hide the run: the first readable one decides.
    head = next((head for file in files if (head := peek_object(file))), None)
    return files if head is None or head.keys() >= DISTINCTIVE_FIELDS else []


def read_steps(files: Sequence[Path], context: ImportContext) -> Iterator[ImportedStep]:
    context.refuse_reward_option("writes one reward")
    sizes = find_batch_sizes(files[0].parent)
    context.notes.add(
        "groups are not in the files: rollouts of a step with equal prompt tokens are taken as a "
        "group, as NeMo-RL takes them for advantages"
    )
    files_of_size: dict[int, list[str]] = {}
    for file in files:
        step = _step_in_name(file)
        context.show_progress(f"step {step}")
        samples = [
            parse_sample(record, index, where)
            for index, (where, record) in enumerate(
                read_objects(file, REQUIRED_FIELDS, KNOWN_FORMAT)
            )
        ]
        if samples:
            files_of_size.setdefault(len(samples), []).append(file.name)
        context.notes.count(
            "left out because none of their tokens is the policy's: {}",
            "sample",
            samples.count(None),
        )
        if any(sample is not None for sample in samples):
            yield _build_step(step, samples, sizes, context.notes)
    context.notes.name_unusual_file(
        files_of_size, "rows", remedy="if it is incomplete, copy it again"
    )


def _step_in_name(file: Path) -> int:
    digits = STEP_IN_NAME.search(file.stem)
    if digits is None:
        raise PoiseError(f"{file}: no step in its name: rename it to train_data_stepN.jsonl")
    return check_step(int(digits[0]), str(file))


def _build_step(
    number: int, rows: Sequence[Sample | None], sizes: BatchSizes | None, notes: ImportNotes
) -> ImportedStep:
    """The rollouts of a step, and which of its rows shared an optimizer step."""
    row_numbers = [row for row, sample in enumerate(rows) if sample is not None]
    samples = [sample for sample in rows if sample is not None]
    notes.count(
        "in no plan, because sample_loss_mask is 0: {}",
        "rollout",
        sum(not sample.is_trained for sample in samples),
    )
    has_trainer_logprobs = not _are_placeholders(samples)
    rollouts = []
    for sample, texts in zip(samples, name_prompts(samples), strict=True):
        if sample.messages and texts.prompt is None:
            notes.count("without texts, because their messages do not fit the mask: {}", "rollout")
        rollouts.append(
            ImportedRollout(
                group=f"{number}:{texts.prompt_id}",
                prompt_id=texts.prompt_id,
                reward=sample.reward,
                prompt=texts.prompt,
                response=texts.response,
                prompt_tokens=sample.spans.prompt,
                response_tokens=sample.spans.response,
                sampled_logprobs=sample.sampled_logprobs,
                turns=texts.turns,
                advantage=sum(sample.advantages_T) / len(sample.advantages_T),
                advantages_T=sample.advantages_T,
                trainer_logprobs=sample.trainer_logprobs if has_trainer_logprobs else None,
            )
        )
    group_sizes = Counter(Counter(rollout.group for rollout in rollouts).values())
    usual_size = max(group_sizes, key=lambda size: (group_sizes[size], size))
    notes.count(
        "larger than most groups of their step, because a prompt was drawn twice or prompts differ "
        "in their images only: {}",
        "group",
        sum(count for size, count in group_sizes.items() if size > usual_size),
    )
    batch = None
    if sizes is not None and sizes.rows == len(rows):
        batch = sizes.batch
    elif not has_trainer_logprobs:
        batch = len(rows)
    if batch is None:
        notes.count(
            "no plan, because the files do not say how many rows share an optimizer step (copy a "
            "checkpoint's config.yaml beside them): {}",
            "iteration",
        )
        return ImportedStep(number, tuple(rollouts))
    return ImportedStep(number, tuple(rollouts), _build_schedule(row_numbers, samples, batch))


def _are_placeholders(samples: Sequence[Sample]) -> bool:
    """Whether NeMo-RL wrote zeros in place of the trainer's log-probabilities.

    The sampler's would be zeros too if the policy were certain of every token.
    """
    return not any(any(sample.trainer_logprobs) for sample in samples) and any(
        any(sample.sampled_logprobs) for sample in samples
    )


def _build_schedule(row_numbers: Sequence[int], samples: Sequence[Sample], batch: int) -> Schedule:
    """Consecutive rows, `batch` at a time, without those that are out of the loss."""
    steps: dict[int, list[int]] = {}
    for rollout_index, (row, sample) in enumerate(zip(row_numbers, samples, strict=True)):
        if sample.is_trained:
            steps.setdefault(row // batch, []).append(rollout_index)
    return Schedule(tuple(map(tuple, steps.values())))


# -- rows of an optimizer step, by the run's options ----------------------------------------------


@dataclass(frozen=True, slots=True)
class BatchSizes:
    """Rows of a step, and of an optimizer step.

    Example:
        BatchSizes(rows=512, batch=128)
    """

    rows: int
    batch: int


def find_batch_sizes(folder: Path) -> BatchSizes | None:
    """The sizes that all options found in a log folder agree on; None if there are none."""
    files = [file for pattern in CONFIG_PATTERNS for file in folder.glob(pattern)]
    sizes = {_read_sizes(file) for file in files} - {None}
    return sizes.pop() if len(sizes) == 1 else None


def _read_sizes(file: Path) -> BatchSizes | None:
    try:
        if file.stat().st_size > LONGEST_CONFIG:
            return None
        options = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return None
    prompts = _option(options, "grpo", "num_prompts_per_step")
    generations = _option(options, "grpo", "num_generations_per_prompt")
    batch = _option(options, "policy", "train_global_batch_size")
    if not prompts or not generations or not batch or prompts * generations % batch:
        return None
    return BatchSizes(prompts * generations, batch)


def _option(options: Any, section: str, name: str) -> int | None:
    """A positive whole number; W&B puts each section below a key `value`."""
    values = options.get(section) if isinstance(options, Mapping) else None
    if isinstance(values, Mapping) and isinstance(values.get("value"), Mapping):
        values = values["value"]
    number = values.get(name) if isinstance(values, Mapping) else None
    return number if type(number) is int and number > 0 else None


SOURCE = RolloutSource(
    "NeMo-RL",
    "train_data_stepN.jsonl in logger.log_dir/exp_NNN",
    find_files,
    read_steps,
    has_tokens=True,
)
