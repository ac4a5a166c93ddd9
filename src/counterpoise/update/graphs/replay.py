"""Capture work on tensors of one shape as CUDA graphs and replay it on other values.

A graph repeats its kernels at the addresses they were captured with. So changing inputs are copied
to where the captured work reads them, and outputs stay where it wrote them: a caller that wants to
keep outputs copies them before the next replay. All graphs share one memory pool, which is as large
as the largest of them needs. Differentiable work is two graphs; the forward graph leaves its
intermediate results in the pool for the backward graph, so nothing else may be replayed in between.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

MAX_GRAPHS = 64  # a run uses far fewer sizes

NamedTensors = dict[str, Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class CapturedWork:
    """A captured graph with its input and output tensors."""

    inputs: NamedTensors
    outputs: Any
    graph: Any  # torch.cuda.CUDAGraph


@dataclass(frozen=True, slots=True, eq=False)
class CapturedForwardBackward:
    """A pair of captured graphs: y = work(inputs, x), and dx from dy."""

    inputs: NamedTensors
    x: Tensor
    y: Tensor
    dy: Tensor
    dx: Tensor
    forward: Any  # torch.cuda.CUDAGraph
    backward: Any


class GraphCache:
    """Captured work by key: captured on first use, replayed afterwards.

    Example:
        graphs = GraphCache(device)
        doubled = graphs("double", {"x": x}, lambda inputs: 2 * inputs["x"])    # captures, and runs
        doubled = graphs("double", {"x": y}, lambda inputs: 2 * inputs["x"])    # replays
        doubled = graphs(None, {"x": y}, lambda inputs: 2 * inputs["x"])        # runs eagerly
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._entries: dict[Hashable, CapturedWork] = {}
        self._differentiable: dict[Hashable, CapturedForwardBackward] = {}
        self._pool: Any = None
        self.num_replays = 0

    def __len__(self) -> int:
        return len(self._entries) + len(self._differentiable)

    def __call__(
        self,
        key: Hashable | None,
        input_arrays: Mapping[str, np.ndarray],
        work: Callable[[NamedTensors], Any],
    ) -> Any:
        """Outputs of `work`, which is called only the first time a key is used."""
        if key is None:
            return work(self._to_device(input_arrays))
        captured = self._entries.get(key)
        if captured is None:
            captured = self._capture(input_arrays, work)
            self._entries[key] = captured
        else:
            _copy_inputs(captured.inputs, input_arrays)
        self.replay(captured.graph)
        return captured.outputs

    def differentiable(
        self,
        key: Hashable | None,
        input_arrays: Mapping[str, np.ndarray],
        x: Tensor,
        work: Callable[[NamedTensors, Tensor], Tensor],
    ) -> Tensor:
        """work(inputs, x), differentiable in x alone; call backward before the next replay."""
        if key is None:
            return work(self._to_device(input_arrays), x)
        captured = self._differentiable.get(key)
        if captured is None:
            captured = self._capture_both(input_arrays, x.detach(), work)
            self._differentiable[key] = captured
        else:
            _copy_inputs(captured.inputs, input_arrays)
        y: Tensor = _ReplayedFunction.apply(x, captured, self)
        return y

    def replay(self, graph: Any) -> None:
        """Replay one graph and count it."""
        self.num_replays += 1
        graph.replay()

    def clear(self) -> None:
        """Drop all graphs and their memory."""
        self._entries.clear()
        self._differentiable.clear()
        self._pool = None

    def _capture(
        self, input_arrays: Mapping[str, np.ndarray], work: Callable[[NamedTensors], Any]
    ) -> CapturedWork:
        inputs = self._allocate_inputs(input_arrays)
        graph = torch.cuda.CUDAGraph()
        with self._capturing(graph):
            outputs = work(inputs)
        return CapturedWork(inputs, outputs, graph)

    def _capture_both(
        self,
        input_arrays: Mapping[str, np.ndarray],
        x: Tensor,
        work: Callable[[NamedTensors, Tensor], Tensor],
    ) -> CapturedForwardBackward:
        inputs, leaf = self._allocate_inputs(input_arrays), x.clone().requires_grad_()
        forward, backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with self._capturing(forward), torch.enable_grad():
            y = work(inputs, leaf)
        # Both graphs come from one pool, so the backward finds the forward's activations in place.
        dy = torch.zeros_like(y)
        with self._capturing(backward):
            (dx,) = torch.autograd.grad(y, leaf, dy)
        return CapturedForwardBackward(inputs, leaf.detach(), y.detach(), dy, dx, forward, backward)

    def _allocate_inputs(self, input_arrays: Mapping[str, np.ndarray]) -> NamedTensors:
        """Input tensors on the device at addresses that every later replay reuses."""
        # Graphs share one pool, so they can only be freed together.
        if len(self) >= MAX_GRAPHS:
            self.clear()
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        return self._to_device(input_arrays)

    def _to_device(self, input_arrays: Mapping[str, np.ndarray]) -> NamedTensors:
        return {
            input_name: torch.from_numpy(array).to(self.device)
            for input_name, array in input_arrays.items()
        }

    def _capturing(self, graph: Any) -> Any:
        # relaxed: a new shape may need another variant of a kernel, which is loaded while capturing
        return torch.cuda.graph(graph, pool=self._pool, capture_error_mode="relaxed")


class _ReplayedFunction(torch.autograd.Function):
    """Autograd function whose forward and backward are replayed graphs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, entry: CapturedForwardBackward, graphs: GraphCache) -> Tensor:
        entry.x.copy_(x)
        graphs.replay(entry.forward)
        ctx.entry, ctx.graphs, ctx.replay_number = entry, graphs, graphs.num_replays
        return entry.y.clone()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        # Another replay would have overwritten the activations in the shared pool.
        assert ctx.replay_number == ctx.graphs.num_replays, (
            "another graph was replayed between forward and backward"
        )
        ctx.entry.dy.copy_(dy)
        ctx.graphs.replay(ctx.entry.backward)
        return ctx.entry.dx.clone(), None, None


def _copy_inputs(inputs: NamedTensors, input_arrays: Mapping[str, np.ndarray]) -> None:
    """Copy new values to where the captured work reads them."""
    for input_name, array in input_arrays.items():
        inputs[input_name].copy_(torch.from_numpy(array).pin_memory(), non_blocking=True)
