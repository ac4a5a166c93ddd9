"""A pass that does not fit in memory is made again in smaller pieces.

    size -> size / 2, as often as memory runs out, down to the smallest piece there is

How a step is cut changes its gradient by rounding only, so nothing is lost but the time of the
pass that failed. The new size holds for the rest of the run, and is told.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch

from counterpoise.errors import PoiseError
from counterpoise.types import Row

T = TypeVar("T")

# What allocators say that raise no type of their own: torch's on the CPU, cuBLAS, the driver.
OUT_OF_MEMORY_MESSAGES = (
    "DefaultCPUAllocator",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDA error: out of memory",
)
TOKENS_CAPTION = "micro-batches of {:,} tokens"
GENERAL_REMEDY = (  # outside the passes of the update, which grow smaller by themselves
    "go on with --resume and --set monitor.every=0, or start anew with fewer sample.prompts, "
    "a lower sample.max_new_tokens or a smaller model"
)
PROMPTS_CAPTION = "{:,} prompts sampled at once"
UPDATE_REMEDY = (
    "go on with --resume and --set update.checkpointing=true, or start anew with a lower "
    "sample.max_new_tokens or a smaller model"
)


class MicroBatch:
    """How much one pass takes: it shrinks when memory runs out and never grows again.

    Example:
        micro = MicroBatch(16384, tell=watch.say)
        micro.fitting(lambda tokens: score(policy, rows, 1.0, tokens), least=900, most=40_000)
    """

    def __init__(
        self,
        size: int,
        *,
        caption: str = TOKENS_CAPTION,
        notify: Callable[[str], None] = lambda message: None,
    ) -> None:
        self.size = size
        self.caption = caption
        self.notify = notify

    def run_fitting(
        self, attempt: Callable[[int], T], *, smallest: int, total: int, remedy: str = UPDATE_REMEDY
    ) -> T:
        """attempt(size), again with half of it while memory runs out.

        `smallest` is the smallest piece the work can be cut into and `total` all of it: a size above
        `total` is no smaller piece than `total`. An attempt must start from nothing: what a failed
        one left behind is its own to clear away.
        """
        while True:
            try:
                return attempt(self.size)
            except (RuntimeError, MemoryError) as fault:
                if not is_out_of_memory(fault):
                    raise
            # Out here the fault is gone, and with its traceback the tensors of the failed pass.
            self._shrink(smallest, total, remedy)

    def run_rows(self, attempt: Callable[[int], T], rows: Sequence[Row]) -> T:
        """`fitting` for rows, whose smallest piece is the longest of them: rows are never cut."""
        tokens = [len(row.content.prompt_tokens) + row.num_read for row in rows]
        return self.run_fitting(attempt, smallest=max(tokens, default=0), total=sum(tokens))

    def _shrink(self, least: int, most: int, remedy: str) -> None:
        tried = min(self.size, most)
        if tried <= least:
            raise PoiseError(
                f"out of memory at {self.caption.format(least)}, the smallest possible: {remedy}"
            )
        self.size = max(least, tried // 2)
        gc.collect()
        torch.cuda.empty_cache()  # does nothing where CUDA was never used
        self.notify(f"{self.caption.format(self.size)} from now on: out of memory at {tried:,}")


@contextmanager
def explain_out_of_memory(remedy: str) -> Iterator[None]:
    """Around work that cannot be cut here: memory that runs out becomes one line."""
    try:
        yield
    except (RuntimeError, MemoryError) as fault:
        if not is_out_of_memory(fault):
            raise
        raise PoiseError(f"out of memory: {remedy}") from fault


def is_out_of_memory(fault: BaseException) -> bool:
    """Whether a fault is one that a smaller pass may be spared."""
    if isinstance(fault, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(fault, RuntimeError) and any(
        sign in str(fault) for sign in OUT_OF_MEMORY_MESSAGES
    )
