"""Apply weightings to stored rows and summarise the weights.

    mean        of w over the tokens of rows with A > 0, and with A < 0
    half        smallest share of the tokens that carries half of sum |A w|
    residual    |sum A w| / sum |A w| on shared prefixes (microscope/prefixes.py), with the rows of
                the iteration taken as one optimizer step; shown next to that of w = 1

All weightings share one view of the rows, so what several of them need is computed once. The policy
is loaded only when a weighting needs it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from counterpoise.credit.assign import parse_settings
from counterpoise.credit.view import CreditView, NoPolicyError, PolicyReader, unit_weights
from counterpoise.errors import PoiseError
from counterpoise.lab.credit_view.selection import WeightingChoice
from counterpoise.lab.credit_view.stored_iteration import StoredIteration
from counterpoise.microscope.prefixes import exchangeability_residual
from counterpoise.model.fit_memory import FittedSize
from counterpoise.model.load import Policy
from counterpoise.types import Floats, Row
from counterpoise.variants import TOKEN_WEIGHTS

Notify = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class WeightStatistics:
    """Statistics of the weights of one weighting.

    Example:
        WeightStatistics(1.0, 0.8, 0.3, 0.0, 2.0, zeros=0.1, ones=0.6, half=0.2, residual=0.5)
    """

    mean_positive: float | None  # None: no such rows
    mean_negative: float | None
    spread: float  # standard deviation over all tokens
    lowest: float
    highest: float
    zeros: float  # share of the tokens with weight 0
    ones: float  # and with weight 1
    half: float  # smallest share of the tokens that carries half of sum |A w|
    residual: float | None  # None: no rollouts share a prefix


@dataclass(frozen=True, slots=True, eq=False)
class WeightedRows:
    """The weights that one weighting gave to the rows."""

    choice: WeightingChoice
    weights: list[Floats]  # per row [T]
    statistics: WeightStatistics
    seconds: float  # without the policy's forward pass over the rows, which is shared
    needed_policy: bool


@dataclass(slots=True)
class WeightingSession:
    """Computes weightings of stored rows, and loads the policy when the first one needs it."""

    source: StoredIteration
    notify: Notify = lambda message: None
    mean_logprob_error: float | None = None  # mean |log p - log p at sampling| of the loaded policy
    _view: CreditView | None = None

    @property
    def policy(self) -> Policy | None:
        """The policy; None as long as no weighting needed it."""
        return self._view.policy if self._view else None

    def weigh(self, weighting: WeightingChoice) -> WeightedRows:
        """Compute the weights of all rows by one weighting."""
        weights_of = TOKEN_WEIGHTS.load(weighting.name)
        settings = parse_settings(weighting.name, weights_of, weighting.settings)
        start_time = time.perf_counter()
        rows = self.source.rows
        try:
            # Most weightings need only the rows, so try without the policy, which is slow to load.
            returned_weights, needed_policy = weights_of(CreditView(rows), **settings), False
        except NoPolicyError:
            # Loading and the shared forward pass do not count towards the time of one weighting.
            view = self._view or self._with_policy(weighting.name)
            start_time = time.perf_counter()
            returned_weights, needed_policy = weights_of(view, **settings), True
        seconds = time.perf_counter() - start_time
        weights = unit_weights(rows) if returned_weights is None else list(returned_weights)
        check_weights(weighting.name, rows, weights)
        return WeightedRows(
            weighting, weights, weight_statistics(rows, weights), seconds, needed_policy
        )

    def _with_policy(self, name: str) -> CreditView:
        source, config = self.source, self.source.config
        if source.weights is None:
            raise PoiseError(
                f"{name} needs the policy, and an imported run has none: give the model that "
                "sampled its rollouts as --model, or choose weights that do not need one"
            )
        self.notify("loading the model")
        policy = source.load_policy()
        micro_batch = FittedSize(config.update.micro_tokens, notify=self.notify)
        reader = PolicyReader(
            policy, config.sample.temperature, micro_batch, source.iteration, config.loop.seed
        )
        self._view = CreditView(source.rows, reader)
        # The first access to the log-probabilities runs the forward pass over all rows.
        self.notify("reading the rollouts")
        self.mean_logprob_error = _mean_logprob_error(source.rows, self._view.logprobs)
        return self._view


def weigh_all(
    session: WeightingSession, weightings: Sequence[WeightingChoice]
) -> Iterator[WeightedRows]:
    """Compute the weightings one after the other, announcing each."""
    for number, weighting in enumerate(weightings, 1):
        session.notify(f"{weighting.label} ({number} of {len(weightings)})")
        yield session.weigh(weighting)


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
        residual=exchangeability_residual(rows, pulls),
    )


def share_carrying_half(sizes_N: np.ndarray) -> float:
    """The smallest share of the tokens that carries half of the sum; 0 where the sum is 0.

    Example:
        >>> share_carrying_half(np.array([1.0, 1.0, 1.0, 1.0]))
        0.5
        >>> share_carrying_half(np.array([0.0, 0.0, 9.0, 1.0]))
        0.25
    """
    cumulative = np.cumsum(np.sort(sizes_N)[::-1])
    if not cumulative[-1]:
        return 0.0
    return float((np.searchsorted(cumulative, cumulative[-1] / 2) + 1) / len(sizes_N))


def check_weights(name: str, rows: Sequence[Row], weights: Sequence[Floats]) -> None:
    """Check that a weighting gave a finite number for every token of every row."""
    if len(weights) != len(rows):
        raise PoiseError(
            f"{name} returned weights for {len(weights)} rows instead of {len(rows)}: fix it"
        )
    for row, w_T in zip(rows, weights, strict=True):
        row_name = f"{name}, row {row.group}[{row.index}]"
        if np.shape(w_T) != (row.num_tokens,):
            raise PoiseError(
                f"{row_name}: weights of shape {np.shape(w_T)} for {row.num_tokens} tokens: fix it"
            )
        if not np.isfinite(w_T).all():
            raise PoiseError(f"{row_name}: a weight is not finite: try other --settings, or fix it")


def _mean_logprob_error(rows: Sequence[Row], logprobs: Sequence[Floats]) -> float | None:
    """Mean |log p - log p at sampling|; None where the sampler's were not stored."""
    sampled_N = np.concatenate([row.content.sampled_logprobs for row in rows]).astype(np.float64)
    # Imported rollouts, and some samplers, have NaN where no log-probability is known.
    finite_N = np.isfinite(sampled_N)
    if not finite_N.any():
        return None
    return float(np.abs(np.concatenate(logprobs) - sampled_N)[finite_N].mean())
