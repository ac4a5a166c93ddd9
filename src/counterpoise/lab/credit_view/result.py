"""All that `poise credit` found: what the terminal, the page and --json are made from."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from counterpoise.credit.view import ones
from counterpoise.errors import PoiseError
from counterpoise.hosts.importing.tokens import load_tokenizer
from counterpoise.lab.credit_view.agreement import rank_agreement
from counterpoise.lab.credit_view.measure import (
    Notify,
    WeightedRows,
    WeightingSession,
    WeightStatistics,
    weigh_all,
    weight_statistics,
)
from counterpoise.lab.credit_view.selection import WeightingChoice, parse_weightings
from counterpoise.lab.credit_view.stored_iteration import (
    StoredIteration,
    imported_tokenizer,
    read_stored_iteration,
)
from counterpoise.model.load import Policy
from counterpoise.report.traces import Vocabulary, read_vocabulary
from counterpoise.types import Row

SAME_WEIGHTS_TOLERANCE = 1e-3  # nats: so near are sampler and trainer with the same weights


@dataclass(frozen=True, slots=True, eq=False)
class CreditViewResult:
    """Example: CreditViewResult(...).weighed[0].numbers.residual == 0.65"""

    stored: StoredIteration
    weighed: list[WeightedRows]
    uniform: WeightStatistics
    agreement: list[list[float | None]]  # of the weightings, in their order
    mean_logprob_error: (
        float | None
    )  # mean |log p - log p at sampling| of the policy that read; None: none did
    vocabulary: Vocabulary

    @property
    def rows(self) -> list[Row]:
        return self.stored.rows

    @property
    def rollouts(self) -> int:
        return sum(len(group.rollouts) for group in self.stored.groups)

    @property
    def right(self) -> int:
        return sum(row.sign > 0 for row in self.rows)

    @property
    def tokens(self) -> int:
        return sum(row.num_tokens for row in self.rows)

    @property
    def read_by(self) -> str | None:
        """Who read the rollouts, and how near that is to who drew them; None: nobody had to."""
        stored = self.stored
        if stored.weights is None or not any(one.needed_policy for one in self.weighed):
            return None
        said = stored.weights.describe(stored.iteration)
        if self.mean_logprob_error is None or self.mean_logprob_error < SAME_WEIGHTS_TOLERANCE:
            return said
        return f"{said}; log-probabilities are off by {self.mean_logprob_error:.3f} on average"

    def to_json(self) -> dict[str, Any]:
        """Numbers, and the weights of every token: six digits of them."""
        stored = self.stored
        return {
            "run": str(stored.path),
            "iteration": stored.iteration,
            "advantage": stored.config.credit.name,
            "read_by": self.read_by,
            "logprobs_off": self.mean_logprob_error,
            "rollouts": self.rollouts,
            "uniform": asdict(self.uniform),
            "weights": [
                {
                    "name": one.asked.name,
                    "settings": list(one.asked.settings),
                    "seconds": one.seconds,
                    **asdict(one.numbers),
                }
                for one in self.weighed
            ],
            "agreement": self.agreement,
            "rows": [
                {
                    "group": row.group,
                    "index": row.index,
                    "reward": row.content.reward,
                    "advantage": row.advantage,
                    "tokens": row.content.response_tokens.tolist(),
                    "weights": [
                        [float(f"{w:.6g}") for w in one.weights[i].tolist()] for one in self.weighed
                    ],
                }
                for i, row in enumerate(self.rows)
            ],
        }


def compare_weightings(
    names: str,
    path: Path,
    settings: tuple[str, ...] = (),
    iteration: int | None = None,
    model: str | None = None,
    notify: Notify = lambda message: None,
) -> CreditViewResult:
    """The weightings that are named, on the rollouts of one iteration of the run at `path`."""
    parse_weightings(names, settings)  # a misspelt name is found before anything is read
    stored = read_stored_iteration(path, iteration, model)
    own = WeightingChoice(stored.config.credit.weights, tuple(stored.config.credit.settings))
    glass = WeightingSession(stored, notify)
    weighed = list(weigh_all(glass, parse_weightings(names, settings, own)))
    return CreditViewResult(
        stored,
        weighed,
        weight_statistics(stored.rows, ones(stored.rows)),
        rank_agreement([one.weights for one in weighed]),
        glass.mean_logprob_error,
        _vocabulary(path, glass.policy),
    )


def _vocabulary(path: Path, policy: Policy | None) -> Vocabulary:
    """The run's own, that of the model that was loaded, or of the tokenizer it was imported by."""
    found = read_vocabulary(path)
    if found.texts:
        return found
    if policy:
        return Vocabulary(tuple(policy.pieces()))
    if name := imported_tokenizer(path):
        try:
            tokenizer = load_tokenizer(name)
        except PoiseError:  # not on this machine: tokens are shown by number
            return found
        texts = tokenizer.batch_decode([[i] for i in range(len(tokenizer))])
        return Vocabulary(tuple(texts))
    return found
