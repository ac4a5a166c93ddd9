"""Time whole iterations of our engine: `loop.iterate` as a run calls it, with a real folder."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from counterpoise.config import RunConfig
from counterpoise.lab.speed import workload
from counterpoise.lab.speed.clock import PeakMemory, Timing, time_once
from counterpoise.lab.speed.workload import Workload
from counterpoise.loop import iterate, open_writer
from counterpoise.model.load import Policy
from counterpoise.run.state import new_state
from counterpoise.store.folder import RunFolder
from counterpoise.types import Prompt


@dataclass(frozen=True, slots=True)
class IterationTimings:
    """Timings of repeated iterations of one engine."""

    total: Timing
    sampling: Timing
    update: Timing
    tokens: int  # sampled in each iteration
    steps: int  # optimizer steps of each iteration
    allocated: int = 0  # bytes at the peak; 0: not measured
    reserved: int = 0
    stages: dict[str, float] = field(default_factory=dict)  # median seconds by stage, if known

    def data(self) -> dict[str, Any]:
        return {
            "iteration": self.total.data(), "sampling": self.sampling.data(),
            "update": self.update.data(), "tokens": self.tokens, "optimizer_steps": self.steps,
            "allocated_gb": self.allocated / 1e9, "reserved_gb": self.reserved / 1e9,
            "stages": self.stages,
        }  # fmt: skip


class TimedEngine:
    """Our engine, ready to iterate. A plain call warms it up; `run_timed` records the time."""

    def __init__(
        self, policy: Policy, config: RunConfig, path: Path, heldout: Sequence[Prompt] = ()
    ) -> None:
        self.config = config
        self.state = new_state(policy, config)
        self.prompts = workload.make_train_set(policy.tokenizer, config.sample.prompts)
        self.writer = open_writer(RunFolder.create(path, config), policy, config)
        self.heldout = heldout  # problems of the probes
        self.verifier = workload.AlternatingVerifier()
        self.seconds: list[float] = []
        self.records: list[dict[str, Any]] = []  # lines of metrics.jsonl

    def __call__(self) -> dict[str, Any]:
        return iterate(
            self.state, self.prompts, self.config, self.verifier, self.writer, self.heldout
        )

    def run_timed(self, times: int = 1) -> None:
        """Time iterations. Each is written while the next runs; the last waits for its files."""
        for repeat in range(times):
            work = self._iterate_and_wait if repeat == times - 1 else self._iterate
            self.seconds.append(time_once(work, self.state.policy.device))

    def _iterate(self) -> None:
        self.records.append(self())

    def _iterate_and_wait(self) -> None:
        self._iterate()
        self.writer.wait()

    def stage_timing(self, name: str) -> Timing:
        return Timing(tuple(record[f"{name}_seconds"] for record in self.records))

    def check_work(self, size: Workload) -> None:
        """Raise an error if the last iteration did less than `size`.

        Stopping early or dropping rows would look like speed.
        """
        record = self.records[-1]
        sampled_tokens, trained_rows = record["rollout_tokens"], record["batch_rows"]
        if (sampled_tokens, trained_rows) != (size.rollouts * size.length, size.rollouts):
            raise AssertionError(
                f"{sampled_tokens} tokens sampled, {trained_rows} rows trained: not {size}"
            )

    def summarize(
        self, workload_size: Workload, peak: PeakMemory | None = None
    ) -> IterationTimings:
        """All timings, after checking that the engine did the work it should have done."""
        self.check_work(workload_size)
        record = self.records[-1]
        return IterationTimings(
            total=Timing(tuple(self.seconds)),
            sampling=self.stage_timing("sample"),
            update=self.stage_timing("update"),
            tokens=record["rollout_tokens"],
            steps=record["steps"],
            allocated=peak.allocated if peak else 0,
            reserved=peak.reserved if peak else 0,
            stages={
                name.removesuffix("_seconds"): self.stage_timing(
                    name.removesuffix("_seconds")
                ).median
                for name in record
                if name.endswith("_seconds")
            },
        )


@contextmanager
def temporary_run_folders() -> Iterator[Path]:
    """A temporary folder for the run folders of a measurement."""
    with tempfile.TemporaryDirectory(prefix="poise-bench-") as path:
        yield Path(path)
