"""The finding about the sampler: log-probabilities that the trainer does not agree with.

    d_t = log pi_old(o_t) - log mu(o_t)        mu: the sampler; pi_old: the trainer, same weights

    mismatch = mean |d_t| / mean |log pi_old(o_t)|

The denominator makes runs comparable: a policy of low entropy has small log-probabilities and
small differences. Rounding of a bfloat16 engine stays at a few percent and constant; a sampler
whose weights are not synchronised drifts away with every update.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow.parquet as pq

from counterpoise.report.audit.audited_run import AuditRun
from counterpoise.report.audit.records import (
    AUDIT_REPLAYED_RUN,
    NEEDS_UPDATE,
    AuditFinding,
    Example,
    Level,
    Measurement,
    grade_above,
    percent,
    unsupported,
)
from counterpoise.report.audit.run_files import thirds
from counterpoise.report.audit.thresholds import GROWING_MISMATCH, MIN_ITERATIONS, MISMATCH
from counterpoise.report.charts.render import show_blanks
from counterpoise.report.texts import make_visible
from counterpoise.report.traces import read_vocabulary
from counterpoise.statistics.prompt_intervals import mean_estimate
from counterpoise.store.logs import row_names
from counterpoise.store.parquet_errors import PARQUET_ERRORS

TITLE = "Sampler and trainer disagree"
TOKEN_ITERATIONS = 4  # whose token tables are read
MIN_OCCURRENCES = 20  # of a token type that is listed
TOP_TYPES = 5
STORED_ROUNDING = 1e-5  # rollouts/ have six digits
SMALLEST_LOGPROB = 1e-3  # floor of the denominator: a ratio to less than this means nothing


def sampler_mismatch(run: AuditRun) -> AuditFinding:
    """mean |d| over mean |log pi|, its growth, and the tokens where it is largest."""
    if run.is_replay:
        return unsupported(
            TITLE,
            "the run itself, as a replay computes log-probabilities with the model it was given",
            remedy=AUDIT_REPLAYED_RUN,
        )
    mismatch, logprob = dict(run.metric("sampler_mismatch")), dict(run.metric("old_logprob"))
    relative = [
        mismatch[iteration] / max(SMALLEST_LOGPROB, abs(logprob[iteration]))
        for iteration in mismatch
        if iteration in logprob
    ]
    if not relative:
        if run.took_no_step:
            return unsupported(TITLE, NEEDS_UPDATE)
        return unsupported(
            TITLE,
            "sampler_mismatch in metrics.jsonl",
            remedy="the sampler has to return log-probabilities of the full distribution: the "
            "native one does, and vLLM without top-p and top-k",
        )
    late = mean_estimate(thirds(relative)[1])
    # Two values of a short run have no interval worth the name: their mean decides.
    decisive = late.low if len(relative) >= MIN_ITERATIONS else late.mean
    level: Level = grade_above(decisive, *MISMATCH)
    measurements = [Measurement.of("mismatch in the last third, of |log pi|", late, "share")]
    growth_text = ""
    if len(relative) >= MIN_ITERATIONS:
        before, after = (float(np.mean(values)) for values in thirds(relative))
        growth = after / max(before, 1e-6)
        measurements.append(Measurement("growth, last third over first", growth))
        # Rounding does not grow: a drift is an alarm where a constant mismatch is a warning.
        if growth >= GROWING_MISMATCH and late.mean >= MISMATCH[0]:
            level, growth_text = "alarm", f", {growth:.1f} times that of the first third"
    largest = run.metric("sampler_mismatch_max")
    if largest:
        measurements.append(
            Measurement("largest difference of a token", max(v for _, v in largest), unit="nats")
        )
    token_measurements, examples, missing = _by_token(run) if level != "clear" else ([], (), ())
    return AuditFinding(
        title=TITLE,
        level=level,
        verdict=f"log-probabilities of sampler and trainer differ by {percent(late.mean, 2)} of "
        f"|log pi| "
        f"in the last third{growth_text}",
        measurements=(*measurements, *token_measurements),
        threshold=f"warning from {percent(MISMATCH[0])}, alarm from {percent(MISMATCH[1])}, or "
        f"from "
        f"{percent(MISMATCH[0])} if it grew {GROWING_MISMATCH:g} times",
        cost="rollouts come from another policy than the one that is trained: importance ratios "
        "are wrong, and the clip removes tokens for no reason",
        remedy="synchronise the sampler's weights before each iteration; then update.importance = "
        '"token" corrects what is left; sample.engine = "native" has no mismatch',
        examples=examples,
        missing=missing,
        explains=("learning_rate", "reward_gap", "entropy_collapse"),
    )


def _by_token(
    run: AuditRun,
) -> tuple[list[Measurement], tuple[Example, ...], tuple[str, ...]]:
    """Token types with the largest |d|, from a few token tables; what is missing otherwise."""
    if not run.token_files:
        return [], (), ("tokens/",)
    if not run.has_plans or not run.rollout_files:
        return [], (), ("plans.jsonl", "rollouts/")
    numbers = sorted(set(run.token_files) & set(run.rollout_files))[-TOKEN_ITERATIONS:]
    plans = {
        plan["iteration"]: plan
        for plan in run.iterate_plans()
        if plan["iteration"] in numbers and "steps" in plan
    }
    tables = [_differences(run, number, plans[number]) for number in numbers if number in plans]
    tables = [table for table in tables if len(table["d"])]
    if not tables:
        return [], (), ("sampled_logprobs in rollouts/",)
    d_N, token_N = (np.concatenate([table[name] for table in tables]) for name in ("d", "token"))
    types, inverse_N, counts = np.unique(token_N, return_inverse=True, return_counts=True)
    means = np.bincount(inverse_N, weights=np.abs(d_N)) / counts
    listed = [i for i in np.argsort(-means) if counts[i] >= MIN_OCCURRENCES][:TOP_TYPES]
    vocabulary = read_vocabulary(run.path)
    measurements = [
        Measurement(
            "mean difference at "
            f"{show_blanks(make_visible(vocabulary[int(types[i])], 40), alone=True)!r}, "
            f"{counts[i]:,} tokens",
            float(means[i]),
            unit="nats",
        )
        for i in listed
    ]
    return measurements, tuple(_worst_token(table) for table in tables), ()


def _differences(run: AuditRun, iteration: int, plan: dict[str, Any]) -> dict[str, Any]:
    """d of the trained tokens of an iteration for which it is known, with their places.

    Where the trainer computed no log-probabilities before the update, and in imports, `old_logprob`
    repeats the sampler's. Then d is known in the first optimizer step only: it ran at the weights
    that sampled the rollouts of this iteration, so its `logprob` is log pi_old.
    """
    nothing = {"d": np.empty(0), "token": np.empty(0, np.int64), "places": []}
    # With reward balance rows wait: they were sampled in other iterations.
    sampled = {
        (rollout.group, rollout.index): rollout.sampled_logprobs
        for born in sorted(set(plan["born"]) & set(run.rollout_files))
        for rollout in run.iterate_rollouts(born)
        if rollout.sampled_logprobs is not None
    }
    try:
        table = pq.read_table(
            run.token_files[iteration],
            columns=["step", "row", "position", "token", "old_logprob", "logprob"],
        )
    except PARQUET_ERRORS:
        return nothing
    columns = {name: table[name].to_numpy() for name in table.column_names}
    if not len(columns["row"]):
        return nothing
    sampled_N = np.full(len(columns["row"]), np.nan)
    planned_names, names = row_names(plan), {}
    for row in np.unique(columns["row"]):
        name = planned_names[row]
        logprobs = sampled.get(name)
        if logprobs is None:
            continue
        in_row = np.flatnonzero(columns["row"] == row)
        position_T = columns["position"][in_row]
        if position_T.max(initial=0) >= len(logprobs):
            continue
        sampled_N[in_row] = np.array(logprobs, dtype=np.float64)[position_T]
        names[int(row)] = name
    d_N = columns["old_logprob"] - sampled_N
    if not (np.abs(d_N) > STORED_ROUNDING).any():
        fresh_rows = np.flatnonzero(np.array(plan["born"]) == iteration)
        is_first = columns["step"] == columns["step"].min()
        is_same = is_first & np.isin(columns["row"], fresh_rows)
        d_N = np.where(is_same, columns["logprob"] - sampled_N, np.nan)
    known = np.flatnonzero(np.isfinite(d_N))
    if not len(known):
        return nothing
    row_n, position_n = columns["row"][known].tolist(), columns["position"][known].tolist()
    places = [(names[row], position) for row, position in zip(row_n, position_n, strict=True)]
    return {"d": d_N[known], "token": columns["token"][known], "places": places}


def _worst_token(table: dict[str, Any]) -> Example:
    worst = int(np.argmax(np.abs(table["d"])))
    (group, index), position = table["places"][worst]
    return Example(
        make_visible(group, 200),
        index,
        f"token {position}: trainer minus sampler {table['d'][worst]:+.2f} nats",
    )
