"""One optimizer step: the rows of one step of a plan -> gradient -> new weights.

    L = sum_i c_i sum_t (w_{i,t} (L_{i,t} + D_{i,t}) + kl K_{i,t} - entropy_bonus H_{i,t})

    L    by the surrogate                         c    by the aggregation
    w    1 or an importance weight                D    0 or a rule's term
    K    the KL from the initial policy           H    the entropy of the policy

A row whose advantage is 0 has L_{i,t} = 0, so it needs no pass unless K or H is in the loss. A
masked row (`update.mask_truncated`) has no loss at all.

Rows are processed in micro-batches to bound memory; c_i is computed over the whole step, so the
gradient does not depend on the split.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from counterpoise.config import UpdateConfig
from counterpoise.model.fit_memory import FittedSize
from counterpoise.model.load import Policy
from counterpoise.model.scoring import micro_batches, score_logprobs, split_by_row
from counterpoise.types import Floats, Row, StepResult
from counterpoise.update.kl_penalty import mean_kl
from counterpoise.update.optimizer import Optimizer
from counterpoise.update.passes import EAGER, Passes, PassInputs, PassOutputs
from counterpoise.update.repeatable import repeatable
from counterpoise.update.rules.rule import LossTerm, RuleEffect, StepRule, apply_rule
from counterpoise.update.trajectory import with_trajectory_weights
from counterpoise.variants import AGGREGATIONS


class StepObserver(Protocol):
    """Something that watches an optimizer step, such as `microscope/monitor.py`."""

    def before_update(self, policy: Policy, rows: Sequence[Row], result: StepResult) -> None: ...

    def after_update(self, policy: Policy) -> None: ...


class StepObservers:
    """Several observers of one step, called in order."""

    def __init__(self, *observers: StepObserver | None) -> None:
        self.observers = [observer for observer in observers if observer is not None]

    def before_update(self, policy: Policy, rows: Sequence[Row], result: StepResult) -> None:
        for observer in self.observers:
            observer.before_update(policy, rows, result)

    def after_update(self, policy: Policy) -> None:
        for observer in self.observers:
            observer.after_update(policy)


@dataclass(frozen=True, slots=True, eq=False)
class StepSettings:
    """How optimizer steps are computed; the same for all steps of an iteration.

    `micro_batch` is the size of a pass in `take_step`, which makes it smaller when memory runs out;
    by default it starts from `update.micro_tokens`. `accumulate_gradient` uses
    `update.micro_tokens` alone.

    Example:
        StepSettings(config.update, temperature=1.0, max_new_tokens=1024)
    """

    update: UpdateConfig
    temperature: float  # of sampling: the loss uses the same distribution
    max_new_tokens: int  # a denominator of some aggregations
    micro_batch: FittedSize | None = None
    passes: Passes = EAGER


def accumulate_gradient(
    policy: Policy,
    rows: Sequence[Row],
    settings: StepSettings,
    *,
    keep_hidden: bool = False,
    on_policy: bool = False,
    after_pass: Callable[[], None] = lambda: None,
    term: LossTerm | None = None,
) -> StepResult:
    """Add the gradient of the step's loss to the weights' `.grad`; report every token it used.

    `on_policy`: rows without `trainer_logprobs_T` were sampled by the current weights, so this pass
    gives their old log-probabilities. `StepResult.rows` are indices of the `rows` given here, not
    of the batch. Nothing waits for the device until the last micro-batch.
    """
    config = settings.update
    coefficients_R = AGGREGATIONS.load(config.aggregate)(rows, settings.max_new_tokens)
    advantages = [row.advantages_T for row in rows]
    # All surrogates are linear in the advantage: rows whose advantages are all 0 need no pass. A
    # rule's term needs a pass over every row with signal, even if all its token weights are 0.
    used_indices = [
        i
        for i, row in enumerate(rows)
        if advantages[i].any()
        or (term is not None and row.sign)
        or (config.trains_all_rows and not row.masked)
    ]
    used_rows, advantages = [rows[i] for i in used_indices], [advantages[i] for i in used_indices]
    old_logprobs = [
        None if on_policy and row.trainer_logprobs_T is None else row.old_logprobs
        for row in used_rows
    ]
    totals = _StepTotals(used_rows, keep_hidden)
    for batch in micro_batches(used_rows, config.micro_tokens):
        inputs = PassInputs(
            rows=[used_rows[i] for i in batch],
            old_logprobs=[old_logprobs[i] for i in batch],
            advantages=[advantages[i] for i in batch],
            coefficients_R=coefficients_R[[used_indices[i] for i in batch]],
            term=term,
            reference_logprobs=(
                [_reference_of(used_rows[i]) for i in batch] if config.kl_in_loss else None
            ),
            kl_coefficients=_kl_coefficients([used_rows[i] for i in batch], config),
        )
        outputs = settings.passes.gradients(policy, inputs, config, settings.temperature)
        after_pass()
        totals.add(batch, outputs)
    # The first synchronisation with the device: one copy for all micro-batches.
    logprobs, entropies, pulls = totals.by_row()
    loss, added_loss, num_clipped, num_capped = totals.sums()
    tokens_used = max(1, sum(row.num_tokens for row in used_rows))
    return StepResult(
        rows=tuple(used_indices),
        logprobs=logprobs,
        old_logprobs=[
            logprobs_T if old_logprobs_T is None else old_logprobs_T
            for old_logprobs_T, logprobs_T in zip(old_logprobs, logprobs, strict=True)
        ],
        advantages=advantages,
        entropies=entropies,
        pulls=pulls,
        coefficients=coefficients_R[used_indices].astype(np.float32),
        loss=loss,
        grad_norm=math.nan,
        clipped_share=num_clipped / tokens_used,
        tokens=sum(row.loss_tokens for row in rows),
        skipped="" if used_rows else "no signal",
        capped_share=num_capped / tokens_used,
        added_loss=added_loss,
        kl=mean_kl(config.kl_estimator, logprobs, used_rows) if config.kl_in_loss else None,
        hidden=[totals.hidden[i] for i in range(len(totals.hidden))],
    )


def take_step(
    policy: Policy,
    optimizer: Optimizer,
    rows: Sequence[Row],
    settings: StepSettings,
    *,
    observer: StepObserver | None = None,
    on_policy: bool = False,
    rule: StepRule | None = None,
) -> StepResult:
    """Accumulate the gradient, then update, unless there is no signal or something is not finite.

    `observer` is called just before the weights change, and again just after. When memory runs out
    the micro-batch is made smaller and the gradient is computed again from zero, before the
    optimizer has seen any of it. `StepResult.rows` are indices of the `rows` given here.
    """
    config = settings.update
    micro_batch = settings.micro_batch or FittedSize(config.micro_tokens)
    if config.trajectory != "off":
        rows = _with_trajectory_weights(policy, rows, settings, micro_batch, on_policy=on_policy)
    # A rule sees the whole step before the first pass, so it cannot depend on the micro-batches.
    effect = RuleEffect()
    if rule:
        rows, effect = apply_rule(rows, rule, on_policy=on_policy)

    def compute_gradient(micro_tokens: int) -> StepResult:
        optimizer.zero_grad()
        return accumulate_gradient(
            policy,
            rows,
            replace(settings, update=replace(config, micro_tokens=micro_tokens)),
            keep_hidden=observer is not None,
            on_policy=on_policy,
            after_pass=optimizer.collect_gradients,
            term=effect.term,
        )

    try:
        with repeatable(config.repeatable):
            rows_to_read = [row for row in rows if row.has_loss(all_rows=config.trains_all_rows)]
            result = micro_batch.run_rows(compute_gradient, rows_to_read)
            result = replace(result, chosen_share=effect.num_chosen / max(1, result.tokens))
    except BaseException:
        optimizer.zero_grad()  # drop what the failed passes accumulated
        raise
    return _update_weights(policy, optimizer, rows, result, observer)


def _update_weights(
    policy: Policy,
    optimizer: Optimizer,
    rows: Sequence[Row],
    result: StepResult,
    observer: StepObserver | None,
) -> StepResult:
    """Update the weights with the gradient that `result` reports, or skip the step."""
    if result.skipped:
        return replace(result, grad_norm=0.0)
    grad_norm = optimizer.grad_norm()
    # Moments that have seen a nan never recover, so the optimizer must not see this gradient.
    if not (math.isfinite(result.loss) and math.isfinite(grad_norm)):
        optimizer.zero_grad()
        return replace(result, grad_norm=grad_norm, skipped="not finite", hidden=())
    if observer:
        observer.before_update(policy, rows, result)
    learning_rate = optimizer.learning_rate()
    optimizer.step(grad_norm)
    optimizer.zero_grad()
    if observer:
        observer.after_update(policy)
    return replace(result, grad_norm=grad_norm, learning_rate=learning_rate, hidden=())


def _with_trajectory_weights(
    policy: Policy,
    rows: Sequence[Row],
    settings: StepSettings,
    micro_batch: FittedSize,
    *,
    on_policy: bool,
) -> list[Row]:
    """The rows with DFPO's trajectory weights; rows without signal stay as they are."""
    signal_indices = [i for i, row in enumerate(rows) if row.sign]
    signal_rows = [rows[i] for i in signal_indices]
    # In an on-policy step, rows without trainer_logprobs_T were sampled by the current weights: a
    # ratio of 1. The others may be stale, sampled by earlier weights, and need a pass by the
    # current ones.
    stale_indices = [
        index
        for index, row in enumerate(signal_rows)
        if not on_policy or row.trainer_logprobs_T is not None
    ]
    scored_logprobs = score_logprobs(
        policy,
        [signal_rows[index] for index in stale_indices],
        settings.temperature,
        micro_batch,
        settings.passes.read,
    )
    current_logprobs: list[Floats | None] = [None] * len(signal_rows)
    for index, logprobs_T in zip(stale_indices, scored_logprobs, strict=True):
        current_logprobs[index] = logprobs_T
    weighted_rows = with_trajectory_weights(
        signal_rows, current_logprobs, settings.update.trajectory
    )
    all_rows = list(rows)
    for i, row in zip(signal_indices, weighted_rows, strict=True):
        all_rows[i] = row
    return all_rows


def _reference_of(row: Row) -> Floats:
    """The row's reference log-probabilities [T], which a KL in the loss needs."""
    assert row.reference_logprobs_T is not None, "with_reference_logprobs comes before the update"
    return row.reference_logprobs_T


def _kl_coefficients(rows: Sequence[Row], config: UpdateConfig) -> list[float] | None:
    """The coefficient of every row's KL; None if update.kl is the coefficient of all."""
    if not config.kl_in_loss or config.kl_control == "fixed":
        return None
    return [config.kl if row.kl_coefficient is None else row.kl_coefficient for row in rows]


class _StepTotals:
    """Outputs of a step's passes, kept on the device until the last pass is done."""

    def __init__(self, rows: Sequence[Row], keep_hidden: bool) -> None:
        self.rows = rows
        self.keep_hidden = keep_hidden
        self.hidden: dict[int, Tensor] = {}
        self._order: list[int] = []  # rows in the order of the passes
        self._tokens: list[Tensor] = []  # per pass [3, M]: log-probabilities, entropies, pulls
        self._totals: list[Tensor] = []  # per pass [4]: as `PassOutputs.totals_4`

    def add(self, batch: list[int], outputs: PassOutputs) -> None:
        self._order += batch
        self._tokens.append(outputs.tokens_3M)
        self._totals.append(outputs.totals_4)
        if self.keep_hidden:
            row_states = outputs.hidden_MD.split([self.rows[i].num_tokens for i in batch])
            self.hidden.update(zip(batch, row_states, strict=True))

    def by_row(self) -> tuple[list[Floats], list[Floats], list[Floats]]:
        """Log-probabilities, entropies and pulls of every row [T], in one copy to the host."""
        if not self._tokens:
            return [], [], []
        host_values = torch.cat(self._tokens, dim=1).cpu()
        logprobs, entropies, pulls = (
            split_by_row(values_N, self._order, self.rows) for values_N in host_values
        )
        return logprobs, entropies, pulls

    def sums(self) -> tuple[float, float, float, float]:
        """Loss, the rule term's part of it, clipped and capped tokens, summed over all passes."""
        totals = torch.stack(self._totals).tolist() if self._totals else [(0.0,) * 4]
        loss, added_loss, num_clipped, num_capped = (
            sum(column) for column in zip(*totals, strict=True)
        )
        return loss, added_loss, num_clipped, num_capped
