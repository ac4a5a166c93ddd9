"""Import the rollout summaries that tinker-cookbook's RL trainer writes to log_path.

    LOG/config.json                                      the trainer's options
    LOG/iteration_000012/train_rollout_summaries.jsonl   since 25 March 2026; summaries.py
    LOG/train_iteration_000012_rollout_summaries.jsonl   since 2 March 2026

Evaluations have files of their own (eval_NAME_...) and are left out. Synchronous training writes
every group that was sampled without an error; with streamed minibatches or AsyncConfig only the
groups that are trained, without those of equal rewards if they are removed.

The files count tokens, but have no tokens, no log-probabilities, no advantages, no texts, and no
name by which a prompt could be recognised in another iteration. The logtree files beside them show
texts of the first num_groups_to_log groups, in the order in which rollouts ended and without saying
whose they are: they are not read. An advantage is the reward minus the group's mean, as the trainer
computes it (rl/data_processing.py); its penalty for KL is added token by token and not written.

What was trained follows from config.json. Groups of equal rewards are left out where
`remove_constant_reward_groups` is set, or the first group alone is kept if there is no other. The
rows of the rest are cut, in their order, into `num_substeps` parts, an optimizer step each. With
several parts the cut is certain only where no trajectory has several turns, which may become
several rows, and no minibatch is streamed, whose groups are counted before failed ones are taken
out. A run that was continued with other options has only the last ones in config.json.

Read in tinker-cookbook at 9dfcc3a2: rl/rollout_logging.py, rl/train.py (train_step,
do_sync_training), rl/data_processing.py (remove_constant_reward_groups, trajectory_to_data),
stores/training_store.py, utils/ml_log.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from counterpoise.errors import PoiseError, first_line
from counterpoise.hosts.importing.formats import (
    ImportContext,
    ImportedRollout,
    ImportedStep,
    RolloutSource,
    Schedule,
)
from counterpoise.hosts.importing.json_lines import is_step, peek_object
from counterpoise.hosts.importing.notes import ImportNotes
from counterpoise.hosts.tinker.summaries import (
    REQUIRED_FIELDS,
    Summary,
    SummaryFile,
    read_summaries,
)

PATTERNS = (
    "train_rollout_summaries.jsonl",
    "iteration_*/train_rollout_summaries.jsonl",
    "train_iteration_*_rollout_summaries.jsonl",
)
LOGGED_FIELDS = (
    "tags", "sampling_client_step", "final_reward", "trajectory_metrics", "final_ob_len", "steps",
)  # fmt: skip


def find_files(path: Path) -> list[Path]:
    """The summaries of a run's folder, of the folder of an iteration, or a file of any name."""
    if path.is_file():
        is_summary = path.suffix == ".jsonl" and set(REQUIRED_FIELDS) <= peek_object(path).keys()
        return [path] if is_summary else []
    files = [file for pattern in PATTERNS for file in path.glob(pattern) if _is_summary_file(file)]
    return sorted(files, key=lambda file: (_iteration_in_name(file), str(file)))


def _is_summary_file(file: Path) -> bool:
    # A file that is empty, damaged or of a newer schema counts by its name: reading it says so.
    first_object = peek_object(file)
    return file.is_file() and (not first_object or "schema_version" in first_object)


def _iteration_in_name(file: Path) -> int:
    number = re.search(r"iteration_([0-9]{1,10})", f"{file.absolute().parent.name}/{file.name}")
    return int(number[1]) if number else -1


def read_steps(files: Sequence[Path], context: ImportContext) -> Iterator[ImportedStep]:
    context.refuse_reward_option("writes one total reward")
    context.notes.add("every group counts as a prompt of its own: the files do not name prompts")
    has_kl_penalty = False
    for file in files:
        options = read_options(file)
        summary_file = read_summaries(file)
        context.notes.count("left out: {} of evaluations", "rollout", summary_file.evaluations)
        has_kl_penalty |= options is not None and options.has_kl_penalty
        step = _build_step(summary_file, options, context.notes)
        if step.rollouts:
            yield step
    kl_penalty = "; its KL penalty is not in the files" if has_kl_penalty else ""
    context.notes.add(
        f"advantages are rewards minus the group's mean, as the trainer's{kl_penalty}"
    )


def _build_step(
    summary_file: SummaryFile, options: Options | None, notes: ImportNotes
) -> ImportedStep:
    summaries = summary_file.summaries
    rewards_of_group: dict[int, list[float]] = {}
    for summary in summaries:
        rewards_of_group.setdefault(summary.group, []).append(summary.reward)
    rollouts: list[ImportedRollout] = []
    rollout_of_summary: dict[int, int] = {}
    for position, summary in enumerate(summaries):
        if not summary.sampled_tokens:
            notes.count("left out because no token was sampled: {}", "rollout")
            continue
        rollout_of_summary[position] = len(rollouts)
        # The mean is over the whole group, also over those without a token.
        advantage = summary.reward - float(np.mean(rewards_of_group[summary.group]))
        rollouts.append(_build_rollout(summary, summary_file.iteration, advantage, options, notes))
    schedule = None
    if (parts := split_as_trained(summaries, rewards_of_group, options)) is not None:
        members = [
            tuple(rollout_of_summary[each] for each in part if each in rollout_of_summary)
            for part in parts
        ]
        schedule = Schedule(tuple(filter(None, members)))
    elif rollouts:
        notes.count(
            "optimizer steps not known in {}: no num_substeps in config.json, or several substeps "
            "with turns or streamed minibatches",
            "iteration",
        )
    return ImportedStep(summary_file.iteration, tuple(rollouts), schedule)


def _build_rollout(
    summary: Summary,
    iteration: int,
    advantage: float,
    options: Options | None,
    notes: ImportNotes,
) -> ImportedRollout:
    finished = summary.is_finished(None)
    if finished is None and options is not None and options.max_tokens is not None:
        finished = summary.is_finished(options.max_tokens)
        notes.count("cut off or not by max_tokens of config.json: {}", "rollout")
    prompt_id = f"tinker/{iteration}/{summary.group}"
    return ImportedRollout(
        group=f"{iteration}:{prompt_id}",
        prompt_id=prompt_id,
        reward=summary.reward,
        num_tokens=summary.sampled_tokens,
        finished=finished,
        advantage=advantage,
        further_fields={
            "logged": {
                name: summary.record[name] for name in LOGGED_FIELDS if name in summary.record
            }
        },
    )


# -- what an iteration trained, by the run's options ----------------------------------------------


@dataclass(frozen=True, slots=True)
class Options:
    """Options that decide what an iteration trains.

    Example:
        Options(num_substeps=2, max_tokens=512)
    """

    num_substeps: int
    max_tokens: int | None = None  # of a turn
    removes_constant_groups: bool = False
    streams_minibatches: bool = False
    has_kl_penalty: bool = False


def read_options(file: Path) -> Options | None:
    """The options of the run that a file of summaries is of; None if there are none."""
    folder = file.absolute().parent
    candidates = (folder / "config.json", folder.parent / "config.json")
    config_file = next((each for each in candidates if each.is_file()), None)
    if config_file is None:
        return None
    try:
        config = json.loads(config_file.read_bytes())
    except (OSError, ValueError, RecursionError) as fault:
        raise PoiseError(
            f"{config_file} cannot be read ({first_line(fault)}): copy it again, or remove it; "
            "without it the optimizer steps are not known"
        ) from fault
    substeps = config.get("num_substeps") if isinstance(config, dict) else None
    if not is_step(substeps) or not substeps:
        return None
    max_tokens, kl_penalty = config.get("max_tokens"), config.get("kl_penalty_coef")
    return Options(
        num_substeps=substeps,
        max_tokens=max_tokens if is_step(max_tokens) and max_tokens else None,
        removes_constant_groups=config.get("remove_constant_reward_groups") is True,
        streams_minibatches=config.get("stream_minibatch_config") is not None,
        has_kl_penalty=isinstance(kl_penalty, int | float) and kl_penalty > 0,
    )


def split_as_trained(
    summaries: Sequence[Summary],
    rewards_of_group: Mapping[int, Sequence[float]],
    options: Options | None,
) -> list[list[int]] | None:
    """The positions of the trajectories of each optimizer step; None where it is not certain."""
    if options is None or not summaries:
        return None
    trained_groups = set(rewards_of_group)
    if options.removes_constant_groups:
        mixed = {group for group, rewards in rewards_of_group.items() if len(set(rewards)) > 1}
        trained_groups = mixed or {summaries[0].group}
    trained = [
        position
        for position, summary in enumerate(summaries)
        if summary.group in trained_groups and summary.is_row
    ]
    if options.num_substeps > 1:
        has_turns = any(len(summaries[position].steps) > 1 for position in trained)
        if has_turns or options.streams_minibatches:
            return None
    parts = min(options.num_substeps, len(trained))
    edges = np.linspace(0, len(trained), parts + 1).astype(int).tolist()
    return [trained[start:end] for start, end in pairwise(edges)]


SOURCE = RolloutSource(
    "tinker-cookbook",
    "iteration_N/train_rollout_summaries.jsonl below log_path",
    find_files,
    read_steps,
    has_tokens=True,
)
