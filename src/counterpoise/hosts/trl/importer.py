"""Import TRL's rollouts from OUTPUT_DIR/completions/completions_00012.parquet.

GRPOTrainer writes these files when it logs and `log_completions` is set. A row is a rollout, with
the columns

    step | prompt | completion | one for each reward function | those of log_extra | advantage

Prompts and completions are texts or lists of messages. Token ids, log-probabilities and whether a
response was truncated are not written; nor are groups, which import_groups.py finds. Read in TRL
1.16.0, trainer/grpo_trainer.py.

Three traps. A file holds the last generation at the time of logging: with several optimizer steps
for each generation the next file repeats the same rollouts, and they are left out there. Reward
columns are not marked as such (import_rewards.py finds them). A completion that no reward function
scored has NaN in all of them; TRL ignores it in its group, and it is left out.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from counterpoise.errors import PoiseError, first_line, format_count
from counterpoise.hosts.importing.formats import (
    AddNote,
    ImportedRollout,
    ImportedStep,
    RolloutSource,
    check_reward,
    hash_prompt,
)
from counterpoise.hosts.importing.json_lines import check_step
from counterpoise.hosts.trl.import_groups import group_rows
from counterpoise.hosts.trl.import_rewards import (
    GroupColumns,
    infer_reward_columns,
    parse_reward_columns,
    total_rewards,
)

REQUIRED_COLUMNS = ("step", "prompt", "completion", "advantage")


def find_files(path: Path) -> list[Path]:
    """Look in the trainer's output folder, in its folder of completions, or at one file."""
    if path.is_file():
        return [path] if path.match("completions_*.parquet") else []
    patterns = ("completions_*.parquet", "completions/completions_*.parquet")
    return sorted(file for pattern in patterns for file in path.glob(pattern))


def read_steps(files: Sequence[Path], reward: str, add_note: AddNote) -> Iterator[ImportedStep]:
    names = candidate_columns(files)
    weights = (
        parse_reward_columns(reward, names)
        if reward
        else infer_reward_columns(_iterate_group_columns(files, names), names)
    )
    formula = " + ".join(
        f"{weight:g} * {name}" if weight != 1 else name for name, weight in weights.items()
    )
    inferred = not reward and len(names) > 1
    add_note(f"reward = {formula}" + (" (--reward for others)" if inferred else ""))
    add_note("groups are not written: completions of a step with equal prompts are taken as one")
    repeated_files = unscored = repeated_groups = 0
    previous: pa.Table | None = None
    for file in files:
        table = _read_table(file)
        content = table.select(["prompt", "completion", "advantage"])
        if previous is not None and content.equals(previous):
            repeated_files += 1
            continue
        previous = content
        rewards = total_rewards(table, weights)
        unscored += int(np.isnan(rewards).sum())
        if len(table) and not np.isnan(rewards).all():
            step = _parse_step(table, rewards, str(file))
            groups = {rollout.group for rollout in step.rollouts}
            repeated_groups += sum("#" in group for group in groups)
            yield step
    if repeated_groups:
        add_note(
            "further groups of a prompt drawn more than once: "
            f"{format_count(repeated_groups, 'group')}"
        )
    if repeated_files:
        add_note(
            "left out because they repeat the generation before: "
            f"{format_count(repeated_files, 'file')}"
        )
    if unscored:
        add_note(f"left out because nothing scored them: {format_count(unscored, 'completion')}")


def candidate_columns(files: Sequence[Path]) -> list[str]:
    """The columns that may be rewards, in TRL's order; the same in every file."""
    names: list[str] | None = None
    for file in files:
        schema = _open_parquet(file).schema_arrow
        _check_columns(schema, str(file))
        numeric = [
            name
            for name in schema.names
            if name not in REQUIRED_COLUMNS
            and not name.startswith("__")  # pandas' index
            and pa.types.is_floating(schema.field(name).type)
        ]
        if names is not None and numeric != names:
            raise PoiseError(
                f"{file}: its numeric columns are {', '.join(numeric)}, those of the files before "
                f"it {', '.join(names)}: import each run by itself"
            )
        names = numeric
    if not names:
        raise PoiseError(f"{files[0]}: no column of rewards: a numeric one is needed")
    return names


def _check_columns(schema: pa.Schema, where: str) -> None:
    """Raise unless TRL's columns are there, each once, and numeric where they must be."""
    cause = "written by another version or tool"
    for required in REQUIRED_COLUMNS:
        if required not in schema.names:
            columns = ", ".join(schema.names)
            raise PoiseError(f"{where}: no column '{required}' (columns: {columns}): {cause}")
    for name, count in Counter(schema.names).items():
        if count > 1:
            raise PoiseError(f"{where}: {count} columns are called '{name}': {cause}")
    for name in ("step", "advantage"):
        kind = schema.field(name).type
        if not (pa.types.is_floating(kind) or pa.types.is_integer(kind)):
            raise PoiseError(f"{where}: '{name}' holds {kind}, not numbers: {cause}")


def _open_parquet(file: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(file)
    except (pa.ArrowInvalid, OSError) as fault:
        raise PoiseError(
            f"{file} is not a complete parquet file ({first_line(fault)}): copy it again, or "
            "remove it"
        ) from fault


def _read_table(file: Path, columns: list[str] | None = None) -> pa.Table:
    try:
        return _open_parquet(file).read(columns)
    except (pa.ArrowInvalid, OSError) as fault:
        raise PoiseError(
            f"{file} is damaged ({first_line(fault)}): copy it again, or remove it"
        ) from fault


def _iterate_group_columns(files: Sequence[Path], names: list[str]) -> Iterator[GroupColumns]:
    """The candidate columns and the advantages of every group, to infer the reward from."""
    if len(names) == 1:
        return
    for file in files:
        table = _read_table(file, ["prompt", *names, "advantage"])
        columns = {name: table[name].to_numpy().astype(float) for name in (*names, "advantage")}
        for rows in _group_indices(table):
            yield {name: values[rows] for name, values in columns.items()}


def _group_indices(table: pa.Table) -> list[list[int]]:
    keys = [_prompt_key(prompt) for prompt in table["prompt"].to_pylist()]
    return group_rows(keys, table["advantage"].to_numpy().astype(float))


def _name_groups(table: pa.Table, step: int) -> list[tuple[str, str]]:
    """(group, prompt id) of every row; a prompt's second group is `...#2`."""
    prompts = [f"trl/{hash_prompt(_prompt_key(prompt))}" for prompt in table["prompt"].to_pylist()]
    names = [("", prompt) for prompt in prompts]
    draws: Counter[str] = Counter()
    for rows in _group_indices(table):
        prompt = prompts[rows[0]]
        draws[prompt] += 1
        suffix = f"#{draws[prompt]}" if draws[prompt] > 1 else ""
        for row in rows:
            names[row] = (f"{step}:{prompt}{suffix}", prompt)
    return names


def _parse_step(table: pa.Table, rewards: np.ndarray, where: str) -> ImportedStep:
    numbers = set(table["step"].to_pylist())
    if len(numbers) != 1:
        raise PoiseError(f"{where}: rows of several steps in one file: written by another tool")
    step = check_step(numbers.pop(), where)
    rollouts = []
    texts = zip(table["prompt"].to_pylist(), table["completion"].to_pylist(), strict=True)
    for (prompt, completion), (group, prompt_id), reward in zip(
        texts, _name_groups(table, step), rewards, strict=True
    ):
        if np.isnan(reward):
            continue
        rollouts.append(
            ImportedRollout(
                group=group,
                prompt_id=prompt_id,
                reward=check_reward(float(reward), where),
                prompt=render_text(prompt, where),
                response=render_text(completion, where),
            )
        )
    return ImportedStep(step, tuple(rollouts))


def _prompt_key(prompt: Any) -> str:
    return prompt if isinstance(prompt, str) else json.dumps(prompt, sort_keys=True, default=str)


def render_text(content: Any, where: str) -> str:
    """A text as it is; messages as their contents, with roles where there are several.

    Example:
        >>> render_text([{"role": "user", "content": "How many?"}], "")
        'How many?'
    """
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not all(isinstance(message, dict) for message in content):
        raise PoiseError(f"{where}: {content!r} is neither a text nor a list of messages")
    texts = [_message_text(message.get("content")) for message in content]
    if len(texts) == 1:
        return texts[0]
    return "\n\n".join(
        f"{message.get('role')}: {text}" for message, text in zip(content, texts, strict=True)
    )


def _message_text(content: Any) -> str:
    """The text of a message, whose content is a text or a list of parts."""
    if isinstance(content, list):
        return "".join(str(item.get("text") or "") for item in content if isinstance(item, dict))
    return "" if content is None else str(content)


SOURCE = RolloutSource(
    "TRL",
    "completions/completions_STEP.parquet (log_completions=True)",
    find_files,
    read_steps,
    False,
)
