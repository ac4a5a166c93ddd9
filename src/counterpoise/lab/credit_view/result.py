"""The result of `poise credit`, from which the terminal table, the page and --json are made."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from counterpoise.credit.view import unit_weights
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
    read_stored_iteration,
)
from counterpoise.model.load import Policy
from counterpoise.report.traces import Vocabulary, read_vocabulary
from counterpoise.store.credit_tables import write_weights
from counterpoise.store.folder import is_imported
from counterpoise.store.imported import read_origin
from counterpoise.types import Row

SAME_WEIGHTS_TOLERANCE = 1e-3  # nats; sampler and trainer with the same weights agree this closely


@dataclass(frozen=True, slots=True, eq=False)
class CreditViewResult:
    """Weightings of one stored iteration, with statistics and their agreement.

    Example:
        CreditViewResult(...).weightings[0].statistics.residual == 0.65
    """

    source: StoredIteration
    weightings: list[WeightedRows]
    uniform: WeightStatistics
    agreement: list[list[float | None]]  # rank correlations [M, M], in the order of the weightings
    # Of the policy against the sampler; None: no policy was needed.
    mean_logprob_error: float | None
    vocabulary: Vocabulary

    @property
    def rows(self) -> list[Row]:
        return self.source.rows

    @property
    def rollouts(self) -> int:
        return sum(len(group.rollouts) for group in self.source.groups)

    @property
    def num_positive(self) -> int:
        return sum(row.sign > 0 for row in self.rows)

    @property
    def tokens(self) -> int:
        return sum(row.num_tokens for row in self.rows)

    @property
    def scored_by(self) -> str | None:
        """Which weights scored the rollouts, and how close they are to those that sampled them.

        None where no weighting needed the policy.
        """
        source = self.source
        if source.weights is None or not any(
            weighting.needed_policy for weighting in self.weightings
        ):
            return None
        description = source.weights.describe(source.iteration)
        if self.mean_logprob_error is None or self.mean_logprob_error < SAME_WEIGHTS_TOLERANCE:
            return description
        return (
            f"{description}; log-probabilities differ from the sampler's by "
            f"{self.mean_logprob_error:.3f} on average"
        )

    def store(self) -> Path:
        """Store the weights in the run folder, where `poise serve` colours tokens by them."""
        return write_weights(
            self.source.path,
            self.source.iteration,
            [row.name for row in self.rows],
            {weighting.choice.label: weighting.weights for weighting in self.weightings},
        )

    def to_json(self) -> dict[str, Any]:
        """Statistics, and the weights of every token with six significant digits."""
        source = self.source
        return {
            "run": str(source.path),
            "iteration": source.iteration,
            "advantage": source.advantage,
            "read_by": self.scored_by,
            "logprobs_off": self.mean_logprob_error,
            "rollouts": self.rollouts,
            "uniform": asdict(self.uniform),
            "weights": [
                {
                    "name": weighting.choice.name,
                    "settings": list(weighting.choice.settings),
                    "seconds": weighting.seconds,
                    **asdict(weighting.statistics),
                }
                for weighting in self.weightings
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
                        [float(f"{weight:.6g}") for weight in weighting.weights[row_index].tolist()]
                        for weighting in self.weightings
                    ],
                }
                for row_index, row in enumerate(self.rows)
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
    """Apply the named weightings to the rollouts of one iteration of the run at `path`."""
    parse_weightings(names, settings)  # reports a misspelt name before anything is read
    source = read_stored_iteration(path, iteration, model)
    run_weighting = WeightingChoice(
        source.config.credit.weights, tuple(source.config.credit.settings)
    )
    session = WeightingSession(source, notify)
    weightings = list(weigh_all(session, parse_weightings(names, settings, run_weighting)))
    return CreditViewResult(
        source,
        weightings,
        weight_statistics(source.rows, unit_weights(source.rows)),
        rank_agreement([weighting.weights for weighting in weightings]),
        session.mean_logprob_error,
        _vocabulary(path, session.policy),
    )


def _vocabulary(path: Path, policy: Policy | None) -> Vocabulary:
    """Vocabulary of the run, else of the loaded model, else of the import's tokenizer."""
    vocabulary = read_vocabulary(path)
    if vocabulary.texts:
        return vocabulary
    if policy:
        return Vocabulary(tuple(policy.vocabulary_texts()))
    if is_imported(path) and (name := read_origin(path).tokenizer):
        try:
            tokenizer = load_tokenizer(name)
        except PoiseError:  # not on this machine: tokens are shown by number
            return vocabulary
        # Decode every token by itself: joined tokens can merge into other text.
        texts = tokenizer.batch_decode([[token_id] for token_id in range(len(tokenizer))])
        return Vocabulary(tuple(texts))
    return vocabulary
