"""The microscope left on: what every optimizer step of an iteration did, while it does it.

Just before a step the coupling of its tokens is decomposed from the hidden states and the weights
of the loss that the step itself computed; just after it one forward pass, in the step's own batch
layout, gives the displacement. With pull_k = -dL/dlogp_k (advantage, ratio, clip and average in
one), token j's output-layer displacement for one unit of learning rate is

    delta_j = sum_k pull_k <h_j, h_k> <r_j, r_k> / temperature^2

A `Monitor` is the `look` of `update/step.py`; `microscope/iteration.py` puts its views into
numbers for metrics.jsonl, and tables for tokens/ and pushes/.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.microscope import prefixes
from counterpoise.microscope.coupling import Coupling, decompose
from counterpoise.microscope.pairs import Pushes, strongest
from counterpoise.microscope.token_types import TypePull, type_pulls
from counterpoise.policy.load import Policy
from counterpoise.types import Floats, Row, StepResult
from counterpoise.update.forward import score

TOP = 6  # pushes kept for a watched token, up and down


@dataclass(frozen=True, slots=True, eq=False)
class StepView:
    """One step's trained tokens, flat [N] in the order of `rows`."""

    rows: tuple[int, ...]  # as StepResult.rows
    lengths: tuple[int, ...]  # tokens of each
    advantages: Floats
    displacement: Floats
    coupling: Coupling  # on the CPU
    types: TypePull  # on the CPU
    shared: prefixes.Shared
    watched: NDArray[np.int64]  # [n], places among the N tokens
    pushes: Pushes | None  # for the watched ones


class Monitor:
    """One iteration's look; `views` has an entry for every step that was taken."""

    def __init__(self, temperature: float, micro_tokens: int, watched: Collection[str]) -> None:
        self.temperature = temperature
        self.micro_tokens = micro_tokens
        self.watched = watched  # groups
        self.views: list[StepView] = []
        self.seconds = 0.0
        self._open: tuple[StepResult, list[Row], Coupling, TypePull, _Watched] | None = None

    def before(self, policy: Policy, rows: Sequence[Row], result: StepResult) -> None:
        """Decompose with the weights the gradient was taken at."""
        start = time.perf_counter()
        used = [rows[i] for i in result.rows]
        tokens = _flat([row.content.response_tokens.astype(np.int64) for row in used], policy)
        pulls = _flat(result.pulls, policy)
        hidden = torch.cat(list(result.hidden))
        number: dict[str, int] = {}
        groups_R = [number.setdefault(row.group, len(number)) for row in used]
        lengths = torch.tensor([row.num_tokens for row in used])
        groups = torch.tensor(groups_R).repeat_interleave(lengths).to(policy.device)
        W = policy.decoder.unembedding.detach() / self.temperature
        eta = (
            len(tokens) / self.temperature**2
        )  # decompose divides by N; pulls are averages already
        coupling = decompose(hidden, W, tokens, pulls, groups, eta=eta)
        types = type_pulls(hidden.float(), tokens, _flat(result.logprobs, policy), pulls)
        watched = np.flatnonzero(
            np.repeat([row.group in self.watched for row in used], lengths.numpy())
        )
        pushes = None
        if len(watched) and len(tokens) > 1:
            places = torch.from_numpy(watched).to(policy.device)
            pushes = strongest(hidden.float(), W.float(), tokens, pulls, places, top=TOP, eta=eta)
        self._open = (result, used, coupling.cpu(), types, (watched, pushes))
        self.seconds += time.perf_counter() - start

    def after(self, policy: Policy) -> None:
        """One forward pass in the layout of the step's own."""
        assert self._open is not None, "before() comes first"
        start = time.perf_counter()
        result, used, coupling, types, (watched, pushes) = self._open
        after = score(policy, used, self.temperature, self.micro_tokens)
        self.views.append(
            StepView(
                rows=result.rows,
                lengths=tuple(row.num_tokens for row in used),
                advantages=np.concatenate(result.advantages),
                displacement=np.concatenate(after) - np.concatenate(result.logprobs),
                coupling=coupling,
                types=TypePull(*(x.cpu() for x in types)),
                shared=prefixes.shared(used, result.pulls),
                watched=watched,
                pushes=pushes,
            )
        )
        self._open = None
        self.seconds += time.perf_counter() - start


_Watched = tuple[NDArray[np.int64], Pushes | None]


def _flat(parts: Sequence[NDArray[np.generic]], policy: Policy) -> Tensor:
    return torch.from_numpy(np.concatenate(parts)).to(policy.device)
