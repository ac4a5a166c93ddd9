"""Keep what enters the output layer of verl's model: hidden states, the layer itself, the rows.

Under FSDP no process holds the model, but while a forward pass runs, every rank sees the hidden
states h of its rows and the output layer W, which is whole in that moment. A `HeadCapture` notes
both; `trained_rows` finds the trained tokens of a pass in them; `gather_rows` collects the rows of
all ranks on rank 0. The coupling of a step (step_coupling.py) and token weights (token_states.py)
are computed from them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.model.general import logit_scale, relative_difference
from counterpoise.model.head import token_logprobs
from counterpoise.model.residuals import wide
from counterpoise.types import Floats

ROW_FIELD = "poise_row"  # a row's index among those of its rank
CHECKED_TOKENS = 64  # whose log-probabilities are computed again from h and W
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6}  # half precision: 0.1
RowT = TypeVar("RowT")


@dataclass(frozen=True, slots=True, eq=False)
class OutputLayer:
    """The output layer, z = cap(W h); stands in for a Policy where nothing else of it is read."""

    unembedding: Tensor  # [V, D]
    softcap: float

    @property
    def decoder(self) -> OutputLayer:
        return self

    @property
    def device(self) -> torch.device:
        return self.unembedding.device


class RowStates(Protocol):
    """The trained tokens of a row, and the hidden states that predicted them."""

    @property
    def tokens_T(self) -> NDArray[np.int32]: ...
    @property
    def logprobs_T(self) -> Floats: ...
    @property
    def hidden_TD(self) -> Tensor: ...


@dataclass(frozen=True, slots=True, eq=False)
class RowInPass:
    """Where the trained tokens of one row are in the tensors of a pass."""

    number: int  # of the row in the pass
    batch_index: int  # of the row in the whole batch
    is_trained_T: Tensor  # over the response
    predictor_N: Tensor  # positions of their log-probabilities among those of the pass
    tokens_T: NDArray[np.int32]
    hidden_TD: Tensor  # on the CPU


class HeadCapture:
    """Notes the hidden states of a pass on one rank, and the output layer where it is wanted."""

    def __init__(self, first_index: int, *, keeps_head: bool) -> None:
        self.first_index, self.keeps_head = first_index, keeps_head
        self.head: Tensor | None = None  # W as the forward pass used it
        self._hidden: Tensor | None = None  # of the open pass: [B, L, D], or packed [1, N, D]

    def read_head(self, module: Any, inputs: tuple[Any, ...]) -> None:
        """A hook before the output layer's forward pass, in which its weights are whole."""
        self._hidden = inputs[0].detach()
        if self.keeps_head and self.head is None:
            self.head = module.weight.detach().clone()

    def batch_indices(self, data: Any) -> list[int]:
        """The rows of a pass, as indices of the whole batch."""
        return [self.first_index + row for row in data[ROW_FIELD].tolist()]

    def trained_rows(
        self, logprobs: Any, data: Any, wanted: frozenset[int] | None = None
    ) -> Iterator[RowInPass]:
        """The rows of the pass that just ran; `wanted` are indices of the batch, None is all.

        `logprobs` is ragged over prompt and response.
        """
        if self._hidden is None:
            return
        bounds = logprobs.offsets()
        columns = (data[name].unbind() for name in ("input_ids", "response_mask"))
        packed = self._hidden.shape[0] == 1
        for i, (batch_index, ids_L, mask_T) in enumerate(
            zip(self.batch_indices(data), *columns, strict=True)
        ):
            if wanted is not None and batch_index not in wanted:
                continue
            start, end = int(bounds[i]), int(bounds[i + 1])
            is_trained_T = mask_T.bool()
            # The state before a token predicts it.
            predictor_T = end - start - len(mask_T) - 1 + torch.nonzero(is_trained_T).squeeze(1)
            hidden_LD = self._hidden[0, start:end] if packed else self._hidden[i]
            yield RowInPass(
                i,
                batch_index,
                is_trained_T,
                start + predictor_T,
                ids_L[predictor_T + 1].cpu().numpy().astype(np.int32),
                hidden_LD[predictor_T].cpu(),
            )


@contextmanager
def captured_head(engine: Any, capture: HeadCapture) -> Iterator[None]:
    """Let `capture` read the output layer in the passes that run inside."""
    hook = output_layer(engine).register_forward_pre_hook(capture.read_head)
    try:
        yield
    finally:
        hook.remove()


def output_layer(engine: Any) -> Any:
    """The module that turns hidden states into logits."""
    return _unwrapped(engine.module).get_output_embeddings()


def head_fault(engine: Any) -> str:
    """Why the logits are not W h; "" if no reason is known: find_difference compares numbers."""
    has_bias = getattr(output_layer(engine), "bias", None) is not None
    return "the model's output layer has a bias" if has_bias else ""


def scaled_layer(engine: Any, weight: Tensor) -> OutputLayer:
    """The output layer as a model with scaled or capped logits uses it."""
    config = _unwrapped(engine.module).config
    scale = logit_scale(config)
    softcap = float(getattr(config, "final_logit_softcapping", None) or 0.0)
    return OutputLayer(weight if scale == 1 else scale * wide(weight), softcap)


@torch.no_grad()
def find_difference(rows: Sequence[RowStates], layer: OutputLayer, temperature: float) -> str:
    """Why h and W do not explain the log-probabilities; "" if they do."""
    hidden = torch.cat([row.hidden_TD for row in rows])[:CHECKED_TOKENS].to(layer.device)
    tokens, logprobs = (
        torch.from_numpy(np.concatenate(arrays)[:CHECKED_TOKENS]).to(layer.device)
        for arrays in ([row.tokens_T for row in rows], [row.logprobs_T for row in rows])
    )
    computed, _ = token_logprobs(
        wide(hidden),
        wide(layer.unembedding),
        tokens.long(),
        temperature,
        softcap=layer.softcap,
    )
    tolerance = TOLERANCE.get(hidden.dtype, 0.1)
    if relative_difference(computed, logprobs) < tolerance:
        return ""
    return "the model's logits are more than a product of its output layer and its hidden states"


def gather_rows(rows: list[RowT], group: Any, rank: int) -> list[RowT]:
    """The rows of all ranks on rank 0 of the group; elsewhere []."""
    if torch.distributed.get_world_size(group) == 1:
        return rows
    by_rank: list[Any] | None = None
    if rank == 0:
        by_rank = [None] * torch.distributed.get_world_size(group)
    destination = torch.distributed.get_global_rank(group, 0)
    torch.distributed.gather_object(rows, by_rank, dst=destination, group=group)
    return [row for rank_rows in by_rank or [] for row in rank_rows]


def _unwrapped(module: Any) -> Any:
    """The model below FSDP1's wrapper; FSDP2 has none."""
    return getattr(module, "_fsdp_wrapped_module", module)
