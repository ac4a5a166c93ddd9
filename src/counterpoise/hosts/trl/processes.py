"""Several processes, one mind: rollouts are known to all, decisions are made by one.

`torch.distributed` sends whole Python objects here, once a generation: the rollouts of every
process in the order of the processes (the order in which TRL gathers rewards), and one decision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch import distributed

T = TypeVar("T")


def gather(own: list[T], processes: int) -> list[T]:
    """Everyone's lists, one after the other."""
    if processes == 1:
        return own
    parts: list[list[T]] = [[] for _ in range(processes)]
    distributed.all_gather_object(parts, own)
    return [item for part in parts for item in part]


def agree(decide: Callable[[], T], process: int, processes: int) -> T:
    """What process 0 decides; its fault, if it has one, is everyone's."""
    if processes == 1:
        return decide()
    box: list[tuple[T | None, Exception | None]] = [(None, None)]
    if process == 0:
        try:
            box = [(decide(), None)]
        except Exception as raised:  # the others would wait for ever
            box = [(None, raised)]
    distributed.broadcast_object_list(box, src=0)
    decision, fault = box[0]
    if fault is not None:
        raise fault
    return decision  # type: ignore[return-value]  # None only beside a fault
