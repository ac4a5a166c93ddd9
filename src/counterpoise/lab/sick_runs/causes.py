"""The planted causes: what is wrong with each run, and the finding that should come first.

A trained run is a real run of the embedded model in which one option, reward function, data file
or sampler is bad. An edited run is a copy of the healthy run `demo` whose files were changed, where
the fault does not develop within ten iterations of so small a model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from counterpoise.lab.sick_runs import edits
from counterpoise.lab.sick_runs.data_files import (
    write_benchmark,
    write_duplicates,
    write_fractions,
    write_problems,
)

REWARDS = "counterpoise.lab.sick_runs.planted_rewards"
# A run of about 30 seconds on one core: enough iterations for a trend, enough held-out problems for
# an interval.
BASE_OPTIONS = (
    "loop.iterations=9",
    "sample.prompts=10",
    "balance.target=48",
    "evaluate.prompts=64",
    "evaluate.samples=2",
    "monitor.every=4",
    "monitor.watch=0",
    "store.model=false",
)


@dataclass(frozen=True, slots=True)
class TrainedRun:
    """A run of the preset `demo` with other options; `data` writes files and names them."""

    name: str
    finding: str  # the finding that should come first; "": healthy
    planted: str  # what is wrong, in a phrase
    options: tuple[str, ...] = ()
    data: Callable[[Path, int], list[str]] | None = None  # (folder, seed) -> further options
    stale_sampler: bool = False


@dataclass(frozen=True, slots=True)
class EditedRun:
    """A copy of the healthy run `demo` with changed files."""

    name: str
    finding: str
    planted: str
    edit: Callable[[Path], None]


HEALTHY_RUNS = (
    TrainedRun("demo", "", "QB and RB"),
    TrainedRun(
        "grouped",
        "",
        "QB without RB; a benchmark of other problems",
        ("balance.tau=0",),
        data=lambda folder, seed: write_benchmark(folder, seed, leak=False),
    ),
    TrainedRun(
        "coupled",
        "",
        "composer coupled, problems from a file",
        ("batch.composer=coupled", "balance.tau=0"),
        data=write_problems,
    ),
    TrainedRun(
        "whole",
        "",
        "one step per batch, dr_grpo, easier problems",
        ("batch.composer=whole", "batch.steps=1", "balance.tau=0", "credit.name=dr_grpo",
         "task.levels=[2]", "update.lr=2e-4"),
    ),
)  # fmt: skip

SICK_RUNS: tuple[TrainedRun | EditedRun, ...] = (
    TrainedRun("lr-x10", "learning_rate", "learning rate ten times too high", ("update.lr=1e-3",)),
    TrainedRun("cut-groups", "cut_groups", "composer shuffled", ("batch.composer=shuffled",)),
    TrainedRun(
        "stale-sampler", "sampler_mismatch", "sampler keeps its first weights", stale_sampler=True
    ),
    TrainedRun(
        "text-verifier",
        "rejected_answers",
        "reward function compares texts, half of the references are fractions",
        (f"verify.name={REWARDS}:compares_texts",),
        data=write_fractions,
    ),
    TrainedRun(
        "flaky-verifier",
        "inconsistent_rewards",
        "one verdict in five is turned round",
        (f"verify.name={REWARDS}:flaky",),
    ),
    TrainedRun(
        "equal-rewards",
        "equal_rewards",
        "reward function returns 1 for everything",
        (f"verify.name={REWARDS}:always_right",),
    ),
    TrainedRun(
        "duplicates",
        "duplicate_prompts",
        "ten copies of each problem",
        data=write_duplicates,
    ),
    TrainedRun(
        "leak",
        "benchmark_prompts",
        "one training prompt in six is a benchmark problem",
        data=lambda folder, seed: write_benchmark(folder, seed, leak=True),
    ),
    TrainedRun(
        "idle-buffer",
        "unused_rollouts",
        "reward balance waits for more rollouts than are sampled",
        ("balance.target=400", "balance.max_age=2"),
    ),
    EditedRun("length", "length_drift", "responses ramble on after the answer", edits.ramble),
    EditedRun("entropy", "entropy_collapse", "entropy falls to nothing", edits.collapse_entropy),
    EditedRun("echo", "question_echo", "responses repeat the question and are paid", edits.echo),
    EditedRun("not-finite", "not_finite_steps", "steps skipped as not finite", edits.skip_steps),
)
