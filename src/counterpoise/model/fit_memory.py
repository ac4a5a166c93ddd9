"""Retry a pass that runs out of memory in smaller pieces.

    size -> size / 2, as often as memory runs out, down to the smallest possible piece

How a step is split changes its gradient by rounding only, so nothing is lost but the time of the
failed pass. The new size is reported and stays for the rest of the run.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch

from counterpoise.errors import PoiseError, format_count
from counterpoise.types import Row

Result = TypeVar("Result")

# Messages of allocators without an exception type of their own: torch's on the CPU, cuBLAS, the
# driver.
OUT_OF_MEMORY_MESSAGES = (
    "DefaultCPUAllocator",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDA error: out of memory",
)
# For work other than the passes of the update, which shrink by themselves.
GENERAL_REMEDY = (
    "continue with --resume and --set monitor.every=0, or start again with fewer sample.prompts, "
    "a lower sample.max_new_tokens or a smaller model"
)
# For an error that remains when prompts are sampled one at a time: only the group can be smaller.
SAMPLING_REMEDY = (
    "start again with a lower sample.max_new_tokens, a lower sample.group_size or a smaller model"
)
UPDATE_REMEDY = (
    "continue with --resume and --set update.checkpointing=true, or start again with a lower "
    "sample.max_new_tokens or a smaller model"
)


def describe_tokens(tokens: int) -> str:
    return f"micro-batches of {tokens:,} tokens"


def describe_prompts(prompts: int) -> str:
    return f"{format_count(prompts, 'prompt')} sampled at once"


class FittedSize:
    """How much work is done at once: it shrinks when memory runs out and never grows again.

    The tokens of a pass of the update are one such size, the prompts that are sampled at once
    another.

    Example:
        micro_batch = FittedSize(16384, notify=watch.notify)
        micro_batch.run_fitting(
            lambda tokens: score_logprobs(policy, rows, 1.0, tokens), smallest=900, total=40_000
        )
    """

    def __init__(
        self,
        size: int,
        *,
        describe: Callable[[int], str] = describe_tokens,
        notify: Callable[[str], None] = lambda message: None,
        remedy: str = UPDATE_REMEDY,  # what the error advises if the smallest piece is too large
    ) -> None:
        self.size = size
        self.remedy = remedy
        self.describe = describe
        self.notify = notify

    def run_fitting(
        self,
        attempt: Callable[[int], Result],
        *,
        smallest: int,
        total: int,
        remedy: str = "",
    ) -> Result:
        """Return attempt(size), halving the size for as long as memory runs out.

        `smallest` is the smallest piece that the work can be split into, `total` all of the work: a
        size above `total` is treated as `total`. `remedy`, if any, replaces `self.remedy` in the
        error. Each attempt must start from scratch and clean up after a failed one.
        """
        while True:
            try:
                return attempt(self.size)
            except (RuntimeError, MemoryError) as fault:
                if not is_out_of_memory(fault):
                    raise
            # Outside the except block the exception is gone, and with its traceback the references
            # to the tensors of the failed pass: only here can their memory be freed.
            self._shrink(smallest, total, remedy or self.remedy)

    def run_rows(self, attempt: Callable[[int], Result], rows: Sequence[Row]) -> Result:
        """`run_fitting` for rows; rows are never split, so the longest is the smallest piece."""
        tokens_R = [len(row.content.prompt_tokens) + row.num_tokens_read for row in rows]
        return self.run_fitting(attempt, smallest=max(tokens_R, default=0), total=sum(tokens_R))

    def _shrink(self, smallest: int, total: int, remedy: str) -> None:
        failed_size = min(self.size, total)
        if failed_size <= smallest:
            raise PoiseError(
                f"out of memory at {self.describe(smallest)}, the smallest possible: {remedy}"
            )
        self.size = max(smallest, failed_size // 2)
        free_unused_memory()
        self.notify(f"{self.describe(self.size)} from now on: out of memory at {failed_size:,}")


def retry_with_released_memory(
    attempt: Callable[[], Result], release: Callable[[], None]
) -> Result:
    """Return attempt(); if memory runs out, once more without what `release` lets go of."""
    try:
        return attempt()
    except (RuntimeError, MemoryError) as fault:
        if not is_out_of_memory(fault):
            raise
    # Outside the except block, as in `run_fitting`.
    release()
    free_unused_memory()
    return attempt()


def free_unused_memory() -> None:
    """Give back what no tensor holds any more."""
    gc.collect()
    torch.cuda.empty_cache()  # does nothing if CUDA was never used


@contextmanager
def explain_out_of_memory(remedy: str) -> Iterator[None]:
    """Turn running out of memory into a one-line error, around work that cannot be split."""
    try:
        yield
    except (RuntimeError, MemoryError) as fault:
        if not is_out_of_memory(fault):
            raise
        raise PoiseError(f"out of memory: {remedy}") from fault


def is_out_of_memory(fault: BaseException) -> bool:
    """Whether an error means that memory ran out, so that a smaller pass may succeed."""
    if isinstance(fault, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(fault, RuntimeError) and any(
        message in str(fault) for message in OUT_OF_MEMORY_MESSAGES
    )
