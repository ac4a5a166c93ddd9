"""What pushed a token inside verl: gathered from the ranks, decomposed on rank 0.

    push of token k on token j = pull_k <h_j, h_k> <r_j, r_k> / temperature^2

Every rank sees what this needs while it trains: hidden states h and the output layer W
(head_capture.py), and the log-probabilities, whose gradient is -pull. A monitored step keeps these
for the rows that the driver chose, sends them to rank 0, and rank 0 decomposes them as the native
monitor does. Only chosen rows push: where all rows of a step are chosen the numbers are those of
the whole step. Nothing is added to the step's own computation.

plugin.py installs the two wrappers and the method below in verl's workers.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from counterpoise.errors import first_line
from counterpoise.hosts.recorded_steps import observed_step
from counterpoise.hosts.verl.head_capture import (
    ROW_FIELD,
    HeadCapture,
    OutputLayer,
    captured_head,
    find_difference,
    gather_rows,
    head_fault,
    scaled_layer,
)
from counterpoise.microscope.monitor import Monitor, StepMeasurement
from counterpoise.model.load import Policy
from counterpoise.types import Floats, Rollout, Row

REQUEST_KEY = "poise_coupling"  # in the extra information of verl's batch
TAKE_COUPLINGS = "poise_take_couplings"  # a method that we add to verl's worker
MICRO_TOKENS = 16384  # of the monitor, which here makes no forward pass


@dataclass(frozen=True, slots=True)
class CouplingRequest:
    """Which rows of a batch are measured; it travels to the workers as JSON.

    Example:
        CouplingRequest([0, 3], groups=["1:ab", "1:ab"], watched=["1:ab"], temperature=1.0)
    """

    batch_indices: list[int]  # in the order that verl distributes over the ranks
    groups: list[str]  # of each
    watched: list[str]  # groups whose strongest pushes are kept
    temperature: float

    def to_text(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True, eq=False)
class CapturedRow:
    """The trained tokens of one row as the loss saw them; everything on the CPU."""

    batch_index: int  # in the whole batch
    tokens_T: NDArray[np.int32]
    logprobs_T: Floats
    pulls_T: Floats  # -dL/dlogp
    advantages_T: Floats
    hidden_TD: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class StepCoupling:
    """A measured step, or the reason why it could not be measured.

    Rows are in the order of `batch_indices`.
    The displacement of the measurement is NaN here: the driver fills it in.
    """

    step: int
    batch_indices: tuple[int, ...] = ()
    logprobs: tuple[Floats, ...] = ()
    pulls: tuple[Floats, ...] = ()
    measurement: StepMeasurement | None = None
    fault: str = ""


class RowCapture(HeadCapture):
    """Keeps the chosen rows of one optimizer step on one rank."""

    def __init__(self, request: CouplingRequest, first_index: int, keeps_head: bool) -> None:
        super().__init__(first_index, keeps_head=keeps_head)
        self.chosen = frozenset(request.batch_indices)
        self.rows: list[CapturedRow] = []

    def wrap_loss(self, loss_function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that keeps the chosen rows of a pass, then calls verl's loss."""

        def observed(*, model_output: Any, data: Any, dp_group: Any = None) -> Any:
            self._keep_rows(loss_function, model_output, data, dp_group)
            return loss_function(model_output=model_output, data=data, dp_group=dp_group)

        return observed

    def _keep_rows(
        self, loss_function: Callable[..., Any], model_output: Any, data: Any, dp_group: Any
    ) -> None:
        if not self.chosen.intersection(self.batch_indices(data)):
            return
        logprobs = model_output["log_probs"]  # by row, over prompt and response
        # The log-probabilities are the leaf, so no weight gets a gradient from this.
        with torch.enable_grad():
            leaf_N = logprobs.values().detach().clone().requires_grad_()
            leaf = torch.nested.nested_tensor_from_jagged(leaf_N, logprobs.offsets())
            loss, _ = loss_function(
                model_output={**model_output, "log_probs": leaf}, data=data, dp_group=dp_group
            )
            (gradient_N,) = torch.autograd.grad(loss, leaf_N)
        # verl multiplies a rank's loss by the number of ranks, because FSDP averages the gradients.
        pulls_N = -gradient_N / data["dp_size"]
        advantages = data["advantages"].unbind()
        self.rows += [
            CapturedRow(
                row.batch_index,
                row.tokens_T,
                leaf_N.detach()[row.predictor_N].float().cpu().numpy(),
                pulls_N[row.predictor_N].float().cpu().numpy(),
                advantages[row.number][row.is_trained_T].float().cpu().numpy(),
                row.hidden_TD,
            )
            for row in self.trained_rows(logprobs, data, self.chosen)
        ]


def decompose_step(
    step: int,
    request: CouplingRequest,
    rows: Sequence[CapturedRow],
    layer: OutputLayer,
) -> StepCoupling:
    """The coupling of the gathered rows, on rank 0."""
    rows = sorted(rows, key=lambda row: row.batch_index)
    if fault := find_difference(rows, layer, request.temperature):
        return StepCoupling(step, fault=fault)
    group_of_index = dict(zip(request.batch_indices, request.groups, strict=True))
    plan_rows = [_as_row(row, group_of_index[row.batch_index]) for row in rows]
    result = observed_step(
        range(len(rows)),
        logprobs=[row.logprobs_T for row in rows],
        old_logprobs=[row.logprobs_T for row in rows],
        advantages=[row.advantages_T for row in rows],
        pulls=[row.pulls_T for row in rows],
        tokens=sum(len(row.tokens_T) for row in rows),
        hidden=[row.hidden_TD.to(layer.device) for row in rows],
    )
    monitor = Monitor(request.temperature, MICRO_TOKENS, frozenset(request.watched))
    monitor.at(step, plan_rows)
    monitor.before_update(cast(Policy, layer), plan_rows, result)  # it reads the output layer only
    return StepCoupling(
        step=step,
        batch_indices=tuple(row.batch_index for row in rows),
        logprobs=tuple(row.logprobs_T for row in rows),
        pulls=tuple(row.pulls_T for row in rows),
        measurement=monitor.take_coupling(),
    )


def _as_row(row: CapturedRow, group: str) -> Row:
    advantage_T = row.advantages_T
    is_uniform = bool((advantage_T == advantage_T[0]).all())
    mean = float(advantage_T.mean())
    return Row(
        group=group,
        advantage=float(advantage_T[0]) if is_uniform else mean,
        num_tokens=len(row.tokens_T),
        index=row.batch_index,
        rollout=Rollout(
            prompt_id=group,
            prompt="",
            answer="",
            response="",
            reward=0.0,
            prompt_tokens=np.empty(0, np.int32),
            response_tokens=row.tokens_T,
            sampled_logprobs=row.logprobs_T,
        ),
        weights_T=None if is_uniform or not mean else advantage_T / mean,
    )


# -- in verl's workers ---------------------------------------------------------------------------


class CouplingRecorder:
    """Measures the steps of one update on one rank; rank 0 keeps the results."""

    def __init__(self, request: CouplingRequest, engine: Any, rows_of_rank: int) -> None:
        self.request, self.engine = request, engine
        self.first_index = engine.get_data_parallel_rank() * rows_of_rank
        self.steps_taken = 0
        self.results: list[StepCoupling] = []

    @contextmanager
    def step(self, worker: Any) -> Iterator[None]:
        """Capture the optimizer step that is taken inside."""
        rank = self.engine.get_data_parallel_rank()
        capture = RowCapture(self.request, self.first_index, keeps_head=rank == 0)
        loss_function = worker.loss_fn
        worker.loss_fn = capture.wrap_loss(loss_function)
        try:
            with captured_head(self.engine, capture):
                yield
        finally:
            worker.loss_fn = loss_function
        rows = gather_rows(capture.rows, self.engine.get_data_parallel_group(), rank)
        if rank == 0 and rows and capture.head is not None:
            self.results.append(self._decompose(rows, capture.head))
        self.steps_taken += 1

    def _decompose(self, rows: list[CapturedRow], weight: Tensor) -> StepCoupling:
        if fault := head_fault(self.engine):
            return StepCoupling(self.steps_taken, fault=fault)
        layer = scaled_layer(self.engine, weight)
        try:
            return decompose_step(self.steps_taken, self.request, rows, layer)
        except torch.OutOfMemoryError as shortage:  # training itself goes on
            return StepCoupling(self.steps_taken, fault=first_line(shortage))


def install_in_workers() -> None:
    """Wrap the training methods of verl's workers, and add the one that returns the results."""
    from verl.single_controller.base.decorator import Dispatch, register
    from verl.utils import tensordict_utils
    from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

    train_mini_batch, train_batch = TrainingWorker.train_mini_batch, TrainingWorker.train_batch

    @functools.wraps(train_mini_batch)
    def recording_mini_batches(self: Any, data: Any) -> Any:
        text = tensordict_utils.pop(data, key=REQUEST_KEY, default=None)
        if text is None:
            return train_mini_batch(self, data)
        request = CouplingRequest(**json.loads(text))
        data[ROW_FIELD] = torch.arange(data.shape[0])
        self.poise_recorder = CouplingRecorder(request, self.engine, data.shape[0])
        self.poise_recording = True
        try:
            return train_mini_batch(self, data)
        finally:
            self.poise_recording = False

    @functools.wraps(train_batch)
    def recording_batch(self: Any, data: Any) -> Any:
        if not getattr(self, "poise_recording", False):
            return train_batch(self, data)
        with self.poise_recorder.step(self):
            return train_batch(self, data)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def take_couplings(self: Any) -> list[StepCoupling]:
        recorder = getattr(self.actor, "poise_recorder", None)
        self.actor.poise_recorder = None
        return recorder.results if recorder is not None else []

    TrainingWorker.train_mini_batch = recording_mini_batches
    TrainingWorker.train_batch = recording_batch
    setattr(ActorRolloutRefWorker, TAKE_COUPLINGS, take_couplings)
