"""Keep several processes in agreement: all know every rollout, process 0 decides.

`torch.distributed` sends Python objects. Once per generation these are the rollouts of every
process, in the order of the processes (in which TRL gathers rewards too), and one decision.
PoiseCallback also gathers the loss's log-probabilities and entropies in every optimizer step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch import distributed

T = TypeVar("T")


def gather_lists(items: list[T], processes: int) -> list[T]:
    """The lists of all processes, one after the other."""
    if processes == 1:
        return items
    lists: list[list[T]] = [[] for _ in range(processes)]
    distributed.all_gather_object(lists, items)
    return [item for process_items in lists for item in process_items]


def decide_on_first_process(decide: Callable[[], T], process: int, processes: int) -> T:
    """Process 0's result of `decide`, on every process; an exception there is raised on all."""
    if processes == 1:
        return decide()
    message: list[tuple[T | None, Exception | None]] = [(None, None)]
    if process == 0:
        try:
            message = [(decide(), None)]
        except Exception as raised:  # without it the others would wait forever
            message = [(None, raised)]
    distributed.broadcast_object_list(message, src=0)
    decision, fault = message[0]
    if fault is not None:
        raise fault
    return decision  # type: ignore[return-value]  # without a fault it is what `decide` returned
