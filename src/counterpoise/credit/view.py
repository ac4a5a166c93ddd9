"""What a token weighting can see: the rows with signal, and the policy's reading of them.

Anything that costs a forward pass is computed on first use, once, and only for rows with signal: a
row without an advantage has nothing to weight. A host framework that does not expose its policy
provides no reader; a weighting that needs one then fails with `NoPolicyError`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.credit.hints import hinted_prompts
from counterpoise.errors import PoiseError
from counterpoise.model.fit_memory import FittedSize
from counterpoise.model.load import Policy
from counterpoise.model.pieces import split_into_pieces
from counterpoise.model.reading_passes import EAGER_READING, ReadingPasses
from counterpoise.model.scoring import TokenScores, score_logprobs, score_tokens
from counterpoise.model.swapped_weights import read_with_weights
from counterpoise.types import Floats, Ints, Row, rows_by_group


class NoPolicyError(PoiseError):
    """A token weighting needs the policy where none is available."""


@dataclass(frozen=True, eq=False)
class PolicyReader:
    """Reads rows with the policy that sampled them.

    Example:
        reader = PolicyReader(policy, temperature=0.8)
        reader.logprobs(rows)                       # per row [T]
        reader.logprobs(rows, initial_weights)      # the same by other weights
    """

    policy: Policy
    temperature: float = 1.0
    micro_batch: FittedSize = field(default_factory=lambda: FittedSize(16384))  # tokens of one pass
    iteration: int = 1
    seed: int = 0
    passes: ReadingPasses = EAGER_READING  # how passes are run
    # Held-out answers that may steer training; None where they are not followed.
    steering_rows: Sequence[Row] | None = None
    teacher: Mapping[str, Tensor] | None = None  # its weights by name; None: the policy itself
    scores: dict[tuple[str, int], Floats] = field(default_factory=dict)
    """A cache: log-probabilities [T] by row name, which the update reuses; see `keep_scores`."""

    def read(self, rows: Sequence[Row]) -> TokenScores:
        """Log-probabilities, entropies and hidden states of the rows' tokens."""
        return score_tokens(self.policy, rows, self.temperature, self.micro_batch, self.passes.read)

    def logprobs(
        self, rows: Sequence[Row], weights: Mapping[str, Tensor] | None = None
    ) -> list[Floats]:
        """Per row [T]: log-probabilities by the policy, or with other weights, by name."""
        forward_pass = self.passes.read if weights is None else read_with_weights(weights)
        return score_logprobs(self.policy, rows, self.temperature, self.micro_batch, forward_pass)

    def keep_scores(self, rows: Sequence[Row], logprobs: Sequence[Floats]) -> None:
        """Keep log-probabilities by the policy, so that the update need not compute them again."""
        self.scores.update(zip((row.name for row in rows), logprobs, strict=True))


@dataclass(frozen=True, eq=False)
class CreditView:
    """Rows with signal, those of a group next to each other. A weighting returns weights for each.

    Example:
        def weights(view: CreditView, *, share: float = 0.2) -> list[Floats]:
            threshold = np.quantile(np.concatenate(view.entropies), 1 - share)
            return [(H_T >= threshold).astype(np.float32) for H_T in view.entropies]
    """

    rows: Sequence[Row]
    reader: PolicyReader | None = None

    @cached_property
    def groups(self) -> list[list[int]]:
        """Row indices of each group."""
        return list(rows_by_group(self.rows).values())

    @cached_property
    def group_numbers_R(self) -> NDArray[np.int64]:
        """The number of each row's group: its index in `groups`."""
        numbers_R = np.empty(len(self.rows), dtype=np.int64)
        for group_number, group in enumerate(self.groups):
            numbers_R[group] = group_number
        return numbers_R

    @property
    def policy(self) -> Policy:
        return self._reader.policy

    @property
    def unembedding(self) -> Tensor:
        """[V, D]: the matrix that turns hidden states into logits."""
        return self.policy.decoder.unembedding.detach()

    @property
    def softcap(self) -> float:
        """c of models with logits c tanh(W h / c); 0: no cap."""
        return self.policy.decoder.softcap

    @property
    def temperature(self) -> float:
        """The sampling temperature, by which logits are divided."""
        return self._reader.temperature

    @property
    def iteration(self) -> int:
        """The iteration of the run, counted from 1."""
        return self._reader.iteration

    @property
    def steering_rows(self) -> Sequence[Row]:
        """Held-out answers of the steering half of the probes, right and wrong."""
        if self._reader.steering_rows is None:
            raise NoPolicyError(
                "these token weights read held-out answers, which only a run with monitor.probe "
                "follows"
            )
        return self._reader.steering_rows

    @property
    def generic_logprobs(self) -> list[float | None]:
        """Per row: mean log-probability of the group's anchors; None without anchors."""
        return [row.content.generic_logprob for row in self.rows]

    @property
    def tokens(self) -> list[Ints]:
        """Per row [T]: token ids of the response."""
        return [row.content.response_tokens for row in self.rows]

    @property
    def pieces(self) -> list[list[str]]:
        """Per row [T]: the text of every token; special tokens have empty texts."""
        return split_into_pieces(self.policy, self.tokens)

    @property
    def entropies(self) -> list[Floats]:
        """Per row [T]: entropy of the whole next-token distribution, in nats."""
        return self._token_scores.entropies

    @property
    def logprobs(self) -> list[Floats]:
        """Per row [T]: log-probabilities by the trainer."""
        return self._token_scores.logprobs

    @property
    def hidden(self) -> list[Tensor]:
        """Per row [T, D]: the input of the unembedding, on the policy's device."""
        return self._token_scores.hidden

    def start_reading(self) -> None:
        """Start the pass over the rows; a GPU runs it while the host continues."""
        _ = self._token_scores

    @property
    def logprobs_if_read(self) -> list[Floats] | None:
        """`logprobs` if any property has already made the pass over the rows, else None."""
        # `cached_property` stores its value in the instance, so this looks without computing.
        return self._token_scores.logprobs if "_token_scores" in vars(self) else None

    @cached_property
    def hinted_logprobs(self) -> list[Floats | None]:
        """Per row [T]: the teacher's, after a prompt with the answer; None if that is unknown."""
        hinted: list[Floats | None] = [None] * len(self.rows)
        indices = [i for i, row in enumerate(self.rows) if row.content.answer]
        rows = [self.rows[i] for i in indices]
        logprobs = CreditView(rows, self.reader).logprobs_with_prompts(
            hinted_prompts(self.policy, rows)
        )
        for i, logprobs_T in zip(indices, logprobs, strict=True):
            hinted[i] = logprobs_T
        return hinted

    def logprobs_with_prompts(self, prompts: Sequence[Ints]) -> list[Floats]:
        """Per row [T]: the teacher's log-probabilities if the prompt of row i were `prompts[i]`."""
        rows = [
            replace(row, rollout=replace(row.content, prompt_tokens=prompt))
            for row, prompt in zip(self.rows, prompts, strict=True)
        ]
        # A pass assumes that the rows of a group share a prompt, so rows whose new prompts differ
        # must not stay in one group.
        number_of: dict[bytes, int] = {}
        prompt_numbers = [
            number_of.setdefault(prompt.tobytes(), len(number_of)) for prompt in prompts
        ]
        regrouped = [
            replace(row, group=f"{row.group}/{prompt_number}")
            for row, prompt_number in zip(rows, prompt_numbers, strict=True)
        ]
        return self._reader.logprobs(regrouped, self._reader.teacher)

    @property
    def _reader(self) -> PolicyReader:
        if self.reader is None:
            raise NoPolicyError(
                "these token weights need the policy, which this engine does not expose"
            )
        return self.reader

    @cached_property
    def _token_scores(self) -> TokenScores:
        return self._reader.read(self.rows)


def unit_weights(rows: Sequence[Row]) -> list[Floats]:
    """Weights of 1 for every token: the fallback of a weighting."""
    return [np.ones(row.num_tokens, dtype=np.float32) for row in rows]
