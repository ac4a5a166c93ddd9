"""How an outcome depends on the tokens that came before it: dJ/de_t, e_t the embedding of token t.

    J = sum of the rows' objectives        one forward and one backward for all rows of a pass

No row sees another's response, so dJ/de_t is the gradient of t's own row. Nothing is computed that
J does not need: no gradient of a weight, a third of a training step's matrix products; no backward
through prompts, whose keys and values are constants, computed once for all their responses;
responses only as far as the objective looks; of the last layer only what the objective looks at,
and the keys and values of the rest. Only one number a token is kept.

On a GPU in half precision prompts and whole layers stay in: there the packed pass of a training
step, captured both ways (`update/graphs/passes.py`), is the quicker one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from counterpoise.credit.answer_spans import span_indices
from counterpoise.credit.masked_copies import OriginalRows, RowCopy, Span
from counterpoise.credit.view import CreditView
from counterpoise.model.kernels import is_half_on_gpu
from counterpoise.model.load import Policy
from counterpoise.model.packing import pack
from counterpoise.model.reading_passes import ReadingPasses
from counterpoise.model.scoring import micro_batches
from counterpoise.model.transfer import to_device, to_host
from counterpoise.types import Floats, Row

MAX_CPU_TOKENS = 1024  # tokens side by side on a CPU: larger products gain less than padding costs


@dataclass(frozen=True, slots=True, eq=False)
class ObjectiveInputs:
    """Some rows as the policy read them. n: the tokens their objectives look at, row after row."""

    rows: Sequence[int]  # of the view
    spans: Sequence[Span]  # of each row, among the n
    hidden_n: Tensor  # [n, D], what the distribution of each token is computed from
    targets_n: Tensor  # the tokens themselves


Objective = Callable[[ObjectiveInputs], Tensor]  # -> J, or any scalar with its gradient
Measure = Callable[[Tensor, Tensor], Tensor]  # (dJ/de [n, D], e [n, D]) -> [n]


@dataclass(frozen=True, slots=True, eq=False)
class EmbeddingNoise:
    """What is added to the embeddings of a row's first inputs."""

    values_nD: Tensor
    spans: Mapping[int, Span]  # of each row of the view, among the n


@dataclass(frozen=True, slots=True, eq=False)
class TruncatedRow:
    """One row, cut after what its objective looks at."""

    view_index: int  # of the view
    row: Row
    objective_start: (
        int  # the first token it looks at, 1 at least: the first one hangs on none before it
    )

    @property
    def num_inputs(self) -> int:
        """The last token is looked at by nobody."""
        return self.row.num_tokens - 1

    @property
    def predictor_span(self) -> Span:
        """Where these tokens are predicted, among the inputs."""
        return self.objective_start - 1, self.num_inputs


def token_saliency(
    view: CreditView,
    objective_spans: Mapping[int, Span],
    objective: Objective,
    measure: Measure,
    noise: EmbeddingNoise | None = None,
) -> Iterator[tuple[int, Floats]]:
    """(row, [T]): `measure` of every token that is an input of the row's objective, else 0.

    `objective_spans` names the rows, and the tokens of each that the objective looks at. Rows come pass by
    pass; all passes are under way when the first does.
    """
    policy, reader = view.policy, view.reader
    assert reader is not None
    taken = [
        TruncatedRow(i, truncate_row(view.rows[i], end), max(1, start))
        for i, (start, end) in objective_spans.items()
        if end > 1
    ]
    rows = [one.row for one in taken]

    def runs(
        some: Sequence[TruncatedRow], micro_tokens: int
    ) -> Iterator[tuple[list[TruncatedRow], RunForward]]:
        if is_half_on_gpu(policy.decoder.unembedding):
            return _packed_run(policy, some, reader.passes)
        return _runs_after_prompts(policy, some, micro_tokens)

    def attempt(micro_tokens: int) -> list[tuple[list[TruncatedRow], Callable[[], Floats]]]:
        under_way = []
        for batch in micro_batches(rows, micro_tokens):
            for part, run in runs([taken[i] for i in batch], micro_tokens):
                values_N = _measure_rows(policy, part, run, objective, measure, noise)
                under_way.append((part, to_host(values_N)))
        return under_way

    with frozen_weights(policy.model):
        under_way = reader.micro_batch.run_rows(attempt, rows) if rows else []
    for part, values_of in under_way:
        ends = np.cumsum([one.num_inputs for one in part])
        for one, values_t in zip(part, np.split(values_of(), ends[:-1]), strict=True):
            T = view.rows[one.view_index].num_tokens
            yield one.view_index, np.pad(values_t, (0, T - len(values_t)))
    for i in set(objective_spans) - {one.view_index for one in taken}:
        yield i, np.zeros(view.rows[i].num_tokens, dtype=np.float32)


def truncate_row(row: Row, stop: int) -> Row:
    """A row that ends after `stop` tokens."""
    content = row.content
    shorter = replace(
        content,
        response_tokens=content.response_tokens[:stop],
        sampled_logprobs=content.sampled_logprobs[:stop],
    )
    return replace(row, num_tokens=stop, rollout=shorter, weights_T=None, scored_T=None)


RunForward = Callable[
    [Tensor], Tensor
]  # embeddings of the rows' inputs [N, D] -> hidden states [n, D]


def _measure_rows(
    policy: Policy,
    part: Sequence[TruncatedRow],
    run: RunForward,
    objective: Objective,
    measure: Measure,
    noise: EmbeddingNoise | None,
) -> Tensor:
    """Of every input, row after row: [N], where the policy is."""
    inputs = [one.row.content.response_tokens[:-1] for one in part]
    with torch.no_grad():
        flat_N = to_device(np.concatenate(inputs), policy.device, np.int64)
        embedded_N = F.embedding(flat_N, policy.decoder.embedding.weight)
        leaf_N = embedded_N.clone()
        if noise is not None:
            spans = [noise.spans[one.view_index] for one in part]
            starts = np.cumsum([0, *map(len, inputs[:-1])]).tolist()
            first = [(at, at + e - s) for at, (s, e) in zip(starts, spans, strict=True)]
            more = noise.values_nD[span_indices(spans, policy.device)].to(leaf_N.dtype)
            leaf_N.index_add_(0, span_indices(first, policy.device), more)
    seen = [one.row.content.response_tokens[one.objective_start :] for one in part]
    bounds = np.cumsum([0, *map(len, seen)]).tolist()
    with torch.enable_grad():
        hidden_n = run(leaf_N.requires_grad_())
        targets_n = to_device(np.concatenate(seen), policy.device, np.int64)
        read = ObjectiveInputs(
            [one.view_index for one in part], list(pairwise(bounds)), hidden_n, targets_n
        )
        (gradient_N,) = torch.autograd.grad(objective(read), leaf_N)
    wide = torch.promote_types(leaf_N.dtype, torch.float32)
    return measure(gradient_N.to(wide), embedded_N.to(wide)).float()


def _runs_after_prompts(
    policy: Policy, asked: Sequence[TruncatedRow], micro_tokens: int
) -> Iterator[tuple[list[TruncatedRow], RunForward]]:
    """Rows of about one length side by side, after the keys and values of their prompts."""
    contents = [one.row.content for one in asked]
    prompts = [content.prompt_tokens for content in contents]
    packing = pack(prompts, [c.response_tokens[:1] for c in contents], policy.device)
    policy.decoder.reserve(packing.longest)
    originals = OriginalRows(policy, packing)
    copies = [RowCopy(r, 0, content.response_tokens[:-1]) for r, content in enumerate(contents)]
    if policy.device.type == "cpu":
        micro_tokens = min(micro_tokens, MAX_CPU_TOKENS)
    for batch in originals.copy_batches(copies, micro_tokens):
        part, some = [asked[i] for i in batch], [copies[i] for i in batch]

        def run(
            leaf_N: Tensor, part: list[TruncatedRow] = part, some: list[RowCopy] = some
        ) -> Tensor:
            return originals.run_copies(some, [one.predictor_span for one in part], leaf_N)

        yield part, run


def _packed_run(
    policy: Policy, asked: Sequence[TruncatedRow], passes: ReadingPasses
) -> Iterator[tuple[list[TruncatedRow], RunForward]]:
    """All rows as a training step packs them, prompts and all."""
    rows = [one.row for one in asked]
    firsts = np.cumsum([0, *(one.num_inputs for one in asked[:-1])]).tolist()
    spans = zip(firsts, (one.predictor_span for one in asked), strict=True)
    wanted_n = span_indices([(at + start, at + end) for at, (start, end) in spans], policy.device)

    def run(leaf_N: Tensor) -> Tensor:
        return passes.states(policy, rows, leaf_N)[wanted_n]

    yield list(asked), run


@contextmanager
def frozen_weights(model: nn.Module) -> Iterator[None]:
    """No gradient of a weight is taken inside."""
    trained = [p for p in model.parameters() if p.requires_grad]
    for p in trained:
        p.requires_grad_(False)
    try:
        yield
    finally:
        for p in trained:
            p.requires_grad_(True)
