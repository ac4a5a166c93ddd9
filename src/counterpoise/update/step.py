"""One optimizer step: the rows of one step of a plan -> gradient -> new weights.

    L = sum_i c_i sum_t w_{i,t} (L_{i,t} + D_{i,t})    L_{i,t} by the surrogate, c_i by the
                                                       aggregation, w_{i,t} = 1 or an importance
                                                       weight, D_{i,t} = 0 or a rule's term

Rows are walked in micro-batches for memory's sake; c_i knows the whole step, so the gradient is
the same for every way of cutting it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from counterpoise.config import UpdateConfig
from counterpoise.model.fit_memory import MicroBatch
from counterpoise.model.load import Policy
from counterpoise.model.scoring import micro_batches, score_logprobs, split_by_row
from counterpoise.types import Floats, Row, StepResult
from counterpoise.update.optimizer import Optimizer
from counterpoise.update.passes import EAGER, Passes, PassInputs, PassOutputs
from counterpoise.update.repeatable import repeatable
from counterpoise.update.rules.rule import LossTerm, RuleEffect, StepRule, apply_rule
from counterpoise.update.trajectory import with_trajectory_weights
from counterpoise.variants import AGGREGATIONS


class StepObserver(Protocol):
    """Someone who watches a step: `microscope/monitor.py`."""

    def before_update(self, policy: Policy, rows: Sequence[Row], result: StepResult) -> None: ...

    def after_update(self, policy: Policy) -> None: ...


def accumulate_gradient(
    policy: Policy,
    rows: Sequence[Row],
    config: UpdateConfig,
    *,
    temperature: float,
    max_new_tokens: int,
    keep_hidden: bool = False,
    on_policy: bool = False,
    passes: Passes = EAGER,
    after_pass: Callable[[], None] = lambda: None,
    term: LossTerm | None = None,
) -> StepResult:
    """Add the gradient of the step's loss to the weights' `.grad`; report every token it used.

    `on_policy`: rows without scores were sampled by the weights as they are, so that this pass
    gives their old log-probabilities. Nothing waits for the device until the last micro-batch.
    """
    coefficients_R = AGGREGATIONS.load(config.aggregate)(rows, max_new_tokens)
    advantages = [row.advantages_T for row in rows]
    signal = [  # without a loss of their own, rows with signal still have a rule's term
        i for i, row in enumerate(rows) if advantages[i].any() or (term is not None and row.sign)
    ]
    used, advantages = [rows[i] for i in signal], [advantages[i] for i in signal]
    old = [None if on_policy and row.scored_T is None else row.old_logprobs for row in used]
    walked = _StepTotals(used, keep_hidden)
    for batch in micro_batches(used, config.micro_tokens):
        part = PassInputs(
            rows=[used[i] for i in batch],
            old_logprobs=[old[i] for i in batch],
            advantages=[advantages[i] for i in batch],
            coefficients_R=coefficients_R[[signal[i] for i in batch]],
            term=term,
        )
        found = passes.gradients(policy, part, config, temperature)
        after_pass()
        walked.add(batch, found)
    logprobs, entropies, pulls = walked.by_row()
    loss, added, clipped, capped = walked.sums()
    tokens_used = max(1, sum(row.num_tokens for row in used))
    return StepResult(
        rows=tuple(signal),
        logprobs=logprobs,
        old_logprobs=[now if x is None else x for x, now in zip(old, logprobs, strict=True)],
        advantages=advantages,
        entropies=entropies,
        pulls=pulls,
        coefficients=coefficients_R[signal].astype(np.float32),
        loss=loss,
        grad_norm=math.nan,
        clipped_share=clipped / tokens_used,
        tokens=sum(row.num_tokens for row in rows),
        skipped="" if used else "no signal",
        capped_share=capped / tokens_used,
        added_loss=added,
        hidden=[walked.hidden[i] for i in range(len(walked.hidden))],
    )


def take_step(
    policy: Policy,
    optimizer: Optimizer,
    rows: Sequence[Row],
    config: UpdateConfig,
    *,
    temperature: float,
    max_new_tokens: int,
    observer: StepObserver | None = None,
    on_policy: bool = False,
    micro_batch: MicroBatch | None = None,
    passes: Passes = EAGER,
    rule: StepRule | None = None,
) -> StepResult:
    """`accumulate`, then update, unless there is no signal or something is not finite.

    `observer` sees the step just before the weights change, and again just after. `micro_batch` is the size
    of a pass, `config.micro_tokens` without it; where memory runs out it is made smaller, and the
    gradient is taken again from zero, before the optimizer has seen any of it.
    """
    micro_batch = micro_batch or MicroBatch(config.micro_tokens)
    if config.trajectory != "off":
        rows = _with_trajectory_weights(
            policy, rows, config, temperature, micro_batch, passes, on_policy=on_policy
        )
    ruled = RuleEffect()
    if rule:
        rows, ruled = apply_rule(rows, rule, on_policy=on_policy)

    def gradient(micro_tokens: int) -> StepResult:
        optimizer.zero_grad()
        return accumulate_gradient(
            policy,
            rows,
            replace(config, micro_tokens=micro_tokens),
            temperature=temperature,
            max_new_tokens=max_new_tokens,
            keep_hidden=observer is not None,
            on_policy=on_policy,
            passes=passes,
            after_pass=optimizer.collect_gradients,
            term=ruled.term,
        )

    try:
        with repeatable(config.repeatable):
            result = micro_batch.run_rows(gradient, [row for row in rows if row.sign])
            result = replace(result, chosen_share=ruled.num_chosen / max(1, result.tokens))
    except BaseException:
        optimizer.zero_grad()  # half a gradient is nobody's
        raise
    return _update_weights(policy, optimizer, rows, result, observer)


def _update_weights(
    policy: Policy,
    optimizer: Optimizer,
    rows: Sequence[Row],
    result: StepResult,
    look: StepObserver | None,
) -> StepResult:
    """The weights after the gradient that `result` reports; what is not fit for it is skipped."""
    if result.skipped:
        return replace(result, grad_norm=0.0)
    norm = optimizer.grad_norm()
    if not (math.isfinite(result.loss) and math.isfinite(norm)):
        optimizer.zero_grad()
        return replace(result, grad_norm=norm, skipped="not finite", hidden=())
    if look:
        look.before_update(policy, rows, result)
    optimizer.step(norm)
    optimizer.zero_grad()
    if look:
        look.after_update(policy)
    return replace(result, grad_norm=norm, hidden=())


def _with_trajectory_weights(
    policy: Policy,
    rows: Sequence[Row],
    config: UpdateConfig,
    temperature: float,
    micro: MicroBatch,
    passes: Passes,
    *,
    on_policy: bool,
) -> list[Row]:
    """Rows without signal stay as they are: nothing is weighed of them."""
    signal = [i for i, row in enumerate(rows) if row.sign]
    used = [rows[i] for i in signal]
    changed = [r for r, row in enumerate(used) if not on_policy or row.scored_T is not None]
    found = score_logprobs(policy, [used[r] for r in changed], temperature, micro, passes.read)
    now: list[Floats | None] = [None] * len(used)
    for r, logprobs_T in zip(changed, found, strict=True):
        now[r] = logprobs_T
    done = list(rows)
    for i, row in zip(signal, with_trajectory_weights(used, now, config.trajectory), strict=True):
        done[i] = row
    return done


class _StepTotals:
    """What the passes of a step leave behind; it stays on the device until the last is done."""

    def __init__(self, rows: Sequence[Row], keep_hidden: bool) -> None:
        self.rows = rows
        self.keep_hidden = keep_hidden
        self.hidden: dict[int, Tensor] = {}
        self._order: list[int] = []  # rows as they were walked
        self._tokens: list[Tensor] = []  # per pass [3, M]: log-probabilities, entropies, pulls
        self._totals: list[Tensor] = []  # per pass [4]: as `Found.totals_4`

    def add(self, batch: list[int], found: PassOutputs) -> None:
        self._order += batch
        self._tokens.append(found.tokens_3M)
        self._totals.append(found.totals_4)
        if self.keep_hidden:
            parts = found.hidden_MD.split([self.rows[i].num_tokens for i in batch])
            self.hidden.update(zip(batch, parts, strict=True))

    def by_row(self) -> tuple[list[Floats], list[Floats], list[Floats]]:
        """Log-probabilities, entropies and pulls of every row [T], in one copy."""
        if not self._tokens:
            return [], [], []
        host = torch.cat(self._tokens, dim=1).cpu()
        logprobs, entropies, pulls = (split_by_row(x_N, self._order, self.rows) for x_N in host)
        return logprobs, entropies, pulls

    def sums(self) -> tuple[float, float, float, float]:
        """Loss, the added term's part of it, clipped and capped tokens of all passes."""
        totals = torch.stack(self._totals).tolist() if self._totals else [(0.0,) * 4]
        loss, added, clipped, capped = (sum(column) for column in zip(*totals, strict=True))
        return loss, added, clipped, capped
