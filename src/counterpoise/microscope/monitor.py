"""The microscope left on: what every optimizer step of an iteration did, while it does it.

Just before a step the coupling of its tokens is decomposed from the hidden states and the weights
of the loss that the step itself computed; just after it one forward pass, in the step's own batch
layout, gives the displacement. With pull_k = -dL/dlogp_k (advantage, ratio, clip and average in
one), token j's output-layer displacement for one unit of learning rate is

    delta_j = sum_k pull_k <h_j, h_k> <r_j, r_k> / temperature^2

On a GPU products are in half precision where the model itself is (`microscope/errors.py`), and
nothing is waited for in between: the step goes on while the GPU still decomposes.

A `Monitor` is the `look` of `update/step.py`; `microscope/iteration.py` puts its views into
numbers for metrics.jsonl, and tables for tokens/ and pushes/.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.microscope import prefixes
from counterpoise.microscope.coupling import Coupling, decompose_errors
from counterpoise.microscope.errors import HALF, Errors
from counterpoise.microscope.pairs import Pushes, strongest, wide
from counterpoise.microscope.stopwatch import Stopwatch
from counterpoise.microscope.tax import Mean, drift, log_distributions, places, tax
from counterpoise.microscope.token_types import TypePull, type_pulls
from counterpoise.policy.load import Policy
from counterpoise.types import Floats, Row, StepResult
from counterpoise.update.fit import MicroBatch
from counterpoise.update.forward import read
from counterpoise.update.passes import EAGER, Passes

TOP = 6  # pushes kept for a watched token, up and down


@dataclass(frozen=True, slots=True, eq=False)
class StepView:
    """One step's trained tokens, flat [N] in the order of `rows`; everything on the CPU."""

    rows: tuple[int, ...]  # as StepResult.rows
    lengths: tuple[int, ...]  # tokens of each
    advantages: Floats
    displacement: Floats
    coupling: Coupling
    types: TypePull
    shared: prefixes.Shared
    tax: Mean
    drift: Mean
    watched: NDArray[np.int64]  # [n], places among the N tokens
    pushes: Pushes | None  # for the watched ones


@dataclass(frozen=True, slots=True, eq=False)
class _Opened:
    """A step between its two looks; tensors are where the model is."""

    result: StepResult
    rows: list[Row]
    coupling: Coupling
    types: TypePull
    shared: prefixes.Shared
    taxed: NDArray[np.int64]  # places that both signs share
    taxed_UV: Tensor  # their log-distributions
    watched: NDArray[np.int64]
    pushes: Pushes | None


class Monitor:
    """One iteration's look; `views` has an entry for every step that was taken."""

    def __init__(
        self,
        temperature: float,
        micro_tokens: int | MicroBatch,
        watched: Collection[str],
        passes: Passes = EAGER,  # those of the step itself
    ) -> None:
        self.temperature = temperature
        self.micro_tokens = micro_tokens
        self.watched = watched  # groups
        self.passes = passes
        self.views: list[StepView] = []
        self._stopwatch = Stopwatch()
        self._open: _Opened | None = None

    @property
    def seconds(self) -> float:
        return self._stopwatch.seconds

    def before(self, policy: Policy, rows: Sequence[Row], result: StepResult) -> None:
        """Decompose with the weights the gradient was taken at."""
        with self._stopwatch.running(policy.device), torch.no_grad():
            self._open = self._look(policy, [rows[i] for i in result.rows], result)

    def after(self, policy: Policy) -> None:
        """One forward pass in the layout of the step's own."""
        assert self._open is not None, "before() comes first"
        with self._stopwatch.running(policy.device):
            seen, self._open = self._open, None
            after = read(policy, seen.rows, self.temperature, self.micro_tokens, self.passes.read)
            moved = [b - a for a, b in zip(seen.result.logprobs, after.logprobs, strict=True)]
            taxed_UV = self._distributions(policy, after.hidden, seen.taxed)
            self.views.append(
                StepView(
                    rows=seen.result.rows,
                    lengths=tuple(row.num_tokens for row in seen.rows),
                    advantages=np.concatenate(seen.result.advantages),
                    displacement=np.concatenate(moved),
                    coupling=seen.coupling.cpu(),
                    types=TypePull(*(x.cpu() for x in seen.types)),
                    shared=seen.shared,
                    tax=tax(seen.taxed_UV, taxed_UV),
                    drift=drift(seen.rows, moved),
                    watched=seen.watched,
                    pushes=seen.pushes and seen.pushes.cpu(),
                )
            )

    def _look(self, policy: Policy, used: list[Row], result: StepResult) -> _Opened:
        """What a GPU is to do is queued first; what the CPU does meanwhile comes last."""
        tokens = _flat([row.content.response_tokens.astype(np.int64) for row in used])
        pulls, logprobs = _flat(result.pulls), _flat(result.logprobs)
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
        coupling = decompose_errors(errors, tokens, pulls, groups, eta=eta)
        types = type_pulls(wide(hidden), tokens, errors.here(logprobs), errors.here(pulls))
        watched = np.flatnonzero(np.repeat([row.group in self.watched for row in used], lengths))
        pushes = None
        if len(watched) and len(tokens) > 1:
            pushes = strongest(errors, pulls, torch.from_numpy(watched), top=TOP, eta=eta)
        node_N = prefixes.nodes(used)
        shared, taxed = prefixes.shared(used, result.pulls, node_N), places(used, node_N)
        taxed_UV = self._distributions(policy, result.hidden, taxed)
        return _Opened(result, used, coupling, types, shared, taxed, taxed_UV, watched, pushes)

    @torch.no_grad()
    def _distributions(
        self, policy: Policy, hidden: Sequence[Tensor], at: NDArray[np.int64]
    ) -> Tensor:
        """Log-distributions [U, V] of tokens `at`, by the weights as they are."""
        whole, W = torch.cat(list(hidden)), policy.decoder.unembedding.detach()
        some = whole[torch.from_numpy(at).to(whole.device)]
        return log_distributions(wide(some) / self.temperature, wide(W))


def first_mixed(rows: Sequence[Row], count: int) -> frozenset[str]:
    """The first groups that have rows of both signs."""
    signs: dict[str, set[int]] = {}
    for row in rows:
        signs.setdefault(row.group, set()).add(row.sign)
    mixed = [group for group, found in signs.items() if {1, -1} <= found]
    return frozenset(mixed[:count])


def _flat(parts: Sequence[NDArray[np.generic]]) -> Tensor:
    return torch.from_numpy(np.concatenate(parts))
