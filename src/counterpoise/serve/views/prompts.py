"""The list of prompts, and one prompt over time with its responses in each iteration.

A visit of a prompt is an iteration that sampled it; the success of a visit is the share of its
responses with a reward above 0.

    times                           visits
    first_success, last_success     success of the first visit, and of the last
    successes                       success of each visit, in order
    mean_reward                     of all visits, each counting the same

Success and mean reward leave out anchors (`sample.anchors`), as those of metrics.jsonl do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from counterpoise.serve.answers import BadRequestError, NotFoundError
from counterpoise.serve.index.query import parse_search
from counterpoise.serve.index.table import RolloutTable
from counterpoise.serve.run_reader import RunReader
from counterpoise.serve.views.batch import EXCERPT_CHARACTERS, rollout_address
from counterpoise.store.plain_values import plain_text
from counterpoise.store.stored_rollouts import read_head_at

MOST_CHARACTERS = 1_000_000
MOST_ITERATIONS = 400  # of a prompt over time
MOST_RESPONSES = 8  # shown for each iteration
MOST_PROMPTS = 200  # of one page
MOST_VISITS = 60  # the newest, whose success is listed for each prompt
PROMPT_ORDERS = {
    "prompt_id": "prompt_id",
    "times": "times",
    "first_success": "first_success",
    "last_success": "last_success",
    "mean_reward": "mean_reward",
}
PROMPT_PARAMETERS = ("sort", "after", "limit", "search")  # all that `prompts_view` reads
VISITS = """
WITH visits AS (
    SELECT prompt_id, iteration, max(key) AS last_key,
        avg(reward) FILTER (WHERE NOT anchor) AS reward,
        avg(CASE WHEN reward IS NULL THEN NULL WHEN reward > 0 THEN 1.0 ELSE 0.0 END)
            FILTER (WHERE NOT anchor) AS success
    FROM rollouts GROUP BY ALL
), prompts AS (
    SELECT prompt_id, count(*) AS times, arg_min(success, iteration) AS first_success,
        arg_max(success, iteration) AS last_success, avg(reward) AS mean_reward,
        list(success ORDER BY iteration) AS successes, max(last_key) AS last_key
    FROM visits GROUP BY prompt_id
)
"""


def prompt_view(reader: RunReader, table: RolloutTable, prompt_id: str) -> dict[str, Any]:
    """Every iteration that sampled a prompt: its success, and its responses then."""
    cursor = table.cursor()
    try:
        rows = cursor.execute(
            "SELECT iteration, coalesce(group_name, iteration || ':' || prompt_id), \"index\", "
            'reward, advantage, length, finished, dropped, "offset", size, anchor FROM rollouts '
            "WHERE prompt_id = $prompt ORDER BY key",
            {"prompt": prompt_id},
        ).fetchall()
    finally:
        cursor.close()
    # Rows may still come while the index is being built.
    if not rows and table.indexed_share == 1:
        raise NotFoundError(f"{reader.name} has no rollouts of the prompt {prompt_id[:200]}")
    by_iteration: dict[int, list[tuple[Any, ...]]] = {}
    for row in rows:
        by_iteration.setdefault(row[0], []).append(row)
    shown = list(by_iteration.items())[-MOST_ITERATIONS:]
    head = _head(reader, rows[-1][0], *rows[-1][8:10]) if rows else {}
    return {
        "prompt_id": prompt_id,
        "prompt": plain_text(head.get("prompt", ""))[:MOST_CHARACTERS],
        "answer": plain_text(head.get("answer", ""))[:MOST_CHARACTERS],
        "over_time": [_at_iteration(reader, iteration, group) for iteration, group in shown],
        "left_out": len(by_iteration) - len(shown),
        "indexed": table.indexed_share,
    }


def prompt_texts(
    reader: RunReader, table: RolloutTable, prompt_ids: Sequence[str]
) -> dict[str, str]:
    """The beginnings of some prompts by id, without those that are not indexed."""
    cursor = table.cursor()
    try:
        rows = cursor.execute(
            'SELECT prompt_id, arg_max(struct_pack(i := iteration, o := "offset", s := size), key) '
            "FROM rollouts WHERE prompt_id IN (SELECT unnest($prompts)) GROUP BY prompt_id",
            {"prompts": list(prompt_ids)},
        ).fetchall()
    finally:
        cursor.close()
    heads = {
        prompt_id: _head(reader, place["i"], place["o"], place["s"]) for prompt_id, place in rows
    }
    return {
        prompt_id: plain_text(head.get("prompt", ""))[:EXCERPT_CHARACTERS]
        for prompt_id, head in heads.items()
    }


def _head(reader: RunReader, iteration: int, offset: int, size: int) -> dict[str, Any]:
    try:
        path = reader.step_file("rollouts", iteration)
    except NotFoundError:
        return {}
    return read_head_at(path, offset, size) or {}


def _at_iteration(reader: RunReader, iteration: int, rows: list[tuple[Any, ...]]) -> dict[str, Any]:
    rewards = [row[3] for row in rows if row[3] is not None and not row[10]]
    return {
        "iteration": iteration,
        "success": sum(reward > 0 for reward in rewards) / len(rewards) if rewards else None,
        "mean_reward": sum(rewards) / len(rewards) if rewards else None,
        "mean_length": sum(row[5] for row in rows) / len(rows),
        "count": len(rows),
        "responses": [
            {
                "group": row[1],
                "index": row[2],
                **_beginning(_head(reader, iteration, row[8], row[9])),
                "reward": row[3],
                "advantage": row[4],
                "length": row[5],
                "finished": row[6],
                "dropped": row[7],
                "anchor": row[10],
                "place": rollout_address(reader.name, iteration, row[1], row[2]),
            }
            for row in rows[:MOST_RESPONSES]
        ],
    }


def _beginning(fields: Mapping[str, Any]) -> dict[str, Any]:
    text = plain_text(fields.get("response", ""))
    return {
        # None: an import whose files hold no text of it
        "response": text[:EXCERPT_CHARACTERS] if not fields or "response" in fields else None,
        "response_cut": len(text) > EXCERPT_CHARACTERS,
    }


def prompts_view(
    reader: RunReader, table: RolloutTable, parameters: Mapping[str, str]
) -> dict[str, Any]:
    """Prompts of the run with the success of their visits; `after`: rows of the pages before."""
    sort_text = parameters.get("sort") or "prompt_id"
    order = PROMPT_ORDERS.get(sort_text.removeprefix("-"))
    if order is None:
        raise BadRequestError(f"sort: choose one of {', '.join(PROMPT_ORDERS)}")
    after, limit = parameters.get("after") or "0", parameters.get("limit") or "50"
    if not (after.isdecimal() and limit.isdecimal() and len(after) < 9 and len(limit) < 5):
        raise BadRequestError("after and limit are numbers")
    page_size = min(max(1, int(limit)), MOST_PROMPTS)
    words = parse_search(parameters.get("search", ""))
    where, values = _search_condition(table, words)
    direction = "DESC" if sort_text.startswith("-") else "ASC"
    cursor = table.cursor()
    try:
        (total,) = cursor.execute(
            f"SELECT count(DISTINCT prompt_id) FROM rollouts WHERE {where}", values
        ).fetchall()[0]
        rows = cursor.execute(
            f'{VISITS} SELECT prompts.*, rollouts.iteration, "offset", size FROM '
            f"(SELECT * FROM prompts WHERE {where} ORDER BY {order} {direction} NULLS LAST, "
            f"prompt_id LIMIT {page_size} OFFSET {int(after)}) AS prompts "
            "JOIN rollouts ON rollouts.key = prompts.last_key "
            f"ORDER BY prompts.{order} {direction} NULLS LAST, prompts.prompt_id",
            values,
        ).fetchall()
    finally:
        cursor.close()
    shown = int(after) + len(rows)
    return {
        "rows": [_prompt_row(reader, row) for row in rows],
        "total": total,
        "next": str(shown) if shown < total and rows else None,
        "search": list(words),
        "indexed": table.indexed_share,
    }


def _search_condition(table: RolloutTable, words: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """SQL of the prompts that have all words in their id or text, and the values in it."""
    values: dict[str, Any] = {f"word{k}": word for k, word in enumerate(words)}
    names = list(values)
    condition = "contains(lower(prompt_id), ${name})"
    segments = table.segment_paths(set(table.iterations)) if names else []
    if segments:  # of the index; they have the texts, folded like the words
        values["segments"] = segments
        condition += (
            " OR prompt_id IN (SELECT prompt_id FROM read_parquet($segments) "
            "WHERE contains(prompt_text, ${name}))"
        )
    where = " AND ".join(f"({condition.format(name=name)})" for name in names)
    return where or "true", values


def _prompt_row(reader: RunReader, row: tuple[Any, ...]) -> dict[str, Any]:
    prompt_id, times, first, last, mean_reward, successes, _, iteration, offset, size = row
    head = _head(reader, iteration, offset, size)
    return {
        "prompt_id": prompt_id,
        "prompt": plain_text(head.get("prompt", ""))[:EXCERPT_CHARACTERS],
        "times": times,
        "first_success": first,
        "last_success": last,
        "mean_reward": mean_reward,
        "successes": successes[-MOST_VISITS:],
    }
