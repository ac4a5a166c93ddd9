"""Import ms-swift's rollouts from OUTPUT_DIR/completions.jsonl (log_completions).

A row is a rollout with its texts, the value of each reward function and its advantage (tables.py).
Token ids, log-probabilities and whether a response was cut off are not written. Only what was in
the queues when the trainer logged is there: with logging_steps=5, the default, one generation in
five. choose_tables.py leaves out what was written twice and evaluations.

groups.py finds the groups.

    reward = sum_k w_k r_k     NaN left out; 0 if all are, as in training

The weights are those of --reward, else `reward_weights` of args.json beside the file, else 1 if the
advantages follow the sum (importing/table_inference.py). The Ray trainer writes the sum alone,
without weights. A KL that kl_in_reward subtracts is not in the files.

Read in ms-swift at 3602360a (4.6.0.dev0): swift/rlhf_trainers/grpo_trainer.py (`log`),
rollout_mixin.py there, swift/megatron/trainers/{rollout_mixin,grpo_trainer}.py,
swift/ray/megatron/{base_trainer,grpo_trainer}.py, swift/utils/io_utils.py (`JsonlWriter`),
swift/rl_core/advantage.py and swift/trainers/patcher.py (logging.jsonl).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from counterpoise.errors import PoiseError, first_line
from counterpoise.hosts.importing.formats import (
    ImportContext,
    ImportedRollout,
    ImportedStep,
    RolloutSource,
)
from counterpoise.hosts.importing.notes import ImportNotes
from counterpoise.hosts.importing.table_inference import (
    GroupColumns,
    infer_reward_columns,
    parse_reward_columns,
    reward_formula,
    weighted_sum,
)
from counterpoise.hosts.importing.text_rollouts import name_prompt, text_rollout
from counterpoise.hosts.ms_swift.choose_tables import ChosenTables
from counterpoise.hosts.ms_swift.groups import choose_prompt_names, group_table
from counterpoise.hosts.ms_swift.tables import FILE_NAME, CompletionTable, is_completions_file

OPTIONS_NAME = "args.json"


def find_files(path: Path) -> list[Path]:
    """One file, that of an output folder, or those of the runs in a folder (output/v0-...)."""
    if path.is_file():
        return [path] if is_completions_file(path) else []
    files = [path / FILE_NAME] if (path / FILE_NAME).is_file() else path.glob(f"*/{FILE_NAME}")
    return sorted(filter(is_completions_file, files))


def read_steps(files: Sequence[Path], context: ImportContext) -> Iterator[ImportedStep]:
    if len(files) > 1:
        names = ", ".join(file.parent.name for file in files[:4])
        raise PoiseError(f"the folder holds {len(files)} runs ({names}): name one of them")
    (file,) = files
    options = read_options(file)
    context.show_progress("which tables are training")
    tables = ChosenTables(file)
    weights = choose_weights(tables, options, context)
    group_size, groups_are_blocks = options.group_size, options.group_size > 0
    for table in tables:
        groups = group_table(table, group_size)
        if not group_size or any(len(rows) != group_size for rows in groups):
            groups_are_blocks = False
            reason = "" if group_size else f" (no num_generations in {OPTIONS_NAME})"
            context.notes.count(
                f"groups are rollouts of a step with equal prompts: {{}}{reason}", "step"
            )
        step = _build_step(table, groups, weights, context.notes)
        if step.rollouts:
            yield step
    if groups_are_blocks:
        context.notes.add(f"groups are {group_size} adjacent rows, as {OPTIONS_NAME} says")
    context.notes.merge(tables.notes)


def _build_step(
    table: CompletionTable,
    groups: Sequence[Sequence[int]],
    weights: Mapping[str, float],
    notes: ImportNotes,
) -> ImportedStep:
    prompt_names = choose_prompt_names(table, groups)
    rewards_R = weighted_sum([table.rewards[name] for name in weights], list(weights.values()))
    is_unscored_R = np.isnan(rewards_R)
    notes.count(
        # Ray's sum is NaN where one function gave none: the reward is not known.
        "left out because a reward function gave none: {}"
        if table.writer == "ray"
        else "reward 0, as in training, because nothing scored them: {}",
        "completion",
        int(is_unscored_R.sum()),
    )
    draws: Counter[str] = Counter()
    rollouts: dict[int, ImportedRollout] = {}
    for rows in groups:
        prompt_id = name_prompt("ms-swift", prompt_names[rows[0]])
        draws[prompt_id] += 1
        is_further = draws[prompt_id] > 1
        notes.count(
            "prompts drawn more than once in a generation: {}", "additional group", is_further
        )
        group = f"{table.step}:{prompt_id}" + (f"#{draws[prompt_id]}" if is_further else "")
        for row in rows:
            notes.count(
                "{} of several turns: the response is the last turn, the prompt holds those "
                "before it",
                "rollout",
                _has_several_turns(table, row, prompt_names[row]),
            )
            if is_unscored_R[row] and table.writer == "ray":
                continue
            reward = 0.0 if is_unscored_R[row] else float(rewards_R[row])
            rollouts[row] = _build_rollout(table, row, prompt_id, group, reward, weights)
    return ImportedStep(table.step, tuple(rollouts[row] for row in sorted(rollouts)))


def _has_several_turns(table: CompletionTable, row: int, prompt_name: str) -> bool:
    if table.prompts[row] != prompt_name:
        return True
    turns = table.turn_counts[row] if table.turn_counts else 1
    return isinstance(turns, int) and turns > 1


def _build_rollout(
    table: CompletionTable,
    row: int,
    prompt_id: str,
    group: str,
    reward: float,
    weights: Mapping[str, float],
) -> ImportedRollout:
    advantage = float(table.advantages[row]) if table.advantages is not None else np.nan
    # With one reward function of weight 1 the reward is that function's.
    is_mixture = len(table.rewards) > 1 or set(weights.values()) != {1.0}
    parts = {name: float(values[row]) for name, values in table.rewards.items()}
    return replace(
        text_rollout(
            prompt_id,
            group,
            table.prompts[row],
            table.completions[row],
            reward,
            f"{table.where}, row {row + 1}",
            table.solutions[row] if table.solutions is not None else None,
        ),
        advantage=advantage if np.isfinite(advantage) else None,
        further_fields={
            "further": {name: part for name, part in parts.items() if np.isfinite(part)}
        }
        if is_mixture
        else {},
    )


# -- how the reward is made up ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """What args.json says of a run.

    Example:
        TrainingOptions(group_size=8, reward_weights=[1.0, 0.5], has_weights=True)
    """

    group_size: int = 0  # 0: not known
    reward_weights: list[float] | None = None  # None: all 1, if has_weights
    has_weights: bool = False


def read_options(file: Path) -> TrainingOptions:
    """The options in args.json beside a file; none are known if it is missing."""
    path = file.with_name(OPTIONS_NAME)
    if not path.is_file():
        return TrainingOptions()
    try:
        options = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as fault:
        raise PoiseError(
            f"{path} cannot be read ({first_line(fault)}): copy it again, or remove it"
        ) from fault
    if not isinstance(options, dict):
        raise PoiseError(f"{path}: not a JSON object: copy it again, or remove it")
    size, weights = options.get("num_generations"), options.get("reward_weights")
    are_weights = isinstance(weights, list) and set(map(type, weights)) <= {int, float}
    return TrainingOptions(
        size if isinstance(size, int) and not isinstance(size, bool) and size > 1 else 0,
        [float(weight) for weight in weights] if are_weights and weights else None,
        "reward_weights" in options and (weights is None or are_weights),
    )


def choose_weights(
    tables: ChosenTables, options: TrainingOptions, context: ImportContext
) -> Mapping[str, float]:
    """The weight of each reward function, with a note on where it is from."""
    names = _reward_names(tables)
    if not names:
        return {}
    context.show_progress("how the reward is made up")
    weights, origin = dict.fromkeys(names, 1.0), ""
    listed = options.reward_weights
    if context.reward:
        weights = parse_reward_columns(context.reward, names)
    elif "ray" in tables.writers:
        origin = "the sum of the reward functions"
        if listed and set(listed) != {1.0}:
            origin += f" without the weights of {OPTIONS_NAME}: Ray writes no other"
    elif listed is not None and len(listed) != len(names):
        raise PoiseError(
            f"{tables.file}: {len(listed)} reward_weights in {OPTIONS_NAME} for "
            f"{len(names)} reward functions ({', '.join(names)}): name them, as --reward "
            f"{names[0]}=0.5"
        )
    elif options.has_weights:
        weights = dict(zip(names, listed, strict=True)) if listed is not None else weights
        origin = OPTIONS_NAME
    elif len(names) > 1:
        weights = infer_reward_columns(_iterate_group_columns(tables, options.group_size), names)
        origin = "inferred; --reward names other columns"
    context.notes.add(f"reward = {reward_formula(weights)}" + (f" ({origin})" if origin else ""))
    return weights


def _reward_names(tables: ChosenTables) -> list[str]:
    """The reward functions, in the trainer's order; the same in every table."""
    names: list[str] | None = None
    for table in tables:
        if names is not None and list(table.rewards) != names:
            raise PoiseError(
                f"{table.where}: its reward functions are {', '.join(table.rewards)}, those before "
                f"it {', '.join(names)}: import each run by itself"
            )
        names = list(table.rewards)
    return names or []


def _iterate_group_columns(tables: ChosenTables, group_size: int) -> Iterator[GroupColumns]:
    for table in tables:
        columns: dict[str, Any] = {**table.rewards, "advantage": table.advantages}
        for rows in group_table(table, group_size):
            yield {name: values[rows] for name, values in columns.items()}


SOURCE = RolloutSource(
    "ms-swift",
    "completions.jsonl (log_completions=True)",
    find_files,
    read_steps,
    has_tokens=False,
)
