"""Write what one iteration leaves in its run folder, for every training engine.

On a GPU the native loop writes an iteration in a thread while it samples the next one: writing took
0.03 of 0.52 s for SmolLM2-135M's shape. On a CPU it waits until the iteration is written, since a
thread beside it would only slow the sampling down.

The thread must not call CUDA, because that would spoil a graph that is being captured: everything
in an `IterationResult` is on the CPU.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for_futures
from types import TracebackType
from typing import Any

from counterpoise.config import StoreConfig
from counterpoise.run import metrics
from counterpoise.store.folder import RunFolder


def write_iteration(
    folder: RunFolder,
    iteration: metrics.IterationResult,
    record: dict[str, Any],
    store: StoreConfig,
) -> None:
    """Write everything that an iteration has produced.

    Rollouts and tokens are written if `store` asks for them; a plan in full if `store.report`, and
    otherwise its numbers alone; probes, drops, prompt memory and metrics always, if there are any.
    The line of metrics.jsonl comes last: an iteration that has it is complete.
    """
    iteration_number = iteration.number
    if store.rollouts:
        folder.write_rollouts(iteration_number, iteration.groups)
    if store.tokens and any(result.rows for result in iteration.results):
        folder.write_table("tokens", iteration_number, metrics.token_trace(iteration))
        for kind, table in metrics.watched_traces(iteration).items():
            folder.write_table(kind, iteration_number, table)
    if iteration.probes and iteration.probes.new_answers_record:
        folder.append("probes", iteration.probes.new_answers_record)
    for kind, table in metrics.probe_traces(iteration).items():
        folder.write_table(kind, iteration_number, table)
    if iteration.plan and iteration.description:
        plan_numbers = {
            field: value
            for field, value in iteration.description.items()
            if not isinstance(value, list)
        }
        # Only the report draws the rows and steps of a plan.
        short_record = {"iteration": iteration_number, "describe": plan_numbers}
        folder.append("plans", metrics.plan_record(iteration) if store.report else short_record)
    if iteration.drops:
        folder.append("drops", metrics.drop_record(iteration))
    if iteration.prompt_memory:
        folder.append("memory", {"iteration": iteration_number, **iteration.prompt_memory})
    folder.append("metrics", record)


class IterationWriter:
    """Writes iterations in a thread, in their order, one at a time.

    With `in_background`, `write` returns at once; without it, when the iteration is written.
    Call `wait` before anything else writes to the folder or reads it. The error of a write that
    fails is raised by `wait`, by the next `write`, or at the end of the `with` block.

    Example:
        with IterationWriter(folder, config.store, in_background=True) as writer:
            writer.write(result, record)        # returns at once
            writer.wait()                       # now the iteration is in the folder
    """

    def __init__(self, folder: RunFolder, store: StoreConfig, *, in_background: bool) -> None:
        self.folder, self.store, self.in_background = folder, store, in_background
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="poise-writer")
        self._unfinished: Future[None] | None = None

    def write(self, iteration: metrics.IterationResult, record: dict[str, Any]) -> None:
        # At most one iteration waits: a slow disk must not fill the memory with rollouts.
        self.wait()
        self._unfinished = self._thread.submit(
            write_iteration, self.folder, iteration, record, self.store
        )
        if not self.in_background:
            self.wait()

    def wait(self) -> None:
        """Return when everything that was handed over is written.

        If Ctrl-C ends the waiting, another call waits for the same write.
        """
        if self._unfinished:
            wait_for_futures([self._unfinished])
            finished, self._unfinished = self._unfinished, None
            finished.result()

    def __enter__(self) -> IterationWriter:
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._thread.shutdown()  # finishes the last write
        if exception is None:  # otherwise the reason why training stopped is the one to report
            self.wait()
