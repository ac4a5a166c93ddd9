"""Work on tensors of one shape, captured as CUDA graphs and replayed on other values.

A graph repeats kernels at the addresses they were captured with. So what changes from one use to
the next is copied to where the captured work reads it, and what it finds lies where it wrote it:
whoever wants to keep that copies it before the next use. All graphs share one pool of memory, which
is as large as the largest of them needs. Work that is to be differentiated is two graphs; what the
first leaves for the second lies in the pool, so nothing else may be replayed in between.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

MAX_GRAPHS = 64  # graphs; a run meets far fewer sizes

NamedTensors = dict[str, Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class CapturedWork:
    inputs: NamedTensors
    outputs: Any
    graph: Any  # torch.cuda.CUDAGraph


@dataclass(frozen=True, slots=True, eq=False)
class CapturedForwardBackward:
    inputs: NamedTensors
    x: Tensor
    y: Tensor
    dy: Tensor
    dx: Tensor
    forward: Any  # torch.cuda.CUDAGraph
    backward: Any


class GraphCache:
    """
    Example:
        replays = GraphCache(device)
        found = replays("double", {"x": x}, lambda given: 2 * given["x"])    # captures, and runs
        found = replays("double", {"x": y}, lambda given: 2 * given["x"])    # replays
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._entries: dict[Hashable, CapturedWork] = {}
        self._differentiable: dict[Hashable, CapturedForwardBackward] = {}
        self._pool: Any = None
        self.num_replays = 0  # graphs so far

    def __len__(self) -> int:
        return len(self._entries) + len(self._differentiable)

    def __call__(
        self, key: Hashable, values: Mapping[str, np.ndarray], work: Callable[[NamedTensors], Any]
    ) -> Any:
        """What `work` finds; it is not called where the key has been met."""
        entry = self._entries.get(key)
        if entry is None:
            entry = self._capture(values, work)
            self._entries[key] = entry
        else:
            _copy_inputs(entry.inputs, values)
        self.replay(entry.graph)
        return entry.outputs

    def differentiable(
        self,
        key: Hashable,
        values: Mapping[str, np.ndarray],
        x: Tensor,
        work: Callable[[NamedTensors, Tensor], Tensor],
    ) -> Tensor:
        """work(given, x), with a gradient to x alone, which is to be taken before the next use."""
        entry = self._differentiable.get(key)
        if entry is None:
            entry = self._capture_both(values, x.detach(), work)
            self._differentiable[key] = entry
        else:
            _copy_inputs(entry.inputs, values)
        y: Tensor = _ReplayedFunction.apply(x, entry, self)
        return y

    def replay(self, graph: Any) -> None:
        self.num_replays += 1
        graph.replay()

    def clear(self) -> None:
        """All that was captured, and its memory."""
        self._entries.clear()
        self._differentiable.clear()
        self._pool = None

    def _capture(
        self, values: Mapping[str, np.ndarray], work: Callable[[NamedTensors], Any]
    ) -> CapturedWork:
        given = self._allocate_inputs(values)
        graph = torch.cuda.CUDAGraph()
        with self._capturing(graph):
            found = work(given)
        return CapturedWork(given, found, graph)

    def _capture_both(
        self,
        values: Mapping[str, np.ndarray],
        x: Tensor,
        work: Callable[[NamedTensors, Tensor], Tensor],
    ) -> CapturedForwardBackward:
        given, leaf = self._allocate_inputs(values), x.clone().requires_grad_()
        forward, backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with self._capturing(forward), torch.enable_grad():
            y = work(given, leaf)
        dy = torch.zeros_like(y)
        with self._capturing(backward):
            (dx,) = torch.autograd.grad(y, leaf, dy)
        return CapturedForwardBackward(given, leaf.detach(), y.detach(), dy, dx, forward, backward)

    def _allocate_inputs(self, values: Mapping[str, np.ndarray]) -> NamedTensors:
        if len(self) >= MAX_GRAPHS:
            self.clear()
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        return {name: torch.from_numpy(array).to(self.device) for name, array in values.items()}

    def _capturing(self, graph: Any) -> Any:
        # relaxed: a shape may be the first to need some variant of a kernel, which is loaded then
        return torch.cuda.graph(graph, pool=self._pool, capture_error_mode="relaxed")


class _ReplayedFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, entry: CapturedForwardBackward, replays: GraphCache) -> Tensor:
        entry.x.copy_(x)
        replays.replay(entry.forward)
        ctx.entry, ctx.replays, ctx.turn = entry, replays, replays.num_replays
        return entry.y.clone()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        assert ctx.turn == ctx.replays.num_replays, (
            "another graph was replayed between the two ways"
        )
        ctx.entry.dy.copy_(dy)
        ctx.replays.replay(ctx.entry.backward)
        return ctx.entry.dx.clone(), None, None


def _copy_inputs(given: NamedTensors, values: Mapping[str, np.ndarray]) -> None:
    for name, array in values.items():
        given[name].copy_(torch.from_numpy(array).pin_memory(), non_blocking=True)
