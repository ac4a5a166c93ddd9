"""Read the probes of a run, an iteration at a time, so that memory does not grow with the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from counterpoise.errors import PoiseError, unknown_name
from counterpoise.report.not_measured import explain_no_probes
from counterpoise.report.pages.imported import read_imported
from counterpoise.report.run_data import RunData
from counterpoise.report.traces import Columns, read_columns
from counterpoise.store.folder import RunFolder, is_imported
from counterpoise.store.schema import (
    GRADIENT_PUSH_COLUMN,
    PROBE_COLUMNS,
    PROBE_PUSH_COLUMNS,
    PROBE_ROW_COLUMNS,
    step_file_name,
)

MAX_SUGGESTED = 12  # ids that an error lists
PARAMETERS = {  # monitor.probe_through
    "output_layer": "the output layer",
    "middle_layer": "the middle layer",
    "all_parameters": "all parameters",
}


@dataclass(frozen=True, slots=True, eq=False)
class ProbedIteration:
    """The probe tables of one iteration.

    Q counts its answers. Predicted movements are lr times push: nats, to first order, if the step
    were plain gradient descent on the output layer, or on the parameters of monitor.probe_through.
    """

    path: Path  # of the run
    iteration: int
    lr: float
    plan: dict[str, Any]
    prompt_of_group: Mapping[str, str]
    answers: list[dict[str, Any]]  # [Q], of probes.jsonl
    tokens: Columns  # of probes/
    rows: Columns  # of probe_rows/: the push of each row on each answer

    @property
    def steps(self) -> list[int]:
        """The optimizer steps of the iteration."""
        return np.unique(self.rows["step"]).tolist()

    @property
    def lengths_Q(self) -> NDArray[np.int64]:
        return np.array([len(answer["response_tokens"]) for answer in self.answers])

    def moved_Q(self) -> NDArray[np.float64]:
        """The real change of each answer's log-probability over the iteration."""
        return self._sum_by_answer(self.tokens["displacement"], self.tokens["answer"])

    def pushes_Q(self, step: int | None = None) -> NDArray[np.float64]:
        """The sum of all pushes on each answer, of one step or of all."""
        chosen = slice(None) if step is None else self.rows["step"] == step
        return self._sum_by_answer(self.rows["push"][chosen], self.rows["answer"][chosen])

    def predicted_Q(self) -> NDArray[np.float64]:
        """The change of each answer's log-probability that the sums of pushes predict."""
        return self.lr * self.pushes_Q()

    def _sum_by_answer(
        self, values: NDArray[np.generic], answers: NDArray[np.generic]
    ) -> NDArray[np.float64]:
        sums = np.bincount(answers, values.astype(np.float64), len(self.answers))
        return sums.astype(np.float64)

    def prompt_of_row(self, row: int) -> str:
        """The prompt id of a row."""
        return self.prompt_of_group[self.group_of_row(row)]

    def group_of_row(self, row: int) -> str:
        return str(self.plan["groups"][self.plan["group"][row]])

    def token_pushes(self, answer: int, row: int) -> list[tuple[int, float]]:
        """(position, predicted change) of the row's strongest tokens; none if not stored."""
        path = self.path / step_file_name("probe_pushes", self.iteration)
        if not path.is_file():
            return []
        pushes = read_columns(path, set(PROBE_PUSH_COLUMNS))
        chosen = (pushes["answer"] == answer) & (pushes["row"] == row)
        positions, values = pushes["position"][chosen], self.lr * pushes["push"][chosen]
        return list(zip(positions.tolist(), values.tolist(), strict=True))


@dataclass(frozen=True, slots=True, eq=False)
class ProbedRun:
    """A run with probes."""

    run: RunData
    answers_since: dict[int, list[dict[str, Any]]]  # by the first iteration that measured them
    iterations: list[int]  # with tables
    prompt_of_group: Mapping[str, str]  # of all groups of these iterations

    @classmethod
    def open(cls, path: Path) -> ProbedRun:
        """The run in `path`; an error says what to do if it followed no held-out answers."""
        folder = RunFolder(path) if is_imported(path) else RunFolder.open(path)
        answers_since = {line["iteration"]: line["answers"] for line in folder.read("probes")}
        stored = set(folder.step_files("probes")) & set(folder.step_files("probe_rows"))
        if not answers_since or not stored:
            raise PoiseError(explain_no_probes(folder, str(path)))
        run = read_imported(path)[0] if is_imported(path) else RunData.read(path)
        planned = {plan["iteration"] for plan in run.plans}
        # An iteration that is still being written has no metrics yet.
        stored &= {record["iteration"] for record in run.metrics}
        if not stored:
            raise PoiseError(f"{path} has not finished its first iteration yet: try again later")
        if not stored & planned:
            raise PoiseError(f"{path} did not store its plans: train with store.report=true")
        iterations = sorted(stored & planned)
        return cls(run, answers_since, iterations, _find_prompts(folder, run, set(iterations)))

    @property
    def through(self) -> str:
        """What rows push the answers through, in words: "the middle layer"."""
        return PARAMETERS[self.run.config.monitor.probe_through]

    @property
    def problem_ids(self) -> list[str]:
        """The held-out problems, in the order of the probes."""
        lists = self.answers_since.values()
        return list(dict.fromkeys(answer["problem_id"] for answers in lists for answer in answers))

    @property
    def prompt_ids(self) -> list[str]:
        """The training prompts of all traced updates."""
        return list(dict.fromkeys(self.prompt_of_group.values()))

    def read(self) -> Iterator[ProbedIteration]:
        """The traced iterations in order."""
        plans = {plan["iteration"]: plan for plan in self.run.plans}
        rates = {record["iteration"]: record.get("lr") for record in self.run.metrics}
        for iteration in self.iterations:
            since = max(number for number in self.answers_since if number <= iteration)
            path = self.run.path
            probes, rows = (
                path / step_file_name(kind, iteration) for kind in ("probes", "probe_rows")
            )
            yield ProbedIteration(
                path=path,
                iteration=iteration,
                lr=float(rates.get(iteration) or 0.0),
                plan=plans[iteration],
                prompt_of_group=self.prompt_of_group,
                answers=self.answers_since[since],
                tokens=read_columns(probes, set(PROBE_COLUMNS)),
                rows=_read_rows(rows),
            )


def _read_rows(path: Path) -> Columns:
    """The pushes of rows on answers: through other parameters than the output layer, if stored."""
    columns = read_columns(path, set(PROBE_ROW_COLUMNS))
    (gradient_push,) = GRADIENT_PUSH_COLUMN
    return {**columns, "push": columns.get(gradient_push, columns["push"])}


def _find_prompts(folder: RunFolder, run: RunData, iterations: set[int]) -> dict[str, str]:
    """The prompt id of every group of some iterations.

    `poise train` calls groups ITERATION:PROMPT. Where a user's own script trained with our TRL
    adapter, groups are numbered, and their rollouts name the prompt.
    """
    plans = [plan for plan in run.plans if plan["iteration"] in iterations]
    prompts = {group: group.partition(":")[2] for plan in plans for group in plan["groups"]}
    if is_imported(folder.path):
        for iteration in sorted({born for plan in plans for born in plan["born"]}):
            for line in folder.read_rollouts(iteration):
                if line["group"] in prompts:
                    prompts[line["group"]] = line["prompt_id"]
    return prompts


def find_id(kind: str, wanted: str, ids: list[str]) -> str:
    """The id itself, or the only id that ends in /WANTED.

    Example:
        >>> find_id("held-out problem", "12", ["sums/heldout/12", "sums/heldout/2"])
        'sums/heldout/12'
    """
    if wanted in ids:
        return wanted
    endings = [candidate for candidate in ids if candidate.endswith(f"/{wanted}")]
    if len(endings) == 1:
        return endings[0]
    if len(ids) > MAX_SUGGESTED:
        # The error suggests the nearest id; a list of thousands would bury it.
        ids = get_close_matches(wanted, ids, n=3, cutoff=0.0) + ids[: MAX_SUGGESTED - 3]
    raise unknown_name(kind, wanted, dict.fromkeys(ids))
