"""OAR-P: how much the answer moves when a token is taken away.

    P0 clean, P_t with token t replaced by padding     I_t = KL(P0 || P_t)
    w = bi-level reshaping of I (credit/bilevel.py)

What P is, and what reasoning: credit/outcome.py. compare=answer_joint: I_t = log p(answer) clean -
masked, not below 0.

As published it is a forward pass for every token. Here a masked response is computed from the mask
on only, which halves that. Where it would still take more than `passes` forward passes of the
rollout, half of them mask single tokens, from the answer backwards: there a copy costs least, and
there answers are found to hang. The others mask spans of what is left, whose importance is shared
by their tokens. `passes = 0` masks every token by itself.

arXiv:2601.07408; compare = last is that of the authors' README, the paper's own was not found. 7
passes, and spans, are chosen here. A model without padding is given its end token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.credit.answer_spans import AnswerSpan, span_indices
from counterpoise.credit.bilevel import DEFAULT_BOOST, DEFAULT_QUANTILE
from counterpoise.credit.divergence import kl_divergence, mean_states
from counterpoise.credit.embedding_saliency import truncate_row
from counterpoise.credit.masked_copies import OriginalRows, RowCopy, Span
from counterpoise.credit.outcome import (
    check_settings,
    outcome_span,
    rows_with_reasoning,
    weights_from_importance,
)
from counterpoise.credit.view import CreditView
from counterpoise.model.head import token_logprobs
from counterpoise.model.load import Policy
from counterpoise.model.scoring import micro_batches, pack_rows
from counterpoise.model.transfer import to_device, to_host
from counterpoise.types import Floats, Row


@dataclass(frozen=True, slots=True)
class MaskedRow:
    """One row: whose answer is looked at, and what is masked."""

    row: Row  # cut after the tokens that are judged
    outcome_span: Span
    mask_spans: Sequence[Span]  # the reasoning, in parts

    def predictors(self, first: int) -> Span:
        """Where the judged tokens are predicted, when token 0 of the response is at `first`."""
        start, end = self.outcome_span
        return first + start - 1, first + end - 1


def weights(
    view: CreditView,
    *,
    compare: str = "last",
    passes: float = 7.0,
    quantile: float = DEFAULT_QUANTILE,
    boost: float = DEFAULT_BOOST,
) -> list[Floats]:
    check_settings(compare, quantile, boost)
    boxes = rows_with_reasoning(view)
    return weights_from_importance(
        view, boxes, masking_importance(view, boxes, compare, passes), quantile, boost
    )


def masking_importance(
    view: CreditView, boxes: dict[int, AnswerSpan], compare: str, passes: float
) -> Iterator[tuple[int, Floats]]:
    """(row, I of its reasoning tokens)"""
    policy, reader = view.policy, view.reader
    assert reader is not None
    shared_by = {i: len(group) for group in view.groups for i in group}
    asked: list[MaskedRow] = []
    for i, box in boxes.items():
        row, (start, end) = view.rows[i], outcome_span(box, compare)
        # of a forward pass of the batch: a prompt is run once for its rows
        tokens = row.num_tokens + len(row.content.prompt_tokens) / shared_by[i]
        masked = choose_mask_spans(
            box.box_start, end - 1, (passes - 1) * tokens if passes else np.inf
        )
        asked.append(MaskedRow(truncate_row(row, end), (start, end), masked))
    rows = [one.row for one in asked]

    def attempt(micro_tokens: int) -> list[tuple[list[int], Callable[[], Floats]]]:
        under_way = []
        for batch in micro_batches(rows, 2 * micro_tokens):  # of these only keys and values stay
            values = _span_importance(policy, [asked[i] for i in batch], compare, micro_tokens)
            under_way.append((batch, to_host(values.float())))
        return under_way

    names = list(boxes)
    for batch, values_of in reader.micro_batch.run_rows(attempt, rows) if rows else []:
        ends = np.cumsum([len(asked[i].mask_spans) for i in batch])
        for i, values_K in zip(batch, np.split(values_of(), ends[:-1]), strict=True):
            lengths_K = np.array([end - start for start, end in asked[i].mask_spans])
            yield names[i], np.repeat(values_K / lengths_K.astype(np.float32), lengths_K)


def choose_mask_spans(reasoning: int, inputs: int, budget: float) -> list[Span]:
    """What is masked together, for `budget` tokens or, if that is too little, as few as possible.

    A masked copy runs from its span to the last of the `inputs`. Half of the budget masks single
    tokens, from the last one backwards; what is left masks spans of what is left.
    """
    costs = inputs - np.arange(reasoning)[::-1]  # of single tokens, the last one first
    if costs.sum() <= budget:
        return list(pairwise(range(reasoning + 1)))
    singles = int(np.searchsorted(np.cumsum(costs), budget / 2, side="right"))
    budget -= costs[:singles].sum()
    rest = reasoning - singles
    few = min(rest, max(1, int((budget - rest / 2) / (inputs - rest / 2)) + 1))  # or too many
    while few > 1 and (inputs - _even_bounds(rest, few)[:-1]).sum() > budget:
        few -= 1
    bounds = _even_bounds(rest, few).tolist()
    return [*pairwise(bounds), *((t, t + 1) for t in range(rest, reasoning))]


def _even_bounds(tokens: int, parts: int) -> NDArray[np.int64]:
    """Parts whose lengths differ by one at most."""
    return np.arange(parts + 1) * tokens // parts


@torch.no_grad()
def _span_importance(
    policy: Policy, asked: Sequence[MaskedRow], compare: str, micro_tokens: int
) -> Tensor:
    """I of each span, row after row."""
    originals = OriginalRows(policy, pack_rows(policy, [one.row for one in asked]))
    copies = [copy for r, one in enumerate(asked) for copy in _masked_copies(policy, r, one)]
    read = _outcome_logprobs if compare == "answer_joint" else _mean_outcome_states
    firsts = [first for first, _ in originals.packing.responses]
    predictors = [one.predictors(first) for one, first in zip(asked, firsts, strict=True)]
    clean_R = read(policy, originals.hidden_N[span_indices(predictors, policy.device)], asked)
    walked: list[int] = []
    values: list[Tensor] = []
    for batch in originals.copy_batches(copies, micro_tokens):
        some = [copies[i] for i in batch]
        hidden_n = originals.run_copies(
            some, [asked[c.row].predictors(-c.prefix_length) for c in some]
        )
        moved = read(policy, hidden_n, [asked[copy.row] for copy in some])
        clean = clean_R[to_device(np.array([copy.row for copy in some]), policy.device)]
        if compare == "answer_joint":
            values.append((clean - moved).clamp(min=0).double())
        else:
            values.append(kl_divergence(clean, moved, policy.decoder.unembedding))
        walked += batch
    return torch.cat(values)[to_device(np.argsort(walked), policy.device)]


def _masked_copies(policy: Policy, r: int, one: MaskedRow) -> Iterator[RowCopy]:
    """A copy of the row for each span, with padding in the span's place."""
    padding = policy.decoder.config.pad_token_id
    tokens = one.row.content.response_tokens[:-1]
    for start, end in one.mask_spans:
        rest = tokens[start:].copy()
        rest[: end - start] = policy.end_tokens[0] if padding is None else padding
        yield RowCopy(r, start, rest)


def _mean_outcome_states(policy: Policy, hidden_n: Tensor, asked: Sequence[MaskedRow]) -> Tensor:
    """The mean hidden state at the judged tokens: [R, D]."""
    ends = np.cumsum([0, *(end - start for start, end in (one.outcome_span for one in asked))])
    return mean_states(hidden_n, list(pairwise(ends.tolist())))


def _outcome_logprobs(policy: Policy, hidden_n: Tensor, asked: Sequence[MaskedRow]) -> Tensor:
    """The log-probability of the judged tokens together: [R]."""
    tokens = [one.row.content.response_tokens[slice(*one.outcome_span)] for one in asked]
    targets_n = to_device(np.concatenate(tokens), policy.device, np.int64)
    logprobs_n, _ = token_logprobs(hidden_n, policy.decoder.unembedding, targets_n)
    of_n = np.repeat(np.arange(len(asked)), [len(t) for t in tokens])
    sums = logprobs_n.new_zeros(len(asked))
    return sums.index_add(0, to_device(of_n, policy.device), logprobs_n)
