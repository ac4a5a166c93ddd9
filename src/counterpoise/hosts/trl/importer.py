"""TRL: OUTPUT_DIR/completions/completions_00012.parquet, written by GRPOTrainer when it logs and
`log_completions` is set. A row a rollout, and the columns

    step | prompt | completion | one for each reward function | those of log_extra | advantage

Prompts and completions are texts or lists of messages. Token ids, log-probabilities and whether a
response was cut off are not written; nor are groups, which import_groups.py finds. Read in TRL
1.16.0, trainer/grpo_trainer.py.

Three traps. A file holds the last generation at the time of logging: with several optimizer steps
for each generation the same rollouts come again in the next file, and are left out there. Reward
columns do not say that they are (import_rewards.py finds them). A completion that no reward
function scored has NaN in all of them; TRL gives it no part in its group, and it is left out.
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

from counterpoise.errors import PoiseError, counted, first_line
from counterpoise.hosts.importing.formats import (
    Sample,
    Source,
    Step,
    Tell,
    check_reward,
    name_of,
)
from counterpoise.hosts.importing.json_lines import check_step
from counterpoise.hosts.trl.import_groups import group_rows
from counterpoise.hosts.trl.import_rewards import Scored, as_named, choose_columns, total

NEEDED = ("step", "prompt", "completion", "advantage")


def find(path: Path) -> list[Path]:
    """At the trainer's output folder, its folder of completions, or one file."""
    if path.is_file():
        return [path] if path.match("completions_*.parquet") else []
    places = ("completions_*.parquet", "completions/completions_*.parquet")
    return sorted(file for place in places for file in path.glob(place))


def read(files: Sequence[Path], reward: str, tell: Tell) -> Iterator[Step]:
    names = candidates(files)
    weights = as_named(reward, names) if reward else choose_columns(_scored(files, names), names)
    told = " + ".join(f"{w:g} * {name}" if w != 1 else name for name, w in weights.items())
    tell(f"reward = {told}" + ("" if reward or len(names) == 1 else " (--reward for others)"))
    tell("no group is named: completions with equal prompts in a step are taken as a group")
    again = unscored = drawn_again = 0
    before: pa.Table | None = None
    for file in files:
        table = _table(file)
        content = table.select(["prompt", "completion", "advantage"])
        if before is not None and content.equals(before):
            again += 1
            continue
        before = content
        rewards = total(table, weights)
        unscored += int(np.isnan(rewards).sum())
        if len(table) and not np.isnan(rewards).all():
            step = _step(table, rewards, str(file))
            drawn_again += sum("#" in name for name in {sample.group for sample in step.samples})
            yield step
    if drawn_again:
        tell(f"of a prompt that was drawn before in its step: {counted(drawn_again, 'group')}")
    if again:
        tell(f"left out, as they repeat the generation before them: {counted(again, 'file')}")
    if unscored:
        tell(f"left out, as nothing scored them: {counted(unscored, 'completion')}")


def candidates(files: Sequence[Path]) -> list[str]:
    """The columns that may be rewards, in TRL's order; the same in every file."""
    names: list[str] | None = None
    for file in files:
        schema = _open(file).schema_arrow
        _check_columns(schema, str(file))
        others = [n for n in schema.names if n not in NEEDED and not n.startswith("__")]
        found = [n for n in others if pa.types.is_floating(schema.field(n).type)]
        if names is not None and found != names:
            raise PoiseError(
                f"{file}: its numbers are {', '.join(found)}, those of the files before it "
                f"{', '.join(names)}: import each run by itself"
            )
        names = found
    if not names:
        raise PoiseError(f"{files[0]}: no column of rewards: one of numbers is needed")
    return names


def _check_columns(schema: pa.Schema, where: str) -> None:
    """TRL's columns are there, each once, and hold numbers where numbers are computed with."""
    another = "written by another version or tool"
    for needed in NEEDED:
        if needed not in schema.names:
            columns = ", ".join(schema.names)
            raise PoiseError(f"{where}: no column '{needed}' (columns: {columns}): {another}")
    for name, times in Counter(schema.names).items():
        if times > 1:
            raise PoiseError(f"{where}: {times} columns are called '{name}': {another}")
    for name in ("step", "advantage"):
        kind = schema.field(name).type
        if not (pa.types.is_floating(kind) or pa.types.is_integer(kind)):
            raise PoiseError(f"{where}: '{name}' holds {kind}, not numbers: {another}")


def _open(file: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(file)
    except (pa.ArrowInvalid, OSError) as fault:
        raise PoiseError(
            f"{file} is no whole parquet file ({first_line(fault)}): copy it again, or remove it"
        ) from fault


def _table(file: Path, columns: list[str] | None = None) -> pa.Table:
    try:
        return _open(file).read(columns)
    except (pa.ArrowInvalid, OSError) as fault:
        raise PoiseError(
            f"{file} is damaged ({first_line(fault)}): copy it again, or remove it"
        ) from fault


def _scored(files: Sequence[Path], names: list[str]) -> Iterator[Scored]:
    """Groups with every candidate and the advantages, to choose the rewards by."""
    if len(names) == 1:
        return
    for file in files:
        table = _table(file, ["prompt", *names, "advantage"])
        columns = {n: table[n].to_numpy().astype(float) for n in (*names, "advantage")}
        for rows in _groups(table):
            yield {name: values[rows] for name, values in columns.items()}


def _groups(table: pa.Table) -> list[list[int]]:
    keys = [_key(prompt) for prompt in table["prompt"].to_pylist()]
    return group_rows(keys, table["advantage"].to_numpy().astype(float))


def _names(table: pa.Table, step: int) -> list[tuple[str, str]]:
    """(group, prompt id) of every row; a prompt's second group is `...#2`."""
    prompts = [f"trl/{name_of(_key(prompt))}" for prompt in table["prompt"].to_pylist()]
    named = [("", prompt) for prompt in prompts]
    seen: Counter[str] = Counter()
    for rows in _groups(table):
        prompt = prompts[rows[0]]
        seen[prompt] += 1
        again = f"#{seen[prompt]}" if seen[prompt] > 1 else ""
        for i in rows:
            named[i] = (f"{step}:{prompt}{again}", prompt)
    return named


def _step(table: pa.Table, rewards: np.ndarray, where: str) -> Step:
    numbers = set(table["step"].to_pylist())
    if len(numbers) != 1:
        raise PoiseError(f"{where}: rows of several steps in one file: written by another tool")
    step = check_step(numbers.pop(), where)
    samples = []
    texts = zip(table["prompt"].to_pylist(), table["completion"].to_pylist(), strict=True)
    for (prompt, completion), (group, prompt_id), reward in zip(
        texts, _names(table, step), rewards, strict=True
    ):
        if np.isnan(reward):
            continue
        samples.append(
            Sample(
                group=group,
                prompt_id=prompt_id,
                reward=check_reward(float(reward), where),
                prompt=as_text(prompt, where),
                response=as_text(completion, where),
            )
        )
    return Step(step, tuple(samples))


def _key(prompt: Any) -> str:
    return prompt if isinstance(prompt, str) else json.dumps(prompt, sort_keys=True, default=str)


def as_text(content: Any, where: str) -> str:
    """A text as it is; messages as their contents, with roles where there are several.

    Example:
        >>> as_text([{"role": "user", "content": "How many?"}], "")
        'How many?'
    """
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not all(isinstance(m, dict) for m in content):
        raise PoiseError(f"{where}: {content!r} is neither a text nor a list of messages")
    texts = [_content(message.get("content")) for message in content]
    if len(texts) == 1:
        return texts[0]
    return "\n\n".join(f"{m.get('role')}: {t}" for m, t in zip(content, texts, strict=True))


def _content(content: Any) -> str:
    """Of a message: a text, or parts of which some are texts."""
    if isinstance(content, list):
        return "".join(str(p.get("text") or "") for p in content if isinstance(p, dict))
    return "" if content is None else str(content)


SOURCE = Source(
    "TRL", "completions/completions_STEP.parquet (log_completions=True)", find, read, False
)
