"""One token of a rollout, and the tokens that pushed it; where none are stored, how to get them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from counterpoise.errors import PoiseError
from counterpoise.report.missing_pushes import replay_command
from counterpoise.report.traces import Columns, Vocabulary
from counterpoise.serve.answers import BadRequestError, NotFoundError
from counterpoise.serve.log_tail import Record
from counterpoise.serve.run_reader import RunReader
from counterpoise.serve.views.batch import NO_FATE, find_fates, read_plan, rollout_address
from counterpoise.serve.views.rollout import (
    explain_no_update,
    find_rollout,
    read_rows,
    read_token_rows,
)
from counterpoise.serve.vocabulary import read_run_vocabulary
from counterpoise.store.logs import row_names
from counterpoise.store.stored_rollouts import RolloutLine, iterate_rollouts
from counterpoise.types import RowName

CONTEXT_TOKENS = 3  # on either side of a token that pushed
MOST_PUSHES = 20  # in each direction
SOURCE_CHARACTERS = 300
NO_TEXT: dict[str, Any] = {"reward": None, "prompt": None}


def token_view(
    reader: RunReader, iteration: int, group: str, index: int, position: int
) -> dict[str, Any]:
    """Who pushed one token, up and down."""
    stored = find_rollout(reader, iteration, group, index)
    num_tokens = stored.num_tokens or 0
    if not 0 <= position < max(1, num_tokens):
        has = f"tokens 0 to {num_tokens - 1}" if num_tokens else "no tokens"
        raise BadRequestError(f"the response has {has}: there is no token {position}")
    fate = find_fates(reader, iteration, group).get(index, NO_FATE)
    vocabulary = read_run_vocabulary(reader)
    columns, reason = read_token_rows(reader, fate)
    place = np.flatnonzero(columns["position"] == position) if columns else np.empty(0)
    numbers = {
        name: float(values[place[0]])
        for name, values in columns.items()
        if len(place) and np.issubdtype(values.dtype, np.number)
    }
    token = numbers.get("token")
    pushes, push_reason = _pushes(reader, stored, fate, position, vocabulary)
    likely, likely_reason = _likely_tokens(reader, fate, position, vocabulary)
    return {
        "iteration": iteration,
        "group": group,
        "index": index,
        "position": position,
        "text": vocabulary[int(token)] if token is not None else None,
        "numbers": numbers,
        "pushes": pushes,
        "distribution": likely,
        "distribution_missing": likely_reason or None,
        "missing": reason or push_reason or None,
        "replay": None if pushes else _replay(reader, fate),
    }


def _pushes(
    reader: RunReader,
    stored: RolloutLine,
    fate: dict[str, Any],
    position: int,
    vocabulary: Vocabulary,
) -> tuple[list[dict[str, Any]], str]:
    """(strongest pushes on a token, why there are none)."""
    columns, reason = _read_watched(reader, "pushes", fate, position)
    if reason:
        return [], reason
    if not columns:
        return [], (
            f"No pushes of iteration {fate['trained_in']} were stored (monitor.every, "
            "monitor.watch)."
        )
    plan = read_plan(reader, fate["trained_in"])
    if not len(columns.get("push", ())) or plan is None:
        return [], "Pushes are stored for a few groups of an update only (monitor.watch)."
    order = np.argsort(columns["push"], kind="stable")
    strongest = dict.fromkeys([*order[::-1][:MOST_PUSHES].tolist(), *order[:MOST_PUSHES].tolist()])
    sources = {
        (int(columns["by_row"][place]), int(columns["by_position"][place])): place
        for place in strongest
        if 0 <= columns["by_row"][place] < len(plan["group"])
    }
    tokens = _read_tokens(reader, fate["trained_in"], [*{row for row, _ in sources}, fate["row"]])
    texts = _source_texts(reader, plan, {row for row, _ in sources})
    own_token = _token_at(tokens, fate["row"], position)[1]
    names = row_names(plan)
    pushes = []
    for (row, source_position), place in sources.items():
        before, token, after = _token_at(tokens, row, source_position)
        group, index = names[row]
        address = rollout_address(reader.name, plan["born"][row], group, index)
        pushes.append(
            {
                "group": group,
                "index": index,
                "row": row,
                "position": source_position,
                "token": token,
                "text": None if token is None else vocabulary[token],
                "before": [vocabulary[neighbour] for neighbour in before],
                "after": [vocabulary[neighbour] for neighbour in after],
                "push": float(columns["push"][place]),
                "advantage": plan["advantage"][row],
                **texts.get((group, index), NO_TEXT),
                "same_prompt": group == stored.group,
                "same_rollout": row == fate["row"],
                "same_token": token is not None and token == own_token,
                "place": address,
            }
        )
    return pushes, ""


def _read_tokens(reader: RunReader, iteration: int, rows: Sequence[int]) -> Columns:
    """Rows of tokens/; empty where they cannot be read: pushes are then shown without texts."""
    try:
        return read_rows(reader.step_file("tokens", iteration), rows)
    except (NotFoundError, PoiseError):
        return {name: np.empty(0, np.int64) for name in ("row", "position", "token")}


def _read_watched(
    reader: RunReader, kind: str, fate: dict[str, Any], position: int
) -> tuple[Columns, str]:
    """(rows of pushes/ or likely/ for a token, why they cannot be read); empty without a file."""
    if fate["trained_in"] is None:
        return {}, explain_no_update(reader)
    try:
        return read_rows(reader.step_file(kind, fate["trained_in"]), [fate["row"]], position), ""
    except NotFoundError:
        return {}, ""
    except PoiseError as fault:  # a damaged table; the rest of the view is still there
        return {}, str(fault)


def _likely_tokens(
    reader: RunReader, fate: dict[str, Any], position: int, vocabulary: Vocabulary
) -> tuple[list[dict[str, Any]], str]:
    """(likeliest tokens at the position of a token, why there are none).

    `probability` is just before the optimizer step, `new_probability` just after it.
    """
    columns, reason = _read_watched(reader, "likely", fate, position)
    if reason or not len(columns.get("token", ())):
        return [], reason or "stored with the pushes, for the groups of monitor.watch"
    new_probabilities = np.exp(columns["new_logprob"].astype(np.float64))
    return [
        {
            "token": int(token),
            "text": vocabulary[int(token)],
            "probability": float(np.exp(float(logprob))),
            "new_probability": float(new) if np.isfinite(new) else None,
        }
        for token, logprob, new in zip(
            columns["token"], columns["logprob"], new_probabilities, strict=True
        )
    ], ""


def _replay(reader: RunReader, fate: dict[str, Any]) -> dict[str, str] | None:
    """The command that computes pushes of the update that used the rollout; None without one."""
    if fate["trained_in"] is None:
        return None
    plan = read_plan(reader, fate["trained_in"])
    model_options = (reader.config or {}).get("model")
    model = model_options.get("name") if isinstance(model_options, dict) else ""
    command = replay_command(
        reader.folder,
        fate["trained_in"],
        len(plan["groups"]) if plan else 0,
        shown_as=str(reader.folder),
        model=model if isinstance(model, str) else "",
    )
    return {"explanation": command.explanation, "command": command.text}


def _source_texts(reader: RunReader, plan: Record, rows: set[int]) -> dict[RowName, dict[str, Any]]:
    """Reward and prompt of the rollouts that pushed, by (group, index); each file is read once."""
    names = row_names(plan)
    wanted = {names[row] for row in rows}
    texts: dict[RowName, dict[str, Any]] = {}
    for born in {plan["born"][row] for row in rows}:
        try:
            for rollout in iterate_rollouts(reader.step_file("rollouts", born)):
                if (name := (rollout.group, rollout.index)) in wanted:
                    prompt = rollout.prompt[:SOURCE_CHARACTERS]
                    texts[name] = {"reward": rollout.reward, "prompt": prompt}
        except (NotFoundError, OSError):
            continue
    return texts


def _token_at(tokens: Columns, row: int, position: int) -> tuple[list[int], int | None, list[int]]:
    """(ids before, id, ids after) of a token of the update."""
    places = np.flatnonzero(tokens["row"] == row)
    places = places[np.argsort(tokens["position"][places])]
    here = np.flatnonzero(tokens["position"][places] == position)
    if not len(here):
        return [], None, []
    middle = int(here[0])
    ids = tokens["token"][places].tolist()
    start = max(0, middle - CONTEXT_TOKENS)
    return ids[start:middle], ids[middle], ids[middle + 1 : middle + 1 + CONTEXT_TOKENS]
