"""All that `poise credit` found: what the terminal, the page and --json are made from."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from counterpoise.credit.view import unit_weights
from counterpoise.errors import PoiseError
from counterpoise.hosts.importing.tokens import load_tokenizer
from counterpoise.lab.credit_view.agreement import agreement
from counterpoise.lab.credit_view.measure import Glass, Numbers, Tell, Weighed, numbers, weigh_all
from counterpoise.lab.credit_view.selection import Asked, asked_for
from counterpoise.lab.credit_view.stored_iteration import Stored, read_stored, tokenizer_of
from counterpoise.model.load import Policy
from counterpoise.report.traces import Vocabulary, read_vocabulary
from counterpoise.types import Row

AGREES = 1e-3  # nats: so near are sampler and trainer with the same weights


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """Example: Result(...).weighed[0].numbers.residual == 0.65"""

    stored: Stored
    weighed: list[Weighed]
    uniform: Numbers
    agreement: list[list[float | None]]  # of the weightings, in their order
    off: float | None  # mean |log p - log p at sampling| of the policy that read; None: none did
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
        if stored.weights is None or not any(one.read for one in self.weighed):
            return None
        said = stored.weights.told(stored.iteration)
        if self.off is None or self.off < AGREES:
            return said
        return f"{said}; log-probabilities are off by {self.off:.3f} on average"

    def as_json(self) -> dict[str, Any]:
        """Numbers, and the weights of every token: six digits of them."""
        stored = self.stored
        return {
            "run": str(stored.path),
            "iteration": stored.iteration,
            "advantage": stored.config.credit.name,
            "read_by": self.read_by,
            "logprobs_off": self.off,
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


def look(
    names: str,
    path: Path,
    settings: tuple[str, ...] = (),
    iteration: int | None = None,
    model: str | None = None,
    tell: Tell = lambda message: None,
) -> Result:
    """The weightings that are named, on the rollouts of one iteration of the run at `path`."""
    asked_for(names, settings)  # a misspelt name is found before anything is read
    stored = read_stored(path, iteration, model)
    own = Asked(stored.config.credit.weights, tuple(stored.config.credit.settings))
    glass = Glass(stored, tell)
    weighed = list(weigh_all(glass, asked_for(names, settings, own)))
    return Result(
        stored,
        weighed,
        numbers(stored.rows, unit_weights(stored.rows)),
        agreement([one.weights for one in weighed]),
        glass.off,
        _vocabulary(path, glass.policy),
    )


def _vocabulary(path: Path, policy: Policy | None) -> Vocabulary:
    """The run's own, that of the model that was loaded, or of the tokenizer it was imported by."""
    found = read_vocabulary(path)
    if found.texts:
        return found
    if policy:
        return Vocabulary(tuple(policy.vocabulary_texts()))
    if name := tokenizer_of(path):
        try:
            tokenizer = load_tokenizer(name)
        except PoiseError:  # not on this machine: tokens are shown by number
            return found
        texts = tokenizer.batch_decode([[i] for i in range(len(tokenizer))])
        return Vocabulary(tuple(texts))
    return found
