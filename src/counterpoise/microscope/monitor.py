"""The microscope left on: what every optimizer step of an iteration did, while it does it.

Just before a step the coupling of its tokens is decomposed from the hidden states and the weights
of the loss that the step itself computed; just after it one forward pass, in the step's own batch
layout, gives the displacement. With pull_k = -dL/dlogp_k (advantage, ratio, clip and average in
one), token j's output-layer displacement for one unit of learning rate is

    delta_j = sum_k pull_k <h_j, h_k> <r_j, r_k> / temperature^2

On a GPU products are in half precision where the model itself is (`model/residuals.py`), and
nothing is waited for in between: the step goes on while the GPU still decomposes.

A look at a large iteration is for some of its tokens (`microscope/monitor_sampling.py`): of these
it is exact, pushed by all tokens of their step.

A `Monitor` is the `look` of `update/step.py`; `microscope/monitor_records.py` puts its views into
numbers for metrics.jsonl, and tables for tokens/ and pushes/.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.microscope import prefixes
from counterpoise.microscope.coupling import Coupling, decompose_residuals
from counterpoise.microscope.learning_tax import (
    PooledMean,
    learning_tax,
    log_distributions,
    solution_drift,
    tax_tokens,
)
from counterpoise.microscope.monitor_sampling import RowName
from counterpoise.microscope.pairs import StrongestPushes, strongest_pushes
from counterpoise.microscope.stopwatch import Stopwatch
from counterpoise.microscope.token_types import TypePulls, type_pulls
from counterpoise.model.fit_memory import MicroBatch
from counterpoise.model.load import Policy
from counterpoise.model.residuals import HALF, Errors, wide
from counterpoise.model.scoring import micro_batches, read
from counterpoise.types import Floats, Row, StepResult
from counterpoise.update.passes import EAGER, Passes

TOP_PUSHES = 6  # pushes kept for a watched token, up and down


@dataclass(frozen=True, slots=True, eq=False)
class StepMeasurement:
    """One step's trained tokens, flat [N] in the order of `rows`, and those looked at [n], in the
    order of `measured_rows`; everything on the CPU.
    """

    step: int  # of the plan
    rows: tuple[int, ...]  # as StepResult.rows
    lengths: tuple[int, ...]  # tokens of each
    measured_rows: tuple[int, ...]  # places among `rows`
    advantages: Floats  # [n]
    displacement: Floats  # [n]
    coupling: Coupling  # [n]
    type_pulls: TypePulls
    shared_prefixes: prefixes.SharedPrefixes
    tax: PooledMean
    drift: PooledMean
    watched_tokens: NDArray[np.int64]  # places among the N tokens
    pushes: StrongestPushes | None  # for the watched ones


@dataclass(frozen=True, slots=True, eq=False)
class _PendingStep:
    """A step between its two looks; tensors are where the model is."""

    result: StepResult
    rows: list[Row]
    measured_rows: list[int]  # places among `rows`
    coupling: Coupling
    type_pulls: TypePulls
    shared_prefixes: prefixes.SharedPrefixes
    tax_tokens: NDArray[np.int64]  # places that both signs share
    tax_logprobs_UV: Tensor  # their log-distributions
    watched_tokens: NDArray[np.int64]
    pushes: StrongestPushes | None

    def measured_micro_batches(
        self, looked: Sequence[Row], micro_tokens: int
    ) -> Iterator[list[int]]:
        """What is looked at, in the passes it was in: in others it would be rounded otherwise."""
        place = {i: n for n, i in enumerate(self.measured_rows)}
        for batch in micro_batches(self.rows, micro_tokens):
            if part := [place[i] for i in batch if i in place]:
                yield part


class Monitor:
    """One iteration's look; `measurements` has an entry for every step that was looked at."""

    def __init__(
        self,
        temperature: float,
        micro_tokens: int | MicroBatch,
        watched_groups: Collection[str],
        passes: Passes = EAGER,  # those of the step itself
        measured_rows: Collection[RowName] | None = None,  # rows; None: all
    ) -> None:
        self.temperature = temperature
        self.micro_tokens = micro_tokens
        self.watched_groups = watched_groups  # groups
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
        """The look at these rows, which are a step of the plan; None: nobody looks there."""
        self._step = step
        return self if any(self._is_measured(row) for row in rows) else None

    def before(self, policy: Policy, rows: Sequence[Row], result: StepResult) -> None:
        """Decompose with the weights the gradient was taken at."""
        with self._stopwatch.running(policy.device), torch.no_grad():
            self._pending = self._decompose_step(policy, [rows[i] for i in result.rows], result)

    def after(self, policy: Policy) -> None:
        """One forward pass in the layout of the step's own."""
        assert self._pending is not None, "before() comes first"
        with self._stopwatch.running(policy.device):
            seen, self._pending = self._pending, None
            used, looked = [seen.rows[i] for i in seen.measured_rows], seen.measured_rows
            after = read(
                policy,
                used,
                self.temperature,
                self.micro_tokens,
                self.passes.read,
                seen.measured_micro_batches,
            )
            before = [seen.result.logprobs[i] for i in looked]
            moved = [b - a for a, b in zip(before, after.logprobs, strict=True)]
            taxed_UV = self._log_distributions(policy, after.hidden, seen.tax_tokens)
            self.measurements.append(
                StepMeasurement(
                    step=self._step,
                    rows=seen.result.rows,
                    lengths=tuple(row.num_tokens for row in seen.rows),
                    measured_rows=tuple(looked),
                    advantages=np.concatenate([seen.result.advantages[i] for i in looked]),
                    displacement=np.concatenate(moved),
                    coupling=seen.coupling.cpu(),
                    type_pulls=TypePulls(*(x.cpu() for x in seen.type_pulls)),
                    shared_prefixes=seen.shared_prefixes,
                    tax=learning_tax(seen.tax_logprobs_UV, taxed_UV),
                    drift=solution_drift(used, moved),
                    watched_tokens=seen.watched_tokens,
                    pushes=seen.pushes and seen.pushes.cpu(),
                )
            )

    def _decompose_step(self, policy: Policy, used: list[Row], result: StepResult) -> _PendingStep:
        """What a GPU is to do is queued first; what the CPU does meanwhile comes last."""
        tokens = _concatenate([row.content.response_tokens.astype(np.int64) for row in used])
        pulls, logprobs = _concatenate(result.pulls), _concatenate(result.logprobs)
        hidden, W = torch.cat(list(result.hidden)), policy.decoder.unembedding.detach()
        if self.temperature != 1:
            W = wide(W) / self.temperature
        half = policy.device.type == "cuda" and hidden.dtype in HALF
        precision = torch.float16 if half else None
        errors = Errors(hidden, W, tokens, precision=precision)

        lengths = [row.num_tokens for row in used]
        number: dict[str, int] = {}
        groups_R = np.array([number.setdefault(row.group, len(number)) for row in used])
        groups = torch.from_numpy(np.repeat(groups_R, lengths))
        eta = len(tokens) / self.temperature**2  # pulls are averages: undo the division by N
        looked = [i for i, row in enumerate(used) if self._is_measured(row)]
        whole = len(looked) == len(used)
        of = None if whole else np.flatnonzero(np.repeat([*map(self._is_measured, used)], lengths))
        coupling = decompose_residuals(errors, tokens, pulls, groups, eta=eta, targets=of)
        types = type_pulls(wide(hidden), tokens, errors.here(logprobs), errors.here(pulls))
        watch = [row.group in self.watched_groups and self._is_measured(row) for row in used]
        watched = np.flatnonzero(np.repeat(watch, lengths))
        pushes = None
        if len(watched) and len(tokens) > 1:
            pushes = strongest_pushes(
                errors, pulls, torch.from_numpy(watched), top=TOP_PUSHES, eta=eta
            )
        node_N = prefixes.trie_nodes(used)
        shared = prefixes.measure_shared_prefixes(used, result.pulls, node_N)
        seen, node_n = [used[i] for i in looked], node_N if of is None else node_N[of]
        taxed = tax_tokens(seen, node_n)
        taxed_UV = self._log_distributions(policy, [result.hidden[i] for i in looked], taxed)
        return _PendingStep(
            result, used, looked, coupling, types, shared, taxed, taxed_UV, watched, pushes
        )

    def _is_measured(self, row: Row) -> bool:
        return self.measured_rows is None or row.name in self.measured_rows

    @torch.no_grad()
    def _log_distributions(
        self, policy: Policy, hidden: Sequence[Tensor], at: NDArray[np.int64]
    ) -> Tensor:
        """Log-distributions [U, V] of tokens `at`, by the weights as they are."""
        whole, W = torch.cat(list(hidden)), policy.decoder.unembedding.detach()
        some = whole[torch.from_numpy(at).to(whole.device)]
        return log_distributions(wide(some) / self.temperature, wide(W))


def _concatenate(parts: Sequence[NDArray[np.generic]]) -> Tensor:
    return torch.from_numpy(np.concatenate(parts))
