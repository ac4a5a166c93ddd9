"""Weightings on stored rows, and what they come to in numbers.

    mean        of w over the tokens of rows with A > 0, and with A < 0
    half        share of the tokens that carry half of sum |A w|, the heaviest first
    residual    what is left of A w on shared prefixes (microscope/prefixes.py); the rows of the
                iteration count as one optimizer step. Beside it stands that of w = 1

All weightings look through one View, so what several need is computed once. One that needs no
policy gets none: nothing is loaded for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from counterpoise.credit.assign import read_settings
from counterpoise.credit.view import NoPolicyError, Reader, View, ones
from counterpoise.errors import PoiseError
from counterpoise.lab.credit_view.selection import WeightingChoice
from counterpoise.lab.credit_view.stored_iteration import StoredIteration
from counterpoise.microscope.prefixes import residual
from counterpoise.model.fit_memory import MicroBatch
from counterpoise.model.load import Policy
from counterpoise.types import Floats, Row
from counterpoise.variants import TOKEN_WEIGHTS

Notify = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class WeightStatistics:
    """Example: WeightStatistics(1.0, 0.8, 0.3, 0.0, 2.0, zeros=0.1, ones=0.6, half=0.2, residual=0.5)"""

    mean_positive: float | None  # None: no such rows
    mean_negative: float | None
    spread: float  # standard deviation over all tokens
    lowest: float
    highest: float
    zeros: float  # share of the tokens
    ones: float
    half: float
    residual: float | None  # None: nothing is shared


@dataclass(frozen=True, slots=True, eq=False)
class WeightedRows:
    """What one weighting made of the rows."""

    asked: WeightingChoice
    weights: list[Floats]  # per row [T]
    numbers: WeightStatistics
    seconds: float  # without the policy's pass over the rows, which all share
    needed_policy: bool  # it needed the policy


@dataclass(slots=True)
class WeightingSession:
    """The rows, and the policy once a weighting asks for it."""

    stored: StoredIteration
    notify: Notify = lambda message: None
    mean_logprob_error: float | None = (
        None  # mean |log p - log p at sampling|, of the policy that reads
    )
    _view: View | None = None

    @property
    def policy(self) -> Policy | None:
        """None as long as nobody asked for it."""
        return self._view.policy if self._view else None

    def weigh(self, weighting: WeightingChoice) -> WeightedRows:
        weights_of = TOKEN_WEIGHTS.load(weighting.name)
        settings = read_settings(weighting.name, weights_of, weighting.settings)
        start = time.perf_counter()
        rows = self.stored.rows
        try:
            found, read = weights_of(View(rows), **settings), False
        except NoPolicyError:
            view = self._view or self._with_policy(weighting.name)
            start = time.perf_counter()
            found, read = weights_of(view, **settings), True
        seconds = time.perf_counter() - start
        weights = ones(rows) if found is None else list(found)
        check_weights(weighting.name, rows, weights)
        return WeightedRows(weighting, weights, weight_statistics(rows, weights), seconds, read)

    def _with_policy(self, name: str) -> View:
        stored, config = self.stored, self.stored.config
        if stored.weights is None:
            raise PoiseError(
                f"{name} needs the policy, and an imported run has none: name the model that drew "
                "its rollouts by --model, or choose weights that need none"
            )
        self.notify("loading the model")
        policy = stored.load_policy()
        micro = MicroBatch(config.update.micro_tokens, tell=self.notify)
        reader = Reader(
            policy, config.sample.temperature, micro, stored.iteration, config.loop.seed
        )
        self._view = View(stored.rows, reader)
        self.notify("reading the rollouts")
        self.mean_logprob_error = _off(stored.rows, self._view.logprobs)
        return self._view


def weigh_all(
    session: WeightingSession, weightings: Sequence[WeightingChoice]
) -> Iterator[WeightedRows]:
    """One after the other, each said before it begins."""
    for number, one in enumerate(weightings, 1):
        session.notify(f"{one.label} ({number} of {len(weightings)})")
        yield session.weigh(one)


def weight_statistics(rows: Sequence[Row], weights: Sequence[Floats]) -> WeightStatistics:
    w_N = np.concatenate(weights).astype(np.float64)
    lengths = [row.num_tokens for row in rows]
    A_N = np.repeat([row.advantage for row in rows], lengths)
    pulls = [row.advantage * w_T.astype(np.float64) for row, w_T in zip(rows, weights, strict=True)]
    return WeightStatistics(
        mean_positive=float(w_N[A_N > 0].mean()) if (A_N > 0).any() else None,
        mean_negative=float(w_N[A_N < 0].mean()) if (A_N < 0).any() else None,
        spread=float(w_N.std()),
        lowest=float(w_N.min()),
        highest=float(w_N.max()),
        zeros=float((w_N == 0).mean()),
        ones=float((w_N == 1).mean()),
        half=share_carrying_half(np.abs(A_N * w_N)),
        residual=residual(rows, pulls),
    )


def share_carrying_half(sizes_N: np.ndarray) -> float:
    """The smallest share of the tokens that carries half of the sum; 0 where there is none.

    Example:
        >>> half(np.array([1.0, 1.0, 1.0, 1.0])), half(np.array([0.0, 0.0, 9.0, 1.0]))
        (0.5, 0.25)
    """
    summed = np.cumsum(np.sort(sizes_N)[::-1])
    if not summed[-1]:
        return 0.0
    return float((np.searchsorted(summed, summed[-1] / 2) + 1) / len(sizes_N))


def check_weights(name: str, rows: Sequence[Row], weights: Sequence[Floats]) -> None:
    """What a weighting owes: a finite number for every token of every row."""
    if len(weights) != len(rows):
        raise PoiseError(f"{name} gave weights for {len(weights)} rows of {len(rows)}: mend it")
    for row, w_T in zip(rows, weights, strict=True):
        where = f"{name}, row {row.group}[{row.index}]"
        if np.shape(w_T) != (row.num_tokens,):
            raise PoiseError(f"{where}: {np.shape(w_T)} weights, {row.num_tokens} tokens: mend it")
        if not np.isfinite(w_T).all():
            raise PoiseError(f"{where}: a weight is not finite: try other --settings, or mend it")


def _off(rows: Sequence[Row], logprobs: Sequence[Floats]) -> float | None:
    """None where the sampler's log-probabilities were not stored."""
    sampled_N = np.concatenate([row.content.sampled_logprobs for row in rows]).astype(np.float64)
    known_N = np.isfinite(sampled_N)
    if not known_N.any():
        return None
    return float(np.abs(np.concatenate(logprobs) - sampled_N)[known_N].mean())
