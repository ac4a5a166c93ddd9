"""How an outcome depends on the tokens that came before it: dJ/de_t, e_t the embedding of token t.

    J = sum of the rows' objectives        one forward and one backward for all rows of a pass

No row sees another's response, so dJ/de_t is the gradient of t's own row. Prompts are read once
for all their responses, responses only as far as the objective looks, and no gradient of a weight
is taken: a third of a training step's matrix products are spared. Only one number a token is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from counterpoise.credit.spans import places
from counterpoise.credit.view import View
from counterpoise.policy.attention import PackedAttention
from counterpoise.policy.load import Policy
from counterpoise.policy.packing import Packing
from counterpoise.types import Floats, Row
from counterpoise.update.forward import micro_batches, packed


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """Some rows as the policy read them. M: response tokens, row after row."""

    rows: Sequence[int]  # of the view
    firsts: Sequence[int]  # where each row's tokens begin
    hidden_M: Tensor  # [M, D], what the distribution of each token is computed from
    clean: Callable[[], Tensor]  # computes the same before the noise, without a gradient
    targets_M: Tensor  # the tokens themselves

    def spans(self, within: Callable[[int], tuple[int, int]]) -> list[tuple[int, int]]:
        """Places in a row's response -> the same in M, for every row."""
        found = []
        for row, first in zip(self.rows, self.firsts, strict=True):
            start, end = within(row)
            found.append((first + start, first + end))
        return found


Objective = Callable[[Pass], Tensor]  # -> J, or any scalar with its gradient
Measure = Callable[[Tensor, Tensor], Tensor]  # (dJ/de [n, D], e [n, D]) -> [n]
Noise = Callable[[int, int], Tensor]  # (row, D) -> [n, D], for the first n tokens of its response


def saliency(
    view: View,
    stops: Mapping[int, int],
    objective: Objective,
    measure: Measure,
    noise: Noise | None = None,
) -> dict[int, Floats]:
    """Row -> [T]: `measure` of every token that is an input of the row's objective, else 0.

    `stops` names the rows, and how many of their tokens the objective looks at.
    """
    policy, reader = view.policy, view.reader
    assert reader is not None
    names = list(stops)
    rows = [cut(view.rows[i], stop) for i, stop in stops.items()]

    def attempt(micro_tokens: int) -> dict[int, Floats]:
        found: dict[int, Floats] = {}
        for batch in micro_batches(rows, micro_tokens):
            read = [rows[i] for i in batch]
            values = _one_pass(policy, read, [names[i] for i in batch], objective, measure, noise)
            for i, values_n in zip(batch, values, strict=True):
                whole = np.zeros(view.rows[names[i]].num_tokens, dtype=np.float32)
                whole[: len(values_n)] = values_n
                found[names[i]] = whole
        return found

    with weights_fixed(policy.model):
        return reader.micro.rows(attempt, rows) if rows else {}


def cut(row: Row, stop: int) -> Row:
    """A row that ends after `stop` tokens."""
    content = row.content
    shorter = replace(
        content,
        response_tokens=content.response_tokens[:stop],
        sampled_logprobs=content.sampled_logprobs[:stop],
    )
    return replace(row, num_tokens=stop, rollout=shorter, weights_T=None, scored_T=None)


def _one_pass(
    policy: Policy,
    rows: Sequence[Row],
    names: Sequence[int],
    objective: Objective,
    measure: Measure,
    noise: Noise | None,
) -> list[Floats]:
    """Per row [T - 1]: the last token of a cut row is no input."""
    packing = packed(policy, rows)
    attend = PackedAttention(packing)
    with torch.no_grad():
        embedded_N = F.embedding(packing.tokens_N, policy.decoder.embedding.weight)
        leaf_N = embedded_N.clone()
        for row, (start, length) in zip(names, packing.responses, strict=True):
            if noise is not None:
                more = noise(row, leaf_N.shape[1])[:length]
                leaf_N[start : start + len(more)] += more.to(leaf_N.dtype)
    with torch.enable_grad():
        hidden_M = _hidden(policy, packing, attend, leaf_N.requires_grad_())
        firsts = np.cumsum([0, *packing.lengths[:-1]]).tolist()
        read = Pass(
            names, firsts, hidden_M, lambda: _hidden(policy, packing, attend), packing.targets_M
        )
        J = objective(read)
        (gradient_N,) = torch.autograd.grad(J, leaf_N)
    places_n = places([(s, s + n) for s, n in packing.responses], policy.device)
    wide = torch.promote_types(leaf_N.dtype, torch.float32)
    values_n = measure(gradient_N[places_n].to(wide), embedded_N[places_n].to(wide))
    ends = np.cumsum([n for _, n in packing.responses])
    return np.split(values_n.float().cpu().numpy(), ends[:-1])


def _hidden(
    policy: Policy, packing: Packing, attend: PackedAttention, embedded_N: Tensor | None = None
) -> Tensor:
    """Hidden states [M, D]; with a gradient where embeddings are given."""
    with torch.set_grad_enabled(embedded_N is not None):
        hidden_N = policy.decoder(
            packing.tokens_N, packing.positions_N, attend, embedded_N=embedded_N
        )
        return hidden_N.index_select(0, packing.predictors_M)


@contextmanager
def weights_fixed(model: nn.Module) -> Iterator[None]:
    """No gradient of a weight is taken inside."""
    trained = [p for p in model.parameters() if p.requires_grad]
    for p in trained:
        p.requires_grad_(False)
    try:
        yield
    finally:
        for p in trained:
            p.requires_grad_(True)
