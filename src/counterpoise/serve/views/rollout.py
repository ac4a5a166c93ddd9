"""One rollout with every token of it.

    ratio               exp(logprob - old_logprob), just before the step
    sampler_mismatch    log-probability by the trainer (old_logprob) - by the sampler

A column that the run did not store is null, and `missing` says why.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from counterpoise.errors import PoiseError
from counterpoise.report.charts.quantities import (
    QUANTITIES,
    TokenQuantity,
    available_quantities,
    full_colour_size,
    quantity_values,
)
from counterpoise.report.traces import Columns, Vocabulary
from counterpoise.serve.answers import NotFoundError
from counterpoise.serve.run_reader import RunReader
from counterpoise.serve.views.batch import fate_of, find_fates, read_plan, rollout_address
from counterpoise.serve.vocabulary import read_run_vocabulary
from counterpoise.store.credit_tables import CREDIT, read_weights
from counterpoise.store.logs import row_names
from counterpoise.store.parquet_errors import PARQUET_ERRORS
from counterpoise.store.stored_rollouts import RolloutLine, iterate_rollouts, read_line_at
from counterpoise.store.turns import turns_from_record

MOST_CHARACTERS = 1_000_000  # of a text in an answer; `response_cut` says that there is more
MOST_TOKENS = 20_000  # of one answer; `from` continues
MOST_WATCHED = 12  # rollouts with stored pushes that an answer links to
# Columns that are not offered as quantities of their own: either not at all, or by
# POLICY_QUANTITIES.
NOT_EXTRA = {"sampled_logprob", "old_logprob", "pull", "ratio", "sampler_mismatch"}
POLICY_QUANTITIES = (
    TokenQuantity(
        "ratio",
        "Policy",
        "ratio",
        "Probability just before the step, divided by that at sampling.",
        ("ratio",),
        signed=False,
    ),
    TokenQuantity(
        "sampler_mismatch",
        "Policy",
        "sampler mismatch",
        "Log-probability by the trainer minus that by the sampler.",
        ("sampler_mismatch",),
    ),
)
PLAN_COLUMNS = {"step", "row", "position", "token"}  # which token it is; they measure nothing
# Computed column -> the columns of tokens/ that it is computed from.
COMPUTED = {"ratio": ("logprob", "old_logprob"), "sampler_mismatch": ("old_logprob",)}
EXPECTED = ("advantage", "displacement", "entropy", "ratio", "sampler_mismatch")


def find_rollout(reader: RunReader, iteration: int, group: str, index: int) -> RolloutLine:
    rollouts = iterate_rollouts(reader.step_file("rollouts", iteration))
    return _pick(reader, rollouts, iteration, group, index)


def _pick(
    reader: RunReader, rollouts: Iterable[RolloutLine], iteration: int, group: str, index: int
) -> RolloutLine:
    for rollout in rollouts:
        if rollout.index == index and rollout.group == group:
            return rollout
    raise NotFoundError(
        f"iteration {iteration} of {reader.name} has no rollout {index} of {group[:200]}"
    )


def rollout_view(
    reader: RunReader, iteration: int, group: str, index: int, first_token: int = 0
) -> dict[str, Any]:
    path = reader.step_file("rollouts", iteration)
    siblings = list(iterate_rollouts(path))
    stored = _pick(reader, siblings, iteration, group, index)
    record = read_line_at(path, stored.offset, stored.size) or {}
    fates = find_fates(reader, iteration, group)
    fate = fate_of(stored, fates)
    tokens = _token_ids(record.get("response_tokens"))
    columns, missing = _token_columns(reader, fate, tokens, record)
    weights, missing_credit = _token_weights(reader, iteration, (group, index), len(tokens))
    columns |= weights
    missing |= missing_credit
    if not stored.has_response:
        missing["response"] = "the imported files hold no text of it"
    window = slice(first_token, first_token + MOST_TOKENS)
    vocabulary = read_run_vocabulary(reader)
    return {
        "iteration": iteration,
        "born": iteration,
        "group": group,
        "index": index,
        "prompt_id": stored.prompt_id,
        "prompt": stored.prompt[:MOST_CHARACTERS],
        "answer": stored.answer[:MOST_CHARACTERS],
        "response": stored.response_start(MOST_CHARACTERS),
        "response_cut": len(stored.response) > MOST_CHARACTERS,
        "reward": stored.reward,
        "length": stored.num_tokens or 0,
        "finished": stored.finished is not False,
        "has_plans": reader.has_plans,
        **fate,
        **{name: record.get(name) for name in ("further", "logged", "messages")},
        "environment_texts": _environment_texts(record, vocabulary),
        "tokens": {
            "first": first_token,
            "total": len(tokens),
            "token": tokens[window].tolist(),
            "text": [vocabulary[int(token)] for token in tokens[window]],
            **{name: values[window].tolist() for name, values in columns.items()},
        },
        "full": _full_sizes(columns),
        "quantities": describe_quantities(columns, list(weights)),
        **_watched(reader, fate),
        **_neighbours(reader, iteration, siblings, stored, fates),
        "missing": missing,
        "place": rollout_address(reader.name, iteration, group, index),
    }


def _token_ids(values: Any) -> np.ndarray:
    try:
        return np.asarray(values if isinstance(values, list) else [], dtype=np.int64)
    except (TypeError, ValueError, OverflowError):
        return np.empty(0, np.int64)


def _token_columns(
    reader: RunReader, fate: dict[str, Any], tokens: np.ndarray, record: dict[str, Any]
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """(columns of numbers by name, one number per token; why an EXPECTED column is missing).

    A missing column is filled with NaN.
    """
    columns: dict[str, np.ndarray] = {}
    missing: dict[str, str] = {}
    stored, reason = read_token_rows(reader, fate)
    for name in stored.keys() - PLAN_COLUMNS:
        if np.issubdtype(stored[name].dtype, np.number):
            columns[name] = _by_position(stored, name, len(tokens))
    sampled = _as_numbers(record.get("sampled_logprobs"), len(tokens))
    if sampled is not None:
        columns["sampled_logprob"] = sampled
    if {"logprob", "old_logprob"} <= columns.keys():
        with np.errstate(over="ignore"):
            columns["ratio"] = np.exp(columns["logprob"] - columns["old_logprob"])
    if sampled is not None and "old_logprob" in columns:
        columns["sampler_mismatch"] = columns["old_logprob"] - sampled
    for name in EXPECTED:
        if name not in columns:
            missing[name] = reason or _why_missing(name)
            columns[name] = np.full(len(tokens), math.nan)
        elif not np.isfinite(columns[name]).any():
            missing[name] = f"{name} was not measured for this rollout"
    return columns, missing


def _token_weights(
    reader: RunReader, iteration: int, name: tuple[str, int], length: int
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """(weights [T] of every method that `poise credit` stored, why there are none)."""
    try:
        weights_by_label = read_weights(reader.step_file(CREDIT, iteration), name)
    except NotFoundError:
        return {}, {
            "credit of other methods": "poise credit NAME "
            f"{shlex.quote(str(reader.folder))} --iteration {iteration} stores their weights"
        }
    except PoiseError as fault:
        return {}, {"credit of other methods": str(fault)}
    weights = {
        f"weight {label}": weights_T.astype(np.float64)
        for label, weights_T in weights_by_label.items()
        if len(weights_T) == length
    }
    if not weights:
        why = "the rollout has no signal, so it has no weights"
        if weights_by_label:
            why = "the stored weights are of a response of another length: run poise credit again"
        return {}, {"credit of other methods": why}
    return weights, {}


def _why_missing(name: str) -> str:
    if name == "displacement":
        return "the monitor did not look at this iteration (monitor.every)"
    if name == "sampler_mismatch":
        return "the rollout has no log-probabilities of the sampler"
    return f"tokens/ of this iteration has no column {' or '.join(COMPUTED.get(name, (name,)))}"


def explain_no_update(reader: RunReader) -> str:
    """Why no update is known that used a rollout."""
    if reader.has_plans:
        return "no update has used the rollout"
    return "the run has no plans.jsonl, so the update that used the rollout is not known"


def read_token_rows(reader: RunReader, fate: dict[str, Any]) -> tuple[Columns, str]:
    """(columns of tokens/ for one row of a plan, why there are none)."""
    if fate["trained_in"] is None:
        if fate["dropped"]:
            return {}, f"no update used the rollout: it was dropped ({fate['dropped']})"
        return {}, explain_no_update(reader)
    try:
        path = reader.step_file("tokens", fate["trained_in"])
    except NotFoundError:
        return {}, f"tokens of iteration {fate['trained_in']} were not stored (store.tokens)"
    try:
        columns = read_rows(path, [fate["row"]])
    except PoiseError as fault:  # the texts and rewards of the rollout are still there
        return {}, str(fault)
    if not len(columns.get("position", ())):
        return {}, "the update did not train on the rollout: its advantage is 0"
    return columns, ""


def read_rows(path: Path, rows: Sequence[int], position: int | None = None) -> Columns:
    """Columns of tokens/ or pushes/ for some rows of the plan; a damaged file is a PoiseError.

    Columns are read one after another and cut at once, so that a large file needs little memory.
    (`read_table` with filters does the same, but imports pandas: seconds at the first visit.)
    """
    try:
        with pq.ParquetFile(path) as file:
            is_wanted = np.isin(_read_column(file, "row"), rows)
            if position is not None:
                is_wanted &= _read_column(file, "position") == position
            return {name: _read_column(file, name)[is_wanted] for name in file.schema_arrow.names}
    except PARQUET_ERRORS as fault:
        reason = str(fault).partition("\n")[0][:300]
        raise PoiseError(f"{path.parent.name}/{path.name} is damaged: {reason}") from fault


def _read_column(file: pq.ParquetFile, name: str) -> np.ndarray:
    column = file.read(columns=[name], use_threads=False)[name]
    if column.null_count or not (
        pa.types.is_integer(column.type) or pa.types.is_float32(column.type)
    ):
        return np.asarray(column.to_numpy())
    # Our own columns: `to_numpy` would import pandas, half a second at the first visit.
    chunks = [np.from_dlpack(chunk) for chunk in column.chunks]
    return np.concatenate(chunks) if chunks else np.empty(0)


def _by_position(columns: Columns, name: str, length: int) -> np.ndarray:
    """A column in the order of the response; NaN at tokens that the update left out."""
    values = np.full(length, math.nan)
    positions = columns["position"].astype(np.int64)
    is_inside = (positions >= 0) & (positions < length)
    values[positions[is_inside]] = columns[name][is_inside].astype(np.float64)
    return values


def _as_numbers(values: Any, length: int) -> np.ndarray | None:
    try:
        numbers = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        return None
    return numbers if numbers.shape == (length,) and length else None


def _environment_texts(record: dict[str, Any], vocabulary: Vocabulary) -> list[tuple[int, str]]:
    """(position, text) of what an environment wrote before the policy's token at a position."""
    try:
        turns = turns_from_record(record)
    except (ValueError, TypeError, OverflowError):
        return []
    return [
        (turn.start, "".join(vocabulary[int(token)] for token in turn.observation))
        for turn in turns
        if len(turn.observation)
    ]


def _full_sizes(columns: dict[str, np.ndarray]) -> dict[str, float]:
    """The size from which the colour of each quantity is full, over this rollout."""
    sums = {
        quantity.name: quantity_values(quantity, columns)
        for quantity in available_quantities(columns)
    }
    return {name: full_colour_size(values) for name, values in {**columns, **sums}.items()}


def describe_quantities(
    columns: dict[str, np.ndarray], weights: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """What tokens can be coloured by, in the report's words; those that are missing too.

    `weights` are the columns with token weights of `poise credit`.
    """
    names = {name for quantity in QUANTITIES for name in (quantity.name, *quantity.columns)}
    extra = [
        _describe_column(name) for name in sorted(columns.keys() - names - NOT_EXTRA - set(weights))
    ]
    credit = [
        TokenQuantity(
            name,
            "Credit",
            name.removeprefix("weight "),
            "Token weight of this method by poise credit: what the advantage is multiplied by.",
            (name,),
            signed=False,
        )
        for name in weights
    ]
    neutral = {"ratio": 1.0, **dict.fromkeys(weights, 1.0)}  # where the colour changes
    return [
        {**quantity._asdict(), "centre": neutral.get(quantity.name, 0.0)}
        for quantity in (*QUANTITIES, *POLICY_QUANTITIES, *extra, *credit)
    ]


def _describe_column(name: str) -> TokenQuantity:
    """A column of tokens/ that the report does not know."""
    title = name.replace("_", " ")
    if name.startswith("probe_"):  # probe_right_judge
        answers, _, half = name.removeprefix("probe_").partition("_")
        return TokenQuantity(
            name,
            "Held-out answers",
            f"push on {answers} answers ({half})",
            "What training on the token did to held-out answers, on average (monitor.probe).",
            (name,),
        )
    return TokenQuantity(name, "Credit", title, "A column of tokens/.", (name,))


def _watched(reader: RunReader, fate: dict[str, Any]) -> dict[str, Any]:
    """Whether the pushes on this rollout were stored, and for which others of the update."""
    nothing = {"watched": False, "watched_places": []}
    if fate["trained_in"] is None:
        return nothing
    try:
        path = reader.step_file("pushes", fate["trained_in"])
        with pq.ParquetFile(path) as file:
            rows = np.unique(_read_column(file, "row")).tolist()
    except (NotFoundError, *PARQUET_ERRORS):
        return nothing
    plan = read_plan(reader, fate["trained_in"])
    if plan is None:
        return nothing
    names = row_names(plan)
    places = [
        rollout_address(reader.name, plan["born"][row], *names[row])
        for row in rows[:MOST_WATCHED]
        if 0 <= row < len(plan["group"])
    ]
    return {"watched": fate["row"] in rows, "watched_places": places}


def _neighbours(
    reader: RunReader,
    iteration: int,
    rollouts: list[RolloutLine],
    stored: RolloutLine,
    fates: dict[int, dict[str, Any]],
) -> dict[str, Any]:
    """The other rollouts of the group, and those before and after it in the iteration."""

    def address(rollout: RolloutLine) -> str:
        return rollout_address(reader.name, iteration, rollout.group, rollout.index)

    place = rollouts.index(stored)
    return {
        "siblings": [
            {
                "index": each.index,
                "reward": each.reward,
                "advantage": fate_of(each, fates)["advantage"],
                "place": address(each),
            }
            for each in rollouts
            if each.group == stored.group
        ],
        "previous": address(rollouts[place - 1]) if place else None,
        "next": address(rollouts[place + 1]) if place + 1 < len(rollouts) else None,
    }
