"""How an outcome depends on earlier tokens: dJ/de_t, with e_t the embedding of token t.

    J = sum of the rows' objectives        one forward and one backward for all rows of a pass

No row attends to another's response, so dJ/de_t is the gradient of t's own row. Nothing is computed
that J does not need: no weight gradients, which are a third of a training step's matrix products;
no backward through prompts, whose keys and values are constants computed once for all their
responses; responses only up to the last token of the objective; in the last layer only the
objective's positions, plus keys and values of the rest. Only one number per token is kept.

On a GPU in half precision only the weight gradients and the ends of responses are left out: there
it is faster to use the packed pass of a training step, which includes prompts and the whole last
layer but has forward and backward captured as CUDA graphs (`update/graphs/passes.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from counterpoise.credit.row_copies import OriginalRows, RowCopy
from counterpoise.credit.view import CreditView
from counterpoise.model.general import GeneralDecoder
from counterpoise.model.kernels import is_half_on_gpu
from counterpoise.model.load import Policy
from counterpoise.model.packing import pack
from counterpoise.model.reading_passes import ReadingPasses
from counterpoise.model.scoring import micro_batches
from counterpoise.model.spans import Span, span_indices
from counterpoise.model.transfer import to_device, to_host
from counterpoise.types import Floats, Row

MAX_CPU_TOKENS = 1024  # of a pass on a CPU: larger products gain less than padding costs


@dataclass(frozen=True, slots=True, eq=False)
class ObjectiveInputs:
    """The policy's reading of some rows. n: the tokens of their objectives, row after row."""

    rows: Sequence[int]  # indices in the view
    spans: Sequence[Span]  # of each row, among the n
    hidden_n: Tensor  # [n, D], hidden states that predict the tokens
    targets_n: Tensor  # the tokens themselves


Objective = Callable[[ObjectiveInputs], Tensor]  # -> J, or any scalar with its gradient
Measure = Callable[[Tensor, Tensor], Tensor]  # (dJ/de [n, D], e [n, D]) -> [n]


@dataclass(frozen=True, slots=True, eq=False)
class EmbeddingNoise:
    """Noise to add to the embeddings of each row's first inputs."""

    values_nD: Tensor
    spans: Mapping[int, Span]  # by row of the view, among the n


@dataclass(frozen=True, slots=True, eq=False)
class TruncatedRow:
    """A row cut after the last token of its objective."""

    view_index: int
    row: Row
    objective_start: int  # at least 1: token 0 depends on no earlier response token

    @property
    def num_inputs(self) -> int:
        """Number of input tokens; nothing attends to the last token, so it is not run."""
        return self.row.num_tokens - 1

    @property
    def predictor_span(self) -> Span:
        """Positions among the inputs that predict the objective's tokens."""
        return self.objective_start - 1, self.num_inputs


def token_saliency(
    view: CreditView,
    objective_spans: Mapping[int, Span],
    objective: Objective,
    measure: Measure,
    noise: EmbeddingNoise | None = None,
) -> Iterator[tuple[int, Floats]]:
    """Yield (row, [T]): `measure` of every token that is an input of the row's objective, else 0.

    `objective_spans` maps rows to the tokens of their objective. Rows arrive pass by pass; all
    passes have been launched when the first row arrives.
    """
    policy, reader = view.policy, view.reader
    assert reader is not None
    truncated_rows = [
        TruncatedRow(i, view.rows[i].truncate(end), max(1, start))
        for i, (start, end) in objective_spans.items()
        if end > 1
    ]
    rows = [truncated.row for truncated in truncated_rows]

    def forward_runs(
        batch_rows: Sequence[TruncatedRow], micro_tokens: int
    ) -> Iterator[tuple[list[TruncatedRow], RunForward]]:
        # Only the fast path can start a row after the cached keys and values of its prompt.
        is_general = isinstance(policy.decoder, GeneralDecoder)
        if is_general or is_half_on_gpu(policy.decoder.unembedding):
            return _packed_run(policy, batch_rows, reader.passes)
        return _runs_after_prompts(policy, batch_rows, micro_tokens)

    def attempt(micro_tokens: int) -> list[tuple[list[TruncatedRow], Callable[[], Floats]]]:
        pending = []
        for batch in micro_batches(rows, micro_tokens):
            for pass_rows, run in forward_runs([truncated_rows[i] for i in batch], micro_tokens):
                values_N = _measure_rows(policy, pass_rows, run, objective, measure, noise)
                pending.append((pass_rows, to_host(values_N)))
        return pending

    # Gradients of weights would double the matrix products of the backward pass.
    with frozen_weights(policy.model):
        pending = reader.micro_batch.run_rows(attempt, rows) if rows else []
    for pass_rows, fetch_values in pending:
        row_ends = np.cumsum([truncated.num_inputs for truncated in pass_rows])
        for truncated, values_t in zip(
            pass_rows, np.split(fetch_values(), row_ends[:-1]), strict=True
        ):
            T = view.rows[truncated.view_index].num_tokens
            yield truncated.view_index, np.pad(values_t, (0, T - len(values_t)))
    for i in set(objective_spans) - {truncated.view_index for truncated in truncated_rows}:
        yield i, np.zeros(view.rows[i].num_tokens, dtype=np.float32)


# Embeddings of the rows' inputs [N, D] -> hidden states [n, D] that predict the objective's tokens.
RunForward = Callable[[Tensor], Tensor]


def _measure_rows(
    policy: Policy,
    pass_rows: Sequence[TruncatedRow],
    run: RunForward,
    objective: Objective,
    measure: Measure,
    noise: EmbeddingNoise | None,
) -> Tensor:
    """`measure` of every input, row after row: [N], on the policy's device."""
    inputs = [truncated.row.content.response_tokens[:-1] for truncated in pass_rows]
    with torch.no_grad():
        flat_N = to_device(np.concatenate(inputs), policy.device, np.int64)
        embedded_N = policy.decoder.embed(flat_N)
        leaf_N = embedded_N.clone()
        if noise is not None:
            noise_spans = [noise.spans[truncated.view_index] for truncated in pass_rows]
            starts = np.cumsum([0, *map(len, inputs[:-1])]).tolist()
            noisy_spans = [
                (row_start, row_start + end - start)
                for row_start, (start, end) in zip(starts, noise_spans, strict=True)
            ]
            noise_nD = noise.values_nD[span_indices(noise_spans, policy.device)].to(leaf_N.dtype)
            leaf_N.index_add_(0, span_indices(noisy_spans, policy.device), noise_nD)
    targets = [
        truncated.row.content.response_tokens[truncated.objective_start :]
        for truncated in pass_rows
    ]
    bounds = np.cumsum([0, *map(len, targets)]).tolist()
    # The leaf is the only tensor that requires a gradient: weights and prompts are constants.
    with torch.enable_grad():
        hidden_n = run(leaf_N.requires_grad_())
        targets_n = to_device(np.concatenate(targets), policy.device, np.int64)
        inputs_of_objective = ObjectiveInputs(
            [truncated.view_index for truncated in pass_rows],
            list(pairwise(bounds)),
            hidden_n,
            targets_n,
        )
        (gradient_N,) = torch.autograd.grad(objective(inputs_of_objective), leaf_N)
    wide_dtype = torch.promote_types(leaf_N.dtype, torch.float32)
    return measure(gradient_N.to(wide_dtype), embedded_N.to(wide_dtype)).float()


def _runs_after_prompts(
    policy: Policy, truncated_rows: Sequence[TruncatedRow], micro_tokens: int
) -> Iterator[tuple[list[TruncatedRow], RunForward]]:
    """Batches of rows of similar length, run after the cached keys and values of their prompts."""
    contents = [truncated.row.content for truncated in truncated_rows]
    prompts = [content.prompt_tokens for content in contents]
    # One token per response is enough to cache the prompts: each copy then starts at token 0.
    packing = pack(prompts, [content.response_tokens[:1] for content in contents], policy.device)
    policy.decoder.reserve(packing.longest)
    originals = OriginalRows(policy, packing)
    copies = [
        RowCopy(row_number, 0, content.response_tokens[:-1])
        for row_number, content in enumerate(contents)
    ]
    if policy.device.type == "cpu":
        micro_tokens = min(micro_tokens, MAX_CPU_TOKENS)
    for batch in originals.copy_batches(copies, micro_tokens):
        pass_rows, pass_copies = [truncated_rows[i] for i in batch], [copies[i] for i in batch]

        def run(
            leaf_N: Tensor,
            pass_rows: list[TruncatedRow] = pass_rows,
            pass_copies: list[RowCopy] = pass_copies,
        ) -> Tensor:
            return originals.run_copies(
                pass_copies, [truncated.predictor_span for truncated in pass_rows], leaf_N
            )

        yield pass_rows, run


def _packed_run(
    policy: Policy, truncated_rows: Sequence[TruncatedRow], passes: ReadingPasses
) -> Iterator[tuple[list[TruncatedRow], RunForward]]:
    """All rows in one pass, packed with their prompts as a training step packs them."""
    rows = [truncated.row for truncated in truncated_rows]
    row_starts = np.cumsum(
        [0, *(truncated.num_inputs for truncated in truncated_rows[:-1])]
    ).tolist()
    spans = zip(row_starts, (truncated.predictor_span for truncated in truncated_rows), strict=True)
    predictors_n = span_indices(
        [(row_start + start, row_start + end) for row_start, (start, end) in spans], policy.device
    )

    def run(leaf_N: Tensor) -> Tensor:
        return passes.states(policy, rows, leaf_N)[predictors_n]

    yield list(truncated_rows), run


@contextmanager
def frozen_weights(model: nn.Module) -> Iterator[None]:
    """Within this context no gradient of a weight is computed."""
    trained_parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trained_parameters:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trained_parameters:
            parameter.requires_grad_(True)
