"""Measures every optimizer step during training: coupling before it, displacement after it.

Just before a step, the coupling of its tokens is decomposed from the hidden states and loss weights
that the step itself computed. Just after it, one forward pass in the step's own batch layout gives
the displacement. With pull_k = -dL/dlogp_k (advantage, ratio, clip and average in one), token j's
output-layer displacement for one unit of learning rate is

    delta_j = sum_k pull_k <h_j, h_k> <r_j, r_k> / temperature^2

On a GPU, products are in half precision where the model itself is (`model/residuals.py`), and the
CPU never waits: the step goes on while the GPU still decomposes.

In a large iteration only some rows are measured (`microscope/monitor_sampling.py`). Their numbers
are exact: the pushes of all tokens of the step are counted.

`update/step.py` calls a `Monitor` around every step; `microscope/monitor_records.py` turns its
measurements into numbers for metrics.jsonl and tables for tokens/, pushes/ and likely/.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.microscope import prefixes
from counterpoise.microscope.batch_tokens import policy_residuals
from counterpoise.microscope.coupling import Coupling, decompose_residuals
from counterpoise.microscope.learning_tax import (
    PooledMean,
    lazy_likelihood,
    learning_tax,
    log_distributions,
    solution_drift,
    tax_tokens,
)
from counterpoise.microscope.likely_tokens import LikelyTokens, likeliest_tokens, read_again
from counterpoise.microscope.measured_rows import MeasuredRows
from counterpoise.microscope.pairs import StrongestPushes, strongest_pushes
from counterpoise.microscope.stopwatch import Stopwatch
from counterpoise.microscope.token_types import TypePulls, type_pulls
from counterpoise.model.fit_memory import FittedSize
from counterpoise.model.load import Policy
from counterpoise.model.residuals import wide
from counterpoise.model.scoring import score_tokens
from counterpoise.types import Floats, Row, RowName, StepResult, number_groups
from counterpoise.update.passes import EAGER, Passes

TOP_PUSHES = 6  # strongest pushes stored for a watched token, in each direction


@dataclass(frozen=True, slots=True, eq=False)
class StepMeasurement:
    """What one optimizer step did; everything on the CPU.

    N counts all trained tokens of the step, in the order of `rows`; n counts the measured ones, in
    the order of `measured_rows`.
    """

    step: int  # index in the plan
    rows: tuple[int, ...]  # indices of the rows given to the step, not of the batch
    lengths: tuple[int, ...]  # tokens of each row
    measured_rows: tuple[int, ...]  # indices into `rows`
    advantages: Floats  # [n]
    displacement: Floats  # [n]
    coupling: Coupling  # [n]
    type_pulls: TypePulls
    shared_prefixes: prefixes.SharedPrefixes
    tax: PooledMean
    drift: PooledMean
    lazy: PooledMean  # over rollouts with A > 0
    watched_tokens: NDArray[np.int64]  # indices into the N tokens
    pushes: StrongestPushes | None  # on the watched tokens
    likely: LikelyTokens | None  # in the place of the watched tokens


@dataclass(frozen=True, slots=True, eq=False)
class _PendingStep:
    """A step that is decomposed but not yet applied; tensors are on the model's device."""

    result: StepResult
    measured: MeasuredRows
    coupling: Coupling
    type_pulls: TypePulls
    shared_prefixes: prefixes.SharedPrefixes
    tax_tokens: NDArray[np.int64]  # of the measured tokens, those that both signs share
    tax_logprobs_UV: Tensor  # their log-distributions
    watched_tokens: NDArray[np.int64]  # indices into the N tokens
    pushes: StrongestPushes | None
    likely: LikelyTokens | None


class Monitor:
    """Measures the steps of one iteration; `measurements` has an entry for each measured step."""

    def __init__(
        self,
        temperature: float,
        micro_tokens: int | FittedSize,
        watched_groups: Collection[str],
        passes: Passes = EAGER,  # the forward passes of the step itself
        measured_rows: Collection[RowName] | None = None,  # None: all rows
    ) -> None:
        self.temperature = temperature
        self.micro_tokens = micro_tokens
        self.watched_groups = watched_groups
        self.passes = passes
        self.measured_rows = measured_rows
        self.measurements: list[StepMeasurement] = []
        self._step = 0
        self._stopwatch = Stopwatch()
        self._pending: _PendingStep | None = None

    @property
    def seconds(self) -> float:
        return self._stopwatch.seconds

    def at(self, step: int, rows: Sequence[Row]) -> Monitor | None:
        """The monitor for step `step` of the plan; None when none of its rows is measured."""
        self._step = step
        return self if any(self._is_measured(row) for row in rows) else None

    def before_update(self, policy: Policy, rows: Sequence[Row], result: StepResult) -> None:
        """Decompose the coupling with the weights at which the gradient was computed."""
        step_rows = [rows[i] for i in result.rows]
        # A row whose token weights are all 0 takes no part in the step, even if it was chosen.
        if not any(self._is_measured(row) for row in step_rows):
            return
        with self._stopwatch.running(policy.device), torch.no_grad():
            self._pending = self._decompose_step(policy, step_rows, result)

    def after_update(self, policy: Policy) -> None:
        """Measure the displacement with one forward pass in the step's own batch layout."""
        if self._pending is None:  # none of the rows that took part is measured
            return
        with self._stopwatch.running(policy.device):
            pending, self._pending = self._pending, None
            rows = pending.measured.rows
            scores = score_tokens(
                policy,
                rows,
                self.temperature,
                self.micro_tokens,
                self.passes.read,
                pending.measured.micro_batches,
            )
            old_logprobs = pending.measured.select(pending.result.logprobs)
            displacements = [
                new - old for old, new in zip(old_logprobs, scores.logprobs, strict=True)
            ]
            new_tax_logprobs_UV = self._log_distributions(policy, scores.hidden, pending.tax_tokens)
            pending = replace(pending, likely=self._likely_again(policy, pending, scores.hidden))
            self.measurements.append(
                replace(
                    self._coupling_alone(pending),
                    displacement=np.concatenate(displacements),
                    tax=learning_tax(pending.tax_logprobs_UV, new_tax_logprobs_UV),
                    drift=solution_drift(rows, displacements),
                    lazy=lazy_likelihood(rows, displacements),
                )
            )

    def take_coupling(self) -> StepMeasurement:
        """The measurement without the forward pass after the update.

        For a host in which the monitor cannot run that pass: the host adds the displacement itself.
        Here it is NaN; learning tax, drift and lazy likelihood have no terms.
        """
        assert self._pending is not None, "before_update() comes first"
        pending, self._pending = self._pending, None
        return self._coupling_alone(pending)

    def _coupling_alone(self, pending: _PendingStep) -> StepMeasurement:
        advantages = np.concatenate(pending.measured.select(pending.result.advantages))
        return StepMeasurement(
            step=self._step,
            rows=pending.result.rows,
            lengths=tuple(pending.measured.lengths),
            measured_rows=tuple(pending.measured.measured_rows),
            advantages=advantages,
            displacement=np.full(len(advantages), np.nan, np.float32),
            coupling=pending.coupling.cpu(),
            type_pulls=TypePulls(*(tensor.cpu() for tensor in pending.type_pulls)),
            shared_prefixes=pending.shared_prefixes,
            tax=PooledMean(0.0, 0),
            drift=PooledMean(0.0, 0),
            lazy=PooledMean(0.0, 0),
            watched_tokens=pending.watched_tokens,
            pushes=pending.pushes and pending.pushes.cpu(),
            likely=pending.likely and pending.likely.cpu(),
        )

    def _decompose_step(
        self, policy: Policy, step_rows: list[Row], result: StepResult
    ) -> _PendingStep:
        """Coupling, pushes and tax tokens of a step, from what its forward passes returned."""
        measured = MeasuredRows(
            step_rows, [index for index, row in enumerate(step_rows) if self._is_measured(row)]
        )
        tokens = _concatenate([row.content.response_tokens.astype(np.int64) for row in step_rows])
        pulls, logprobs = _concatenate(result.pulls), _concatenate(result.logprobs)
        hidden = torch.cat(list(result.hidden))
        residuals = policy_residuals(policy, hidden, tokens, self.temperature)
        groups = torch.from_numpy(np.repeat(number_groups(step_rows)[0], measured.lengths))
        eta = len(tokens) / self.temperature**2  # pulls are averages: undo the division by N
        coupling = decompose_residuals(
            residuals,
            tokens,
            pulls,
            groups,
            eta=eta,
            targets=None if measured.all_measured else measured.token_indices,
        )
        type_pulls_of_step = type_pulls(
            wide(hidden), tokens, residuals.to_device(logprobs), residuals.to_device(pulls)
        )
        watched_tokens = measured.tokens_of_groups(self.watched_groups)
        # Pushes exclude a token's push on itself, so a step of one token has none.
        pushes = likely = None
        if len(watched_tokens) and len(tokens) > 1:
            pushes = strongest_pushes(
                residuals, pulls, torch.from_numpy(watched_tokens), top=TOP_PUSHES, eta=eta
            )
        if len(watched_tokens):
            likely = likeliest_tokens(
                hidden[residuals.to_device(torch.from_numpy(watched_tokens))],
                policy.decoder.unembedding.detach(),
                self.temperature,
                policy.decoder.softcap,
            )
        # The GPU now has its work queued; the CPU walks the tries of the groups meanwhile.
        node_N = prefixes.trie_nodes(step_rows)
        tax_indices = tax_tokens(measured.rows, node_N[measured.token_indices])
        return _PendingStep(
            result=result,
            measured=measured,
            coupling=coupling,
            type_pulls=type_pulls_of_step,
            shared_prefixes=prefixes.measure_shared_prefixes(step_rows, result.pulls, node_N),
            tax_tokens=tax_indices,
            tax_logprobs_UV=self._log_distributions(
                policy, measured.select(result.hidden), tax_indices
            ),
            watched_tokens=watched_tokens,
            pushes=pushes,
            likely=likely,
        )

    def _is_measured(self, row: Row) -> bool:
        return self.measured_rows is None or row.name in self.measured_rows

    def _likely_again(
        self, policy: Policy, pending: _PendingStep, hidden: Sequence[Tensor]
    ) -> LikelyTokens | None:
        """The likely tokens with the new policy's log-probabilities; `hidden` of measured rows."""
        if pending.likely is None:
            return None
        indices = pending.measured.to_measured(pending.watched_tokens)
        all_hidden = torch.cat(list(hidden))
        return read_again(
            pending.likely,
            all_hidden[torch.from_numpy(indices).to(all_hidden.device)],
            policy.decoder.unembedding.detach(),
            self.temperature,
            policy.decoder.softcap,
        )

    @torch.no_grad()
    def _log_distributions(
        self, policy: Policy, hidden: Sequence[Tensor], token_indices: NDArray[np.int64]
    ) -> Tensor:
        """Log-distributions [U, V] of the tokens `token_indices` under the current weights."""
        all_hidden, W = torch.cat(list(hidden)), policy.decoder.unembedding.detach()
        selected_hidden = all_hidden[torch.from_numpy(token_indices).to(all_hidden.device)]
        return log_distributions(
            wide(selected_hidden) / self.temperature,
            wide(W),
            policy.decoder.softcap / self.temperature,
        )


def _concatenate(arrays: Sequence[NDArray[np.generic]]) -> Tensor:
    return torch.from_numpy(np.concatenate(arrays))
