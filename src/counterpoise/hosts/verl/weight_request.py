"""A request for token weights: the rows of an update, and what a weighting may read of them.

    A_{i,t} = A_i w_{i,t}

The driver makes it (token_weights.py) and answers it itself, unless the method reads hidden states:
then rank 0 of the workers does (token_states.py), by the same function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from counterpoise.credit.array_view import ArrayView
from counterpoise.credit.assign import parse_settings
from counterpoise.credit.view import unit_weights
from counterpoise.hosts.verl.head_capture import OutputLayer
from counterpoise.types import Floats, Ints, Row
from counterpoise.variants import TOKEN_WEIGHTS

WEIGH_TOKENS = "poise_weigh_tokens"  # a method that we add to verl's worker
ROLLOUT_ADVANTAGES = "poise_advantages"  # a field of the batch: A_i, where A_{i,t} is weighted


@dataclass(frozen=True, slots=True, eq=False)
class WeightRequest:
    """The rows with signal of one update, as a token weighting reads them.

    Example:
        WeightRequest("shear", ["width=16"], rows, batch_indices=[0, 1, 4], logprobs=[...],
                      entropies=[...], token_texts={}, temperature=1.0, iteration=3)
    """

    method: str
    settings: Sequence[str]
    rows: Sequence[Row]
    batch_indices: Sequence[int]  # of the rows, in the order that verl distributes over the ranks
    tokens: Sequence[Ints]  # per row [T], as are the next two
    logprobs: Sequence[Floats]
    entropies: Sequence[Floats]
    token_texts: Mapping[int, str]  # for a user's function that reads pieces
    temperature: float
    iteration: int


@dataclass(frozen=True, slots=True)
class WeightResult:
    """Weights [T] in the order of the request's rows, or the reason why there are none."""

    weights: Sequence[Floats] = ()
    fault: str = ""


class BatchView(ArrayView):
    """A batch of verl's as a token weighting sees it."""

    @property
    def pieces(self) -> list[list[str]]:
        token_texts = self.arrays["token_texts"]
        return [[token_texts[token] for token in tokens_T.tolist()] for tokens_T in self.tokens]


def evaluate_request(
    request: WeightRequest,
    hidden: Sequence[torch.Tensor] | None = None,
    layer: OutputLayer | None = None,
) -> list[Floats]:
    """The weights [T] of the request's rows; with `hidden` [T, D] if the method reads states."""
    arrays: dict[str, Any] = {
        "groups": [row.group for row in request.rows],
        "tokens": request.tokens,
        "logprobs": request.logprobs,
        "entropies": request.entropies,
        "token_texts": request.token_texts,
    }
    if hidden is not None and layer is not None:
        arrays |= {"hidden": hidden, "unembedding": layer.unembedding}
    view = BatchView(
        request.rows,
        None,
        request.method,
        arrays,
        request.temperature,
        request.iteration,
        layer.softcap if layer is not None else 0.0,
    )
    weigh_tokens = TOKEN_WEIGHTS.load(request.method)
    settings = parse_settings(request.method, weigh_tokens, request.settings)
    weights = weigh_tokens(view, **settings)
    return unit_weights(request.rows) if weights is None else list(weights)
