"""Import TRL's rollouts from OUTPUT_DIR/completions/completions_00012.parquet.

GRPOTrainer writes these files when it logs and `log_completions` is set. A row is a rollout, with
the columns

    step | prompt | completion | one for each reward function | those of log_extra | advantage

Prompts and completions are texts or lists of messages. Token ids, log-probabilities and whether a
response was truncated are not written; nor are groups, which importing/table_inference.py
finds. Read in TRL 1.16.0, trainer/grpo_trainer.py.

W&B gets the same table, which hosts/wandb_tables.py reads by the functions here.

Four traps. An evaluation overwrites the file of its step with its own rollouts. Nothing in the file
says so: files with another number of rollouts than most are noted. A file holds the last generation
at the time of logging: with several optimizer steps for each generation the next file repeats the
same rollouts, and they are left out there. Reward columns are not marked as such
(importing/table_inference.py finds them). A completion that no reward function scored has NaN in
all of them; TRL ignores it in its group, and it is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from counterpoise.errors import PoiseError, first_line
from counterpoise.hosts.importing.formats import ImportContext, ImportedStep, RolloutSource
from counterpoise.hosts.importing.table_inference import (
    GroupColumns,
    group_rows,
    infer_reward_columns,
    parse_reward_columns,
    reward_formula,
    weighted_sum,
)
from counterpoise.hosts.importing.text_rollouts import name_prompt, only_step, text_rollout
from counterpoise.store.parquet_errors import PARQUET_ERRORS

KNOWN_FORMAT = "TRL 1.16.0"
REQUIRED_COLUMNS = ("step", "prompt", "completion", "advantage")
LoadTable = Callable[[Path], pa.Table]


def find_files(path: Path) -> list[Path]:
    """The files of the trainer's output folder or of its folder of completions, or one file.

    By step: a number above 99999 makes a name longer.
    """
    if path.is_file():
        named = path.match("completions_*.parquet")
        return [path] if path.suffix == ".parquet" and (named or _has_columns(path)) else []
    patterns = ("completions_*.parquet", "completions/completions_*.parquet")
    files = [file for pattern in patterns for file in path.glob(pattern)]
    return sorted(files, key=lambda file: (file.parent, len(file.name), file.name))


def _has_columns(file: Path) -> bool:
    try:
        return set(REQUIRED_COLUMNS) <= set(pq.read_schema(file).names)
    except PARQUET_ERRORS:
        return False


def read_steps(files: Sequence[Path], context: ImportContext) -> Iterator[ImportedStep]:
    return read_tables(files, read_parquet, context)


def read_tables(
    files: Sequence[Path], load_table: LoadTable, context: ImportContext
) -> Iterator[ImportedStep]:
    """The steps of TRL's tables, wherever they are stored; one table is in memory at a time."""
    notes = context.notes
    names = candidate_columns(files, load_table)
    context.show_progress("which columns are the reward")
    weights = (
        parse_reward_columns(context.reward, names)
        if context.reward
        else infer_reward_columns(_iterate_group_columns(files, load_table, names), names)
    )
    inferred = not context.reward and len(names) > 1
    remark = " (inferred; --reward names other columns)" if inferred else ""
    notes.add(f"reward = {reward_formula(weights)}{remark}")
    notes.add("TRL writes no groups: completions of a step with equal prompts are taken as a group")
    files_of_size: dict[int, list[str]] = {}
    previous: pa.Table | None = None
    for file in files:
        table = load_table(file)
        content = table.select(["prompt", "completion", "advantage"])
        if previous is not None and content.equals(previous):
            notes.count("left out because they repeat the generation before: {}", "file")
            continue
        previous = content
        files_of_size.setdefault(len(table), []).append(file.name)
        columns = [table[name].to_numpy().astype(float) for name in weights]
        rewards = weighted_sum(columns, list(weights.values()))
        notes.count(
            "left out because nothing scored them: {}", "completion", int(np.isnan(rewards).sum())
        )
        if len(table) and not np.isnan(rewards).all():
            step = _parse_step(table, rewards, str(file))
            groups = {rollout.group for rollout in step.rollouts}
            notes.count(
                "prompts drawn more than once in a generation: {}",
                "additional group",
                sum("#" in group for group in groups),
            )
            yield step
    notes.name_unusual_file(
        files_of_size, "rollouts", remedy="if an evaluation overwrote them, remove them"
    )


def candidate_columns(files: Sequence[Path], load_table: LoadTable) -> list[str]:
    """The columns that may be rewards, in TRL's order; the same in every file."""
    names: list[str] | None = None
    for file in files:
        schema = (
            _open_parquet(file).schema_arrow
            if load_table is read_parquet
            else load_table(file).schema
        )
        check_columns(schema, str(file))
        floating = [
            name
            for name in schema.names
            if name not in REQUIRED_COLUMNS
            and not name.startswith("__")  # pandas' index
            and pa.types.is_floating(schema.field(name).type)
        ]
        if names is not None and floating != names:
            raise PoiseError(
                f"{file}: its floating-point columns are {', '.join(floating)}, those of the files "
                f"before it {', '.join(names)}: import each run by itself"
            )
        names = floating
    if not names:
        raise PoiseError(
            f"{files[0]}: no column of rewards: TRL writes them as floating-point numbers"
        )
    return names


def check_columns(schema: pa.Schema, where: str) -> None:
    """Raise unless TRL's columns are there, each once, and numeric where they must be."""
    cause = f"written by another version or tool; the format of {KNOWN_FORMAT} can be read"
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
    except PARQUET_ERRORS as fault:
        raise PoiseError(
            f"{file} is not a complete parquet file ({first_line(fault)}): copy it again, or "
            "remove it"
        ) from fault


def read_parquet(file: Path) -> pa.Table:
    try:
        table = _open_parquet(file).read()
        table.validate(full=True)  # texts that are not UTF-8, for example
        return table
    except PARQUET_ERRORS as fault:
        raise PoiseError(
            f"{file} is damaged ({first_line(fault)}): copy it again, or remove it"
        ) from fault


def _iterate_group_columns(
    files: Sequence[Path], load_table: LoadTable, names: list[str]
) -> Iterator[GroupColumns]:
    """The candidate columns and the advantages of every group, to infer the reward from."""
    if len(names) == 1:
        return
    for file in files:
        table = load_table(file)
        columns = {name: table[name].to_numpy().astype(float) for name in (*names, "advantage")}
        for rows in _group_indices(table):
            yield {name: values[rows] for name, values in columns.items()}


def _prompt_names(table: pa.Table) -> list[str]:
    return [name_prompt("trl", prompt) for prompt in table["prompt"].to_pylist()]


def _group_indices(table: pa.Table) -> list[list[int]]:
    return group_rows(_prompt_names(table), table["advantage"].to_numpy().astype(float))


def _name_groups(table: pa.Table, step: int) -> list[tuple[str, str]]:
    """(group, prompt id) of every row; a prompt's second group is `...#2`."""
    prompts = _prompt_names(table)
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
    step = only_step(table["step"].to_pylist(), where)
    advantages = table["advantage"].to_numpy().astype(float)
    texts = zip(table["prompt"].to_pylist(), table["completion"].to_pylist(), strict=True)
    rollouts = [
        replace(
            text_rollout(prompt_id, group, prompt, completion, float(reward), where),
            advantage=float(advantage) if np.isfinite(advantage) else None,
        )
        for (prompt, completion), (group, prompt_id), reward, advantage in zip(
            texts, _name_groups(table, step), rewards, advantages, strict=True
        )
        if not np.isnan(reward)
    ]
    return ImportedStep(step, tuple(rollouts))


SOURCE = RolloutSource(
    "TRL",
    "completions/completions_STEP.parquet (log_completions=True)",
    find_files,
    read_steps,
    has_tokens=False,
)
