"""Check that the logs and files of an iteration agree with each other.

    rollouts/   as many rollouts and tokens as metrics.jsonl says, the same mean reward, groups of
                this iteration, tokens of the vocabulary
    plans       rows that are in rollouts/ of the iteration that sampled them, with as many tokens;
                steps that use each row at most once; as many rows as metrics.jsonl says; with
                store.report=false a plan has no steps, and only its number of rows is compared
    drops       rollouts that exist and are not trained
    memory      the prompts of rollouts/ and how many of their rollouts were right
    tokens/     rows and steps of the plan, the tokens and lengths of their rollouts, and, where
                every token has the weight 1, the plan's advantages
    pushes/     only tokens that tokens/ holds; the same for likely/
    probes/     and the other tables of probes: probe_tables.py

Folders of earlier versions have no checksums: there these comparisons are all that notices a
change. Fields that a version did not write are not compared.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from counterpoise.config import RunConfig
from counterpoise.errors import UNEXPECTED_VALUE_ERRORS, first_line
from counterpoise.store.check.findings import CheckReport, describe_fault
from counterpoise.store.check.probe_tables import (
    PROBE_TABLES,
    find_probe_problems,
    tracked_answers,
)
from counterpoise.store.check.prompt_memory import MEMORY_FILE, find_rollout_disagreement
from counterpoise.store.logs import row_names
from counterpoise.store.parquet_errors import PARQUET_ERRORS
from counterpoise.store.plain_values import plain_text
from counterpoise.store.schema import LIKELY_COLUMNS, PUSH_COLUMNS, TOKEN_COLUMNS, step_file_name
from counterpoise.types import Columns

MEAN_TOLERANCE = 1e-9
ADVANTAGE_TOLERANCE = 1e-6
# Of the tokens of monitor.watch groups.
WATCHED_TABLES: dict[str, Mapping[str, str]] = {"pushes": PUSH_COLUMNS, "likely": LIKELY_COLUMNS}
PLACE_COLUMNS = (("row", "position"), ("by_row", "by_position"))  # each pair identifies a token
Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class CheckedRollout:
    """What plans and tokens refer to."""

    tokens_T: np.ndarray
    reward: float
    anchor: bool  # a response to the generic prompt (sample.anchors)


@dataclass(slots=True)
class IterationChecker:
    """Compares iterations in ascending order; plans may hold rollouts of earlier ones."""

    run: Path
    config: RunConfig | None
    vocabulary_size: int | None
    report: CheckReport
    probe_lines: Mapping[int, Record] = field(default_factory=dict)  # of probes.jsonl
    # iteration -> (group, index) -> rollout; only of iterations that later plans may refer to
    rollouts: dict[int, dict[tuple[str, int], CheckedRollout]] = field(default_factory=dict)

    def check(
        self,
        iteration: int,
        metrics: Record,
        plan: Record | None,
        drops: Record,
        memory: Record | None = None,
    ) -> None:
        comparisons = {
            "metrics.jsonl": lambda: self._check_rollouts(iteration, metrics),
            "plans.jsonl": lambda: self._check_plan(iteration, metrics, plan),
            "drops.jsonl": lambda: self._check_drops(iteration, plan, drops),
            MEMORY_FILE: lambda: self._check_memory(iteration, memory),
            step_file_name("tokens", iteration): lambda: self._check_tables(
                iteration, metrics, plan
            ),
            step_file_name("probes", iteration): lambda: self._check_probes(
                iteration, metrics, plan
            ),
        }
        for file_name, compare in comparisons.items():
            try:
                compare()
            except UNEXPECTED_VALUE_ERRORS as fault:
                problem = f"holds a value that cannot be compared: {first_line(fault)[:200]}"
                self.report.add(file_name, problem, iteration)
        oldest = iteration - (self.config.balance.max_age if self.config else 0)
        for old_iteration in [number for number in self.rollouts if number < oldest]:
            del self.rollouts[old_iteration]

    # -- rollouts ------------------------------------------------------------------------------

    def _check_rollouts(self, iteration: int, metrics: Record) -> None:
        name = step_file_name("rollouts", iteration)
        is_expected = self.config is not None and self.config.store.rollouts
        if not self._has_content(name, iteration, is_expected=is_expected):
            return
        try:
            rollouts = read_checked_rollouts(self.run / name, iteration, self.vocabulary_size)
        except (OSError, ValueError) as fault:
            self.report.add(name, describe_fault(fault), iteration)
            return
        self.rollouts[iteration] = rollouts
        expected = {
            "rollouts": len(rollouts),
            "rollout_tokens": sum(len(rollout.tokens_T) for rollout in rollouts.values()),
            "reward": _mean_reward(rollouts),
        }
        for metric_name, value in expected.items():
            logged_value = metrics.get(metric_name)
            if logged_value is not None and not math.isclose(
                logged_value, value, rel_tol=MEAN_TOLERANCE, abs_tol=MEAN_TOLERANCE
            ):
                self.report.add(
                    name,
                    f"has {metric_name} {value:g}, but metrics.jsonl says {logged_value:g}",
                    iteration,
                )

    def _check_memory(self, iteration: int, memory: Record | None) -> None:
        if memory is None:
            if self.config is not None and self.config.has_prompt_memory:
                self.report.add_missing(MEMORY_FILE, f"lacks iteration {iteration}", iteration)
            return
        if iteration not in self.rollouts:
            return
        rewards_by_group: dict[str, list[float]] = {}
        for (group, _), rollout in self.rollouts[iteration].items():
            if not rollout.anchor:
                rewards_by_group.setdefault(group, []).append(rollout.reward)
        if disagreement := find_rollout_disagreement(memory, rewards_by_group):
            problem = f"iteration {iteration} {disagreement}"
            self.report.add(MEMORY_FILE, problem, iteration)

    # -- the plan ------------------------------------------------------------------------------

    def _check_plan(self, iteration: int, metrics: Record, plan: Record | None) -> None:
        if plan is None:
            if metrics.get("batch_rows"):
                self.report.add_missing("plans.jsonl", f"lacks iteration {iteration}", iteration)
            return
        description = plan.get("describe") or {}
        num_rows = len(plan["group"]) if "steps" in plan else description.get("rows")
        if metrics.get("batch_rows") is not None and num_rows != metrics["batch_rows"]:
            self._plan_problem(
                iteration, f"has {num_rows} rows, metrics.jsonl says {metrics['batch_rows']}"
            )
        if "steps" not in plan:
            return
        used_rows = [row for step in plan["steps"] for row in step]
        if len(set(used_rows)) != len(used_rows):
            self._plan_problem(iteration, "uses a row twice")
        if metrics.get("steps", 0) > len(plan["steps"]):
            self._plan_problem(
                iteration, f"has {len(plan['steps'])} steps, metrics.jsonl says {metrics['steps']}"
            )
        names = row_names(plan)
        if len(set(names)) != len(names):
            self._plan_problem(iteration, "holds a rollout twice")
        for name, born, num_tokens in zip(names, plan["born"], plan["tokens"], strict=True):
            rollouts = self.rollouts.get(born)
            if rollouts is None:
                continue
            if name not in rollouts:
                self._plan_problem(iteration, f"holds {name}, which rollouts/ lacks")
            # A masked row has no loss, so the plan says 0 tokens.
            elif num_tokens and len(rollouts[name].tokens_T) != num_tokens:
                self._plan_problem(
                    iteration,
                    f"says {num_tokens} tokens for {name}, "
                    f"rollouts/ has {len(rollouts[name].tokens_T)}",
                )

    def _plan_problem(self, iteration: int, problem: str) -> None:
        self.report.add("plans.jsonl", f"iteration {iteration} {problem}", iteration)

    # -- drops ---------------------------------------------------------------------------------

    def _check_drops(self, iteration: int, plan: Record | None, drops: Record) -> None:
        planned_names: set[tuple[str, int]] = set()
        if plan is not None and "steps" in plan:
            planned_names = set(row_names(plan))
        known_names = {name for rollouts in self.rollouts.values() for name in rollouts}
        for reason, indices_by_group in drops.items():
            if reason in ("schema", "iteration"):
                continue
            try:
                names = [
                    (plain_text(group), int(index))
                    for group, indices in indices_by_group.items()
                    for index in indices
                ]
            except (AttributeError, TypeError, ValueError) as fault:
                self._drop_problem(iteration, f"{reason} {describe_fault(fault)}")
                continue
            if trained := [name for name in names if name in planned_names]:
                self._drop_problem(iteration, f"dropped {trained[0]}, which the plan trains")
            strangers = [
                name for name in names if name[0].startswith(f"{iteration}:")
                and iteration in self.rollouts and name not in known_names
            ]  # fmt: skip
            if strangers:
                self._drop_problem(iteration, f"dropped {strangers[0]}, which rollouts/ lacks")

    def _drop_problem(self, iteration: int, problem: str) -> None:
        self.report.add("drops.jsonl", f"iteration {iteration} {problem}", iteration)

    # -- tables --------------------------------------------------------------------------------

    def _check_tables(self, iteration: int, metrics: Record, plan: Record | None) -> None:
        name = step_file_name("tokens", iteration)
        expects_tokens = self.config is not None and self.config.store.tokens
        is_expected = expects_tokens and bool(metrics.get("steps"))
        if not self._has_content(name, iteration, is_expected=is_expected):
            return
        columns = self._read_table(name, iteration, TOKEN_COLUMNS)
        if columns is None:
            return
        if plan is not None and "steps" in plan and len(columns["row"]):
            for problem in self._token_problems(columns, plan):
                self.report.add(name, problem, iteration)
        for folder, required in WATCHED_TABLES.items():
            watched_name = step_file_name(folder, iteration)
            if (self.run / watched_name).is_file():
                watched = self._read_table(watched_name, iteration, required)
                if watched is not None and not _places_fit(watched, columns):
                    self.report.add(watched_name, "holds tokens that tokens/ lacks", iteration)

    def _check_probes(self, iteration: int, metrics: Record, plan: Record | None) -> None:
        has_probe_changes = any(
            metrics.get(name) is not None for name in ("probe_right", "probe_wrong")
        )
        tables: dict[str, Columns] = {}
        for folder, required in PROBE_TABLES.items():
            name = step_file_name(folder, iteration)
            if self._has_content(name, iteration, is_expected=has_probe_changes):
                columns = self._read_table(name, iteration, required)
                if columns is not None:
                    tables[folder] = columns
        if not tables:
            return
        answers = tracked_answers(self.probe_lines, iteration)
        if answers is None:
            self.report.add("probes.jsonl", f"lacks the answers of iteration {iteration}")
            return
        for folder, problem in find_probe_problems(tables, answers, plan):
            self.report.add(step_file_name(folder, iteration), problem, iteration)

    def _has_content(self, name: str, iteration: int, *, is_expected: bool) -> bool:
        """Whether there is something to compare in a file of the iteration."""
        path = self.run / name
        if not path.is_file():
            if is_expected:
                self.report.add_missing(name, "is missing", iteration)
            return False
        if not path.stat().st_size:
            self.report.add_missing(name, "is empty", iteration)
            return False
        return True

    def _read_table(self, name: str, iteration: int, required: Mapping[str, str]) -> Columns | None:
        try:
            table = pq.read_table(self.run / name, use_threads=False)
            columns = {column: table[column].to_numpy() for column in table.column_names}
        except PARQUET_ERRORS as fault:
            self.report.add(name, describe_fault(fault), iteration)
            return None
        # `pull` may be missing: version 0.1 called that column `coefficient`.
        missing_columns = [name for name in required if name not in columns and name != "pull"]
        if missing_columns:
            self.report.add(name, f"has no column {missing_columns[0]}", iteration)
            return None
        wrong_types = [
            column for column, values in columns.items() if values.dtype.kind not in "if"
        ]
        if wrong_types:
            self.report.add(name, f"holds no numbers in {wrong_types[0]}", iteration)
            return None
        return columns

    def _token_problems(self, columns: Columns, plan: Record) -> list[str]:
        """What a token table contradicts: its plan, or the rollouts of its rows."""
        rows_N, steps_N = columns["row"].astype(np.int64), columns["step"].astype(np.int64)
        num_rows, num_steps = len(plan["group"]), len(plan["steps"])
        if rows_N.min() < 0 or rows_N.max() >= num_rows or steps_N.max() >= num_steps:
            return ["holds rows or steps that its plan lacks"]
        step_of_row = np.full(num_rows, -1)
        for step_number, step in enumerate(plan["steps"]):
            step_of_row[step] = step_number
        problems = []
        if (step_of_row[rows_N] != steps_N).any():
            problems.append("has rows in other steps than its plan")
        problems += self._row_problems(columns, plan)
        return problems

    def _row_problems(self, columns: Columns, plan: Record) -> list[str]:
        order_N = np.lexsort((columns["position"], columns["row"]))
        rows, starts = np.unique(columns["row"][order_N], return_index=True)
        slices = np.split(order_N, starts[1:])
        problems, names = [], row_names(plan)
        for row, indices in zip(rows.tolist(), slices, strict=True):
            if not np.array_equal(columns["position"][indices], np.arange(len(indices))):
                problems.append(f"skips or repeats positions of row {row}")
                continue
            rollout = self.rollouts.get(plan["born"][row], {}).get(names[row])
            if rollout is not None and not np.array_equal(
                columns["token"][indices], rollout.tokens_T
            ):
                problems.append(f"has other tokens in row {row} than rollouts/")
            advantage = plan["advantage"][row]
            if self._has_plain_advantages and not np.allclose(
                columns["advantage"][indices], advantage, ADVANTAGE_TOLERANCE, ADVANTAGE_TOLERANCE
            ):
                problems.append(f"has another advantage in row {row} than its plan")
        return problems

    @property
    def _has_plain_advantages(self) -> bool:
        """Whether the advantage of a token is that of its row."""
        if self.config is None:
            return False
        credit, update = self.config.credit, self.config.update
        return credit.weights == "uniform" and credit.rule == "off" and update.trajectory == "off"


def read_checked_rollouts(
    path: Path, iteration: int, vocabulary_size: int | None
) -> dict[tuple[str, int], CheckedRollout]:
    """The rollouts of a file by group and index in the group.

    Raises OSError if the file cannot be read, ValueError if its content is wrong; a line that is
    no valid rollout is named.
    """
    rollouts: dict[tuple[str, int], CheckedRollout] = {}
    group_sizes: dict[str, int] = {}
    lines = path.read_text(encoding="utf-8").split("\n")
    if lines[-1]:
        raise ValueError("it ends in half a line")
    for line_number, line in enumerate(lines[:-1], 1):
        try:
            group, rollout = _parse_rollout(line, iteration, vocabulary_size)
        except KeyError as fault:
            raise ValueError(f"line {line_number} has no field {fault}") from fault
        except (ValueError, TypeError, OverflowError, RecursionError) as fault:
            raise ValueError(f"line {line_number}: {first_line(fault)}") from fault
        index = group_sizes.get(group, 0)
        group_sizes[group] = index + 1
        rollouts[group, index] = rollout
    return rollouts


def _parse_rollout(
    line: str, iteration: int, vocabulary_size: int | None
) -> tuple[str, CheckedRollout]:
    """The group of a rollout, and the rollout."""
    record = json.loads(line)
    group, tokens_T = (
        plain_text(record["group"]),
        np.array(record["response_tokens"], dtype=np.int32),
    )
    if not group.startswith(f"{iteration}:"):
        raise ValueError(f"the group {group} is of another iteration")
    logprobs = record["sampled_logprobs"]
    if len(logprobs) != len(tokens_T):
        raise ValueError(f"{len(logprobs)} log-probabilities, but {len(tokens_T)} tokens")
    all_tokens = np.concatenate([tokens_T, np.array(record["prompt_tokens"], dtype=np.int32)])
    if len(all_tokens) and (
        all_tokens.min() < 0 or (vocabulary_size and all_tokens.max() >= vocabulary_size)
    ):
        raise ValueError("it has a token that the vocabulary lacks")
    return group, CheckedRollout(
        tokens_T, float(record["reward"]), bool(record.get("anchor", False))
    )


def _mean_reward(rollouts: Mapping[tuple[str, int], CheckedRollout]) -> float:
    """As metrics.jsonl has it: without anchors, and without rollouts that have no reward."""
    rewards = [
        rollout.reward
        for rollout in rollouts.values()
        if not rollout.anchor and not math.isnan(rollout.reward)
    ]
    return float(np.mean(rewards)) if rewards else 0.0


def _places_fit(watched: Columns, tokens: Columns) -> bool:
    """Whether every watched and every pushing token is in the table of tokens."""
    trained_places = set(zip(tokens["row"].tolist(), tokens["position"].tolist(), strict=True))
    return all(
        trained_places.issuperset(
            zip(watched[row].tolist(), watched[position].tolist(), strict=True)
        )
        for row, position in PLACE_COLUMNS
        if row in watched
    )
