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
from counterpoise.microscope.coupling import Coupling, decompose_errors
from counterpoise.microscope.learning_tax import Mean, drift, log_distributions, places, tax
from counterpoise.microscope.monitor_sampling import Name
from counterpoise.microscope.pairs import Pushes, strongest
from counterpoise.microscope.stopwatch import Stopwatch
from counterpoise.microscope.token_types import TypePull, type_pulls
from counterpoise.model.fit_memory import MicroBatch
from counterpoise.model.load import Policy
from counterpoise.model.residuals import HALF_DTYPES, Residuals, wide
from counterpoise.model.scoring import micro_batches, score_tokens
from counterpoise.types import Floats, Row, StepResult
from counterpoise.update.passes import EAGER, Passes

TOP = 6  # pushes kept for a watched token, up and down


@dataclass(frozen=True, slots=True, eq=False)
class StepView:
    """One step's trained tokens, flat [N] in the order of `rows`, and those looked at [n], in the
    order of `looked`; everything on the CPU.
    """

    step: int  # of the plan
    rows: tuple[int, ...]  # as StepResult.rows
    lengths: tuple[int, ...]  # tokens of each
    looked: tuple[int, ...]  # places among `rows`
    advantages: Floats  # [n]
    displacement: Floats  # [n]
    coupling: Coupling  # [n]
    types: TypePull
    shared: prefixes.Shared
    tax: Mean
    drift: Mean
    watched: NDArray[np.int64]  # places among the N tokens
    pushes: Pushes | None  # for the watched ones


@dataclass(frozen=True, slots=True, eq=False)
class _Opened:
    """A step between its two looks; tensors are where the model is."""

    result: StepResult
    rows: list[Row]
    looked: list[int]  # places among `rows`
    coupling: Coupling
    types: TypePull
    shared: prefixes.Shared
    taxed: NDArray[np.int64]  # places that both signs share
    taxed_UV: Tensor  # their log-distributions
    watched: NDArray[np.int64]
    pushes: Pushes | None

    def cut(self, looked: Sequence[Row], micro_tokens: int) -> Iterator[list[int]]:
        """What is looked at, in the passes it was in: in others it would be rounded otherwise."""
        place = {i: n for n, i in enumerate(self.looked)}
        for batch in micro_batches(self.rows, micro_tokens):
            if part := [place[i] for i in batch if i in place]:
                yield part


class Monitor:
    """One iteration's look; `views` has an entry for every step that was looked at."""

    def __init__(
        self,
        temperature: float,
        micro_tokens: int | MicroBatch,
        watched: Collection[str],
        passes: Passes = EAGER,  # those of the step itself
        looked: Collection[Name] | None = None,  # rows; None: all
    ) -> None:
        self.temperature = temperature
        self.micro_tokens = micro_tokens
        self.watched = watched  # groups
        self.passes = passes
        self.looked = looked
        self.views: list[StepView] = []
        self._step = 0
        self._stopwatch = Stopwatch()
        self._open: _Opened | None = None

    @property
    def seconds(self) -> float:
        return self._stopwatch.seconds

    def at(self, step: int, rows: Sequence[Row]) -> Monitor | None:
        """The look at these rows, which are a step of the plan; None: nobody looks there."""
        self._step = step
        return self if any(self._wanted(row) for row in rows) else None

    def before_update(self, policy: Policy, rows: Sequence[Row], result: StepResult) -> None:
        """Decompose with the weights the gradient was taken at."""
        with self._stopwatch.running(policy.device), torch.no_grad():
            self._open = self._look(policy, [rows[i] for i in result.rows], result)

    def after_update(self, policy: Policy) -> None:
        """One forward pass in the layout of the step's own."""
        assert self._open is not None, "before() comes first"
        with self._stopwatch.running(policy.device):
            seen, self._open = self._open, None
            used, looked = [seen.rows[i] for i in seen.looked], seen.looked
            after = score_tokens(
                policy, used, self.temperature, self.micro_tokens, self.passes.read, seen.cut
            )
            before = [seen.result.logprobs[i] for i in looked]
            moved = [b - a for a, b in zip(before, after.logprobs, strict=True)]
            taxed_UV = self._distributions(policy, after.hidden, seen.taxed)
            self.views.append(
                StepView(
                    step=self._step,
                    rows=seen.result.rows,
                    lengths=tuple(row.num_tokens for row in seen.rows),
                    looked=tuple(looked),
                    advantages=np.concatenate([seen.result.advantages[i] for i in looked]),
                    displacement=np.concatenate(moved),
                    coupling=seen.coupling.cpu(),
                    types=TypePull(*(x.cpu() for x in seen.types)),
                    shared=seen.shared,
                    tax=tax(seen.taxed_UV, taxed_UV),
                    drift=drift(used, moved),
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
        half = policy.device.type == "cuda" and hidden.dtype in HALF_DTYPES
        precision = torch.float16 if half else None
        errors = Residuals(hidden, W, tokens, precision=precision)

        lengths = [row.num_tokens for row in used]
        number: dict[str, int] = {}
        groups_R = np.array([number.setdefault(row.group, len(number)) for row in used])
        groups = torch.from_numpy(np.repeat(groups_R, lengths))
        eta = len(tokens) / self.temperature**2  # pulls are averages: undo the division by N
        looked = [i for i, row in enumerate(used) if self._wanted(row)]
        whole = len(looked) == len(used)
        of = None if whole else np.flatnonzero(np.repeat([*map(self._wanted, used)], lengths))
        coupling = decompose_errors(errors, tokens, pulls, groups, eta=eta, of=of)
        types = type_pulls(
            wide(hidden), tokens, errors.to_device(logprobs), errors.to_device(pulls)
        )
        watch = [row.group in self.watched and self._wanted(row) for row in used]
        watched = np.flatnonzero(np.repeat(watch, lengths))
        pushes = None
        if len(watched) and len(tokens) > 1:
            pushes = strongest(errors, pulls, torch.from_numpy(watched), top=TOP, eta=eta)
        node_N = prefixes.nodes(used)
        shared = prefixes.shared(used, result.pulls, node_N)
        seen, node_n = [used[i] for i in looked], node_N if of is None else node_N[of]
        taxed = places(seen, node_n)
        taxed_UV = self._distributions(policy, [result.hidden[i] for i in looked], taxed)
        return _Opened(
            result, used, looked, coupling, types, shared, taxed, taxed_UV, watched, pushes
        )

    def _wanted(self, row: Row) -> bool:
        return self.looked is None or row.name in self.looked

    @torch.no_grad()
    def _distributions(
        self, policy: Policy, hidden: Sequence[Tensor], at: NDArray[np.int64]
    ) -> Tensor:
        """Log-distributions [U, V] of tokens `at`, by the weights as they are."""
        whole, W = torch.cat(list(hidden)), policy.decoder.unembedding.detach()
        some = whole[torch.from_numpy(at).to(whole.device)]
        return log_distributions(wide(some) / self.temperature, wide(W))


def _flat(parts: Sequence[NDArray[np.generic]]) -> Tensor:
    return torch.from_numpy(np.concatenate(parts))
