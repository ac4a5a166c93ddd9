"""The table of rollouts over all iterations, with the beginnings of their texts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from counterpoise.serve.answers import NotFoundError
from counterpoise.serve.index.query import RolloutQuery, RolloutSearch
from counterpoise.serve.run_reader import RunReader
from counterpoise.serve.views.batch import EXCERPT_CHARACTERS, rollout_address
from counterpoise.store.plain_values import plain_text
from counterpoise.store.stored_rollouts import read_head_at

CHANGED = "the file of this rollout has changed since it was indexed, or cannot be read"


def rollouts_view(
    reader: RunReader, search: RolloutSearch, parameters: Mapping[str, str]
) -> dict[str, Any]:
    query = RolloutQuery.from_address(parameters)
    page = search.page(query)
    manifest = search.table.manifest
    problems = manifest.unreadable | {
        iteration: text
        for segment in manifest.segments
        for iteration, text in segment.damaged.items()
    }
    return {
        **page,
        "rows": [_row(reader, row, query.words) for row in page["rows"]],
        "search": list(query.words),
        "iterations": reader.last_iteration,
        "has_plans": reader.has_plans,
        "missing": _unnamed_timeouts(reader, query, page["total"]) | _unreadable_folder(reader),
        "problems": [problems[key] for key in sorted(problems)][:20],
        "problem_count": len(problems),
    }


def _unnamed_timeouts(reader: RunReader, query: RolloutQuery, total: int) -> dict[str, str]:
    """Why no rollout has a timeout although the run counted some."""
    is_filtered = any(name == "timeout" for name, _, _ in query.conditions)
    counts = reader.columns.get("verifier_timeouts", ())
    counted = int(sum(count for count in counts if count > 0))
    if total or not is_filtered or not counted:
        return {}
    return {
        "timeout": f"metrics.jsonl counts {counted:,} comparisons that timed out, but no rollout "
        "that matches these filters records one (release 0.2.0 did not store them by rollout)"
    }


def _unreadable_folder(reader: RunReader) -> dict[str, str]:
    """Why nothing is indexed if the folder of rollouts cannot be listed."""
    try:
        with os.scandir(reader.folder / "rollouts"):
            return {}
    except FileNotFoundError:  # the run stores none, or none yet
        return {}
    except OSError as fault:
        return {"rollouts": f"rollouts/ cannot be read: {fault.strerror}"}


def _row(reader: RunReader, row: dict[str, Any], words: tuple[str, ...]) -> dict[str, Any]:
    group = row["group_name"] or f"{row['iteration']}:{row['prompt_id']}"
    try:
        path = reader.step_file("rollouts", row["iteration"])
        head = read_head_at(path, row["offset"], row["size"])
    except NotFoundError:
        head = None
    # A line at this offset that is another rollout's must not be shown under this one's numbers.
    is_same = head is not None and plain_text(head["group"]) == group
    texts = head if is_same and head is not None else {}
    response = plain_text(texts.get("response", ""))
    prompt = plain_text(texts.get("prompt", ""))
    return {
        "iteration": row["iteration"],
        "group": group,
        "prompt_id": row["prompt_id"],
        "index": row["index"],
        "prompt": prompt[:EXCERPT_CHARACTERS],
        # None: an import whose files hold no text of it
        "response": response[:EXCERPT_CHARACTERS] if not texts or "response" in texts else None,
        "match": excerpt_around(response, prompt, words) if words else None,
        "timeout": row["timed_out"],
        "reward": row["reward"],
        "advantage": row["advantage"],
        "length": row["length"],
        "finished": row["finished"],
        "no_spread": row["no_spread"],
        "dropped": row["dropped"],
        "trained_in": None if row["dropped"] else row["decided_in"],
        "dropped_in": row["decided_in"] if row["dropped"] else None,
        "step": row["step"],
        "problem": None if is_same else CHANGED,
        "place": rollout_address(reader.name, row["iteration"], group, row["index"]),
    }


def excerpt_around(response: str, prompt: str, words: tuple[str, ...]) -> dict[str, str] | None:
    """Where the first word occurs: the text before it, the match, and the text after."""
    for source, text in (("response", response), ("prompt", prompt)):
        folded = text.casefold()
        for word in words:
            start = folded.find(word)
            # Folding may change the length of a text; then places in it say nothing.
            if start >= 0 and len(folded) == len(text):
                end = start + len(word)
                return {
                    "in": source,
                    "before": text[max(0, start - 120) : start],
                    "text": text[start:end],
                    "after": text[end : end + 160],
                }
    return None
