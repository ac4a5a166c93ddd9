"""Hidden states for token weights inside verl: kept by every rank, turned into weights on rank 0.

verl's scoring pass, which precedes every update, has the hidden states that token weights read
(head_capture.py). So no further pass is needed: in that pass every rank keeps them for its rows, on
the CPU. When the driver knows the advantages it sends a request; the ranks send the states of the
rows with signal to rank 0, and rank 0 computes the weights as the native engine does.

plugin.py installs the wrapper and the method below in verl's workers.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.errors import PoiseError, first_line
from counterpoise.hosts.verl.head_capture import (
    ROW_FIELD,
    HeadCapture,
    captured_head,
    find_difference,
    gather_rows,
    head_fault,
    scaled_layer,
)
from counterpoise.hosts.verl.weight_request import (
    WEIGH_TOKENS,
    WeightRequest,
    WeightResult,
    evaluate_request,
)
from counterpoise.types import Floats

KEEP_STATES_KEY = "poise_keep_states"  # in the extra information of verl's batch
TOKENS_PER_TRANSFER = 16384  # of one rank; more would fill the memory of rank 0's GPU


@dataclass(frozen=True, slots=True, eq=False)
class ScoredRow:
    """The trained tokens of one row as verl's scoring pass saw them; everything on the CPU."""

    batch_index: int
    tokens_T: NDArray[np.int32]
    logprobs_T: Floats
    hidden_TD: Tensor


class StateCapture(HeadCapture):
    """Keeps the rows of one scoring pass on one rank."""

    def __init__(self, first_index: int, *, keeps_head: bool) -> None:
        super().__init__(first_index, keeps_head=keeps_head)
        self.rows: list[ScoredRow] = []

    def keep_rows(
        self, *, model_output: Any, data: Any, dp_group: Any = None
    ) -> tuple[Tensor, dict[str, Any]]:
        """In place of a loss, which a pass that only scores does not have."""
        logprobs = model_output["log_probs"]
        logprobs_N = logprobs.values().detach()
        self.rows += [
            ScoredRow(
                row.batch_index,
                row.tokens_T,
                logprobs_N[row.predictor_N].float().cpu().numpy(),
                row.hidden_TD,
            )
            for row in self.trained_rows(logprobs, data)
            if len(row.tokens_T)
        ]
        return torch.zeros(()), {}


def weigh_captured(
    capture: StateCapture | None, request: WeightRequest, engine: Any
) -> WeightResult:
    """Answer a request; called by all ranks together, and rank 0 has the result."""
    rank, group = engine.get_data_parallel_rank(), engine.get_data_parallel_group()
    wanted = frozenset(request.batch_indices)
    own_rows = [row for row in capture.rows if row.batch_index in wanted] if capture else []
    rows = {row.batch_index: row for row in gather_in_parts(own_rows, group, rank)}
    if rank != 0:
        return WeightResult()
    if capture is None or capture.head is None or rows.keys() != wanted:
        return WeightResult(fault="verl's scoring pass did not show all rows of the batch")
    layer = scaled_layer(engine, capture.head)
    ordered_rows = [rows[index] for index in request.batch_indices]
    if fault := head_fault(engine) or find_difference(ordered_rows, layer, request.temperature):
        return WeightResult(fault=fault)
    try:
        hidden = [row.hidden_TD.to(layer.device) for row in ordered_rows]
        return WeightResult(evaluate_request(request, hidden, layer))
    except (PoiseError, torch.OutOfMemoryError) as fault_of_method:
        return WeightResult(fault=first_line(fault_of_method))


def gather_in_parts(rows: Sequence[ScoredRow], group: Any, rank: int) -> list[ScoredRow]:
    """The rows of all ranks on rank 0, a limited number of tokens at a time."""
    parts: list[list[ScoredRow]] = [[]]
    num_tokens = 0
    for row in rows:
        num_tokens += len(row.tokens_T)
        if num_tokens > TOKENS_PER_TRANSFER and parts[-1]:
            parts.append([])
            num_tokens = len(row.tokens_T)
        parts[-1].append(row)
    # Every rank takes part in every transfer.
    num_parts = [0] * torch.distributed.get_world_size(group)
    torch.distributed.all_gather_object(num_parts, len(parts), group=group)
    gathered = []
    for number in range(max(num_parts)):
        part = parts[number] if number < len(parts) else []
        gathered += gather_rows(part, group, rank)
    return gathered


def install_in_workers() -> None:
    """Wrap the scoring method of verl's workers, and add the one that answers a request."""
    from verl.single_controller.base.decorator import Dispatch, register
    from verl.utils import tensordict_utils
    from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

    infer_batch = TrainingWorker.infer_batch

    @functools.wraps(infer_batch)
    def keeping_states(self: Any, data: Any) -> Any:
        if not tensordict_utils.pop(data, key=KEEP_STATES_KEY, default=False):
            return infer_batch(self, data)
        rank = self.engine.get_data_parallel_rank()
        self.poise_states = StateCapture(rank * data.shape[0], keeps_head=rank == 0)
        data[ROW_FIELD] = torch.arange(data.shape[0])
        tensordict_utils.assign_non_tensor(data, compute_loss=True)
        loss_function, self.loss_fn = self.loss_fn, self.poise_states.keep_rows
        try:
            with captured_head(self.engine, self.poise_states):
                return infer_batch(self, data)
        finally:
            self.loss_fn = loss_function

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def weigh_tokens(self: Any, request: WeightRequest) -> WeightResult:
        capture = getattr(self.actor, "poise_states", None)
        self.actor.poise_states = None
        return weigh_captured(capture, request, self.actor.engine)

    TrainingWorker.infer_batch = keeping_states
    setattr(ActorRolloutRefWorker, WEIGH_TOKENS, weigh_tokens)
