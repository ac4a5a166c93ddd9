"""OAR-P: weight tokens by how much masking them changes the answer.

    P0 unmasked, P_t with token t replaced by padding     I_t = KL(P0 || P_t)
    w = bi-level reshaping of I (credit/bilevel.py)

credit/outcome.py defines P and the reasoning tokens. compare=answer_joint: I_t = log p(answer)
unmasked minus masked, not below 0.

`oar_p` masks every token alone, as published. A masked response is computed only from the mask on,
so a rollout of T reasoning tokens costs about T / 2 forward passes. A run whose responses may be
longer than 512 tokens is refused, unless credit.settings contains "passes=0". That is the default
anyway; whoever writes it down accepts the cost.

`oar_p_approximate` takes at most `passes` forward passes of the rollout. If masking every token
would exceed them, half of the budget masks single tokens, from the answer backwards: a copy is
cheapest there, and that is where answers were found to depend on single tokens. The other half
masks spans of the remaining tokens, which share the importance of their span. Its weights correlate
with the exact ones by .44 to .51 only. `oar_p` with a setting `passes` above 0 is the same, by the
name that it has in release 0.2.0.

arXiv:2601.07408. compare = last is that of the authors' README; the paper's own choice was not
found. The 7 passes and the spans are chosen here. A model without a padding token uses its end
token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.credit.answer_spans import AnswerSpan
from counterpoise.credit.bilevel import DEFAULT_BOOST, DEFAULT_QUANTILE
from counterpoise.credit.divergence import kl_divergence, mean_states
from counterpoise.credit.outcome import (
    check_settings,
    outcome_span,
    rows_with_reasoning,
    weights_from_importance,
)
from counterpoise.credit.row_copies import OriginalRows, RowCopy
from counterpoise.credit.view import CreditView
from counterpoise.errors import PoiseError
from counterpoise.model.head import token_logprobs
from counterpoise.model.load import Policy
from counterpoise.model.scoring import micro_batches, pack_rows
from counterpoise.model.spans import Span, span_indices
from counterpoise.model.transfer import to_device, to_host
from counterpoise.types import Floats, Row


@dataclass(frozen=True, slots=True)
class MaskedRow:
    """A row whose outcome is compared with and without masked spans of its reasoning."""

    row: Row  # cut after the outcome tokens
    outcome_span: Span
    mask_spans: Sequence[Span]  # of the reasoning, masked one at a time

    def predictors(self, response_start: int) -> Span:
        """Positions that predict the outcome tokens if the response is at `response_start`."""
        start, end = self.outcome_span
        return response_start + start - 1, response_start + end - 1


def approximate(
    view: CreditView,
    *,
    compare: str = "last",
    passes: float = 7.0,
    quantile: float = DEFAULT_QUANTILE,
    boost: float = DEFAULT_BOOST,
) -> list[Floats]:
    """Token weights of every row, by masking spans within a budget of passes. arXiv:2601.07408"""
    return weights(view, compare=compare, passes=passes, quantile=quantile, boost=boost)


def weights(
    view: CreditView,
    *,
    compare: str = "last",
    passes: float = 0.0,
    quantile: float = DEFAULT_QUANTILE,
    boost: float = DEFAULT_BOOST,
) -> list[Floats]:
    """Token weights of every row, by masking every token of its reasoning. arXiv:2601.07408"""
    check_settings(compare, quantile, boost)
    # One pass reads the unmasked rollout: with no more than that, all tokens would be masked as one
    # span and have equal weights.
    if not (passes == 0 or passes > 1):
        raise PoiseError(
            f"oar_p: passes {passes:g} leaves nothing for masking: choose above 1, or 0 to mask "
            "every token"
        )
    boxes = rows_with_reasoning(view)
    return weights_from_importance(
        view, boxes, masking_importance(view, boxes, compare, passes), quantile, boost
    )


def masking_importance(
    view: CreditView, boxes: dict[int, AnswerSpan], compare: str, passes: float
) -> Iterator[tuple[int, Floats]]:
    """Yield (row, I of its reasoning tokens)."""
    policy, reader = view.policy, view.reader
    assert reader is not None
    group_size = {i: len(group) for group in view.groups for i in group}
    masked_rows: list[MaskedRow] = []
    for i, box in boxes.items():
        row, (start, end) = view.rows[i], outcome_span(box, compare)
        # Tokens of a row in a forward pass of the batch: a prompt is run once for all its rows.
        tokens_per_pass = row.num_tokens + len(row.content.prompt_tokens) / group_size[i]
        mask_spans = choose_mask_spans(
            box.box_start, end - 1, (passes - 1) * tokens_per_pass if passes else np.inf
        )
        masked_rows.append(MaskedRow(row.truncate(end), (start, end), mask_spans))
    rows = [masked_row.row for masked_row in masked_rows]

    def attempt(micro_tokens: int) -> list[tuple[list[int], Callable[[], Floats]]]:
        pending = []
        # Of the unmasked rows only keys and values stay in memory: twice as many tokens fit.
        for batch in micro_batches(rows, 2 * micro_tokens):
            values = _span_importance(
                policy, [masked_rows[i] for i in batch], compare, micro_tokens
            )
            pending.append((batch, to_host(values.float())))
        return pending

    view_indices = list(boxes)
    for batch, fetch_importance in reader.micro_batch.run_rows(attempt, rows) if rows else []:
        span_ends = np.cumsum([len(masked_rows[i].mask_spans) for i in batch])
        for i, values_K in zip(batch, np.split(fetch_importance(), span_ends[:-1]), strict=True):
            lengths_K = np.array([end - start for start, end in masked_rows[i].mask_spans])
            yield view_indices[i], np.repeat(values_K / lengths_K.astype(np.float32), lengths_K)


def choose_mask_spans(num_reasoning: int, num_inputs: int, budget: float) -> list[Span]:
    """Divide the reasoning into spans; each is masked in a copy of its own.

    A copy costs the tokens from its span to the last of the inputs. Half of the budget (in tokens)
    masks single tokens, from the last one backwards; the rest masks spans of the remaining tokens,
    at least one span even if that exceeds the budget.
    """
    # Costs of masking single tokens, the last one first.
    single_costs = num_inputs - np.arange(num_reasoning)[::-1]
    if single_costs.sum() <= budget:
        return list(pairwise(range(num_reasoning + 1)))
    num_singles = int(np.searchsorted(np.cumsum(single_costs), budget / 2, side="right"))
    budget -= single_costs[:num_singles].sum()
    remaining = num_reasoning - num_singles
    # A span costs about num_inputs - remaining / 2: start from an upper bound of their number.
    max_spans = int((budget - remaining / 2) / (num_inputs - remaining / 2)) + 1
    num_spans = min(remaining, max(1, max_spans))
    while num_spans > 1 and (num_inputs - _even_bounds(remaining, num_spans)[:-1]).sum() > budget:
        num_spans -= 1
    bounds = _even_bounds(remaining, num_spans).tolist()
    return [*pairwise(bounds), *((token, token + 1) for token in range(remaining, num_reasoning))]


def _even_bounds(tokens: int, parts: int) -> NDArray[np.int64]:
    """Bounds of `parts` spans whose lengths differ by at most one."""
    return np.arange(parts + 1) * tokens // parts


@torch.no_grad()
def _span_importance(
    policy: Policy, masked_rows: Sequence[MaskedRow], compare: str, micro_tokens: int
) -> Tensor:
    """I of each masked span, row after row."""
    originals = OriginalRows(
        policy, pack_rows(policy, [masked_row.row for masked_row in masked_rows])
    )
    copies = [
        copy
        for row_number, masked_row in enumerate(masked_rows)
        for copy in _masked_copies(policy, row_number, masked_row)
    ]
    summarise = _outcome_logprobs if compare == "answer_joint" else _mean_outcome_states
    response_starts = [response_start for response_start, _ in originals.packing.responses]
    predictors = [
        masked_row.predictors(response_start)
        for masked_row, response_start in zip(masked_rows, response_starts, strict=True)
    ]
    clean_R = summarise(
        policy, originals.hidden_N[span_indices(predictors, policy.device)], masked_rows
    )
    # Batches reorder the copies by length: remember the order to undo it at the end.
    copy_order: list[int] = []
    importances: list[Tensor] = []
    for batch in originals.copy_batches(copies, micro_tokens):
        batch_copies = [copies[i] for i in batch]
        hidden_n = originals.run_copies(
            batch_copies,
            # A copy begins after its prefix, so its response starts before the axis does.
            [masked_rows[copy.row].predictors(-copy.prefix_length) for copy in batch_copies],
        )
        masked = summarise(policy, hidden_n, [masked_rows[copy.row] for copy in batch_copies])
        clean = clean_R[to_device(np.array([copy.row for copy in batch_copies]), policy.device)]
        if compare == "answer_joint":
            importances.append((clean - masked).clamp(min=0).double())
        else:
            importances.append(kl_divergence(clean, masked, policy.decoder.unembedding))
        copy_order += batch
    return torch.cat(importances)[to_device(np.argsort(copy_order), policy.device)]


def _masked_copies(policy: Policy, row_number: int, masked_row: MaskedRow) -> Iterator[RowCopy]:
    """A copy of the row for each span, with padding in place of the span."""
    padding = policy.decoder.config.pad_token_id
    tokens = masked_row.row.content.response_tokens[:-1]
    for start, end in masked_row.mask_spans:
        suffix = tokens[start:].copy()
        suffix[: end - start] = policy.end_tokens[0] if padding is None else padding
        yield RowCopy(row_number, start, suffix)


def _mean_outcome_states(
    policy: Policy, hidden_n: Tensor, masked_rows: Sequence[MaskedRow]
) -> Tensor:
    """The mean hidden state that predicts the outcome tokens of each row: [R, D]."""
    spans = [masked_row.outcome_span for masked_row in masked_rows]
    bounds = np.cumsum([0, *(end - start for start, end in spans)])
    return mean_states(hidden_n, list(pairwise(bounds.tolist())))


def _outcome_logprobs(policy: Policy, hidden_n: Tensor, masked_rows: Sequence[MaskedRow]) -> Tensor:
    """The joint log-probability of the outcome tokens of each row: [R]."""
    outcome_tokens = [
        masked_row.row.content.response_tokens[slice(*masked_row.outcome_span)]
        for masked_row in masked_rows
    ]
    targets_n = to_device(np.concatenate(outcome_tokens), policy.device, np.int64)
    decoder = policy.decoder
    logprobs_n, _ = token_logprobs(
        hidden_n, decoder.unembedding, targets_n, softcap=decoder.softcap
    )
    row_n = np.repeat(
        np.arange(len(masked_rows)), [len(row_tokens) for row_tokens in outcome_tokens]
    )
    logprob_sums = logprobs_n.new_zeros(len(masked_rows))
    return logprob_sums.index_add(0, to_device(row_n, policy.device), logprobs_n)
