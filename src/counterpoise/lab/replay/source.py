"""Read the iterations of any stored run: groups, and the batch that was trained if it is known.

    rollouts/step_00012.jsonl    groups; a line may have its `advantage`
    plans.jsonl                  the rows of the update, their advantages, and their optimizer steps
    tokens/step_00012.parquet    token advantages, and old log-probabilities of rows that waited

Only the first is required. Rows that waited in a buffer are read from the iteration that sampled
them. One iteration is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from counterpoise.errors import PoiseError, first_line, format_ranges
from counterpoise.store.folder import RunFolder, is_imported, is_run
from counterpoise.store.logs import row_names
from counterpoise.store.parquet_errors import PARQUET_ERRORS
from counterpoise.store.rollout_files import read_groups_and_advantages
from counterpoise.types import BatchPlan, Floats, Group, Row, RowName

REQUIRED_FIELDS = ("group", "prompt_id", "reward", "response_tokens")


@dataclass(frozen=True, slots=True, eq=False)
class StoredBatch:
    """The rows of one iteration as they were trained, with the plan that cut them into steps."""

    rows: list[Row]
    plan: BatchPlan
    earlier_groups: list[Group]  # whole groups of the rows that waited in a buffer
    has_token_weights: bool = True  # False: tokens/ of the iteration is not stored


@dataclass(frozen=True, slots=True, eq=False)
class StoredRollouts:
    """One iteration. `batch` is None if it is unknown which rollouts shared a step."""

    number: int
    groups: list[Group]
    advantages: dict[RowName, float]  # from the rollouts' own lines, where they have one
    batch: StoredBatch | None
    made_no_update: bool = False  # the run has plans, and took no step in this iteration

    @property
    def without_advantage(self) -> int:
        """How many rollouts of an update without a plan lack an advantage that others have."""
        if not self.advantages or self.batch or self.made_no_update:
            return 0
        return sum(len(group.rollouts) for group in self.groups) - len(self.advantages)


def holds_stored_rollouts(path: Path) -> bool:
    """Whether the folder is a run of ours, an imported one, or has rollouts/step_00001.jsonl.

    A folder rollouts/ alone does not tell: prime-rl's run has rollouts/step_5/.
    """
    files = (path / "rollouts").glob("step_*.jsonl")
    return is_run(path) or is_imported(path) or any(file.is_file() for file in files)


class RolloutFolder:
    """The stored iterations of a run folder, ours or an imported one."""

    def __init__(self, path: Path) -> None:
        self.folder = RunFolder(path)
        self.files = self.folder.step_files("rollouts")
        if not self.files:
            raise PoiseError(f"{path} holds no rollouts: rollouts/step_00001.jsonl or others")
        plans = [plan for plan in self.folder.read("plans") if "steps" in plan]
        self.plans: dict[int, dict[str, Any]] = {plan["iteration"]: plan for plan in plans}
        # Iterations of which the run itself says that it took no step, such as those in which RB
        # waits.
        self.without_update = {
            record["iteration"]
            for record in self.folder.read("metrics")
            if record.get("steps") == 0
        }

    def choose_iterations(self, selection: str) -> list[int]:
        """The stored iterations from A to B of "A:B"; either may be left out, and "A" is one."""
        stored_numbers = sorted(self.files)
        first, colon, last = (piece.strip() for piece in selection.partition(":"))
        try:
            lower = int(first) if first else stored_numbers[0]
            upper = (int(last) if last else stored_numbers[-1]) if colon else lower
        except ValueError:
            raise PoiseError(
                f"--iterations {selection} is not A:B: write for example 10:20, 10: or 10"
            ) from None
        if not selection:
            upper = stored_numbers[-1]
        chosen_numbers = [number for number in stored_numbers if lower <= number <= upper]
        if not chosen_numbers:
            raise PoiseError(
                f"--iterations {selection}: the rollouts are of {format_ranges(stored_numbers)}"
            )
        return chosen_numbers

    def read(self, number: int, *, with_plan: bool) -> StoredRollouts:
        """Iteration `number`; the batch and plan that the trainer stored only if `with_plan`."""
        groups, advantages = self._read_groups(number)
        plan = self.plans.get(number) if with_plan else None
        if plan is None:
            made_no_update = with_plan and bool(self.plans) and number in self.without_update
            return StoredRollouts(number, groups, advantages, None, made_no_update)
        return StoredRollouts(number, groups, advantages, self._read_batch(plan, groups))

    def _read_groups(self, number: int) -> tuple[list[Group], dict[RowName, float]]:
        groups, advantages = read_groups_and_advantages(self.files[number], REQUIRED_FIELDS)
        groups = [replace(group, iteration=number) for group in groups]
        for group in groups:
            if any(not len(rollout.response_tokens) for rollout in group.rollouts):
                raise PoiseError(
                    f"{self.files[number]}: a rollout of group {group.key} has no response_tokens: "
                    "remove its line"
                )
        if not groups:
            raise PoiseError(f"{self.files[number]} holds no rollouts: remove the file")
        return groups, advantages

    def _read_batch(self, plan: Mapping[str, Any], groups: Sequence[Group]) -> StoredBatch:
        number = plan["iteration"]
        names = row_names(plan)
        trained_groups = {group for group, _ in names}
        earlier_groups = [
            group
            for born in sorted(set(plan["born"]) - {number})
            if born in self.files
            for group in self._read_groups(born)[0]
            if group.key in trained_groups
        ]
        rollouts = {
            (group.key, index): rollout
            for group in (*groups, *earlier_groups)
            for index, rollout in enumerate(group.rollouts)
        }
        trained_tokens = self._read_trained_tokens(number)
        rows = []
        for i, name in enumerate(names):
            if name not in rollouts:
                raise PoiseError(
                    f"{self.folder.path}: the plan of iteration {number} has rollout {name[1]} of "
                    f"group {name[0]}, which rollouts/ lacks: choose --composer to plan anew"
                )
            rollout = rollouts[name]
            # A row of which no token was trained is masked: it has neither loss nor weight.
            is_masked = plan["tokens"][i] == 0
            if not is_masked and plan["tokens"][i] != len(rollout.response_tokens):
                raise PoiseError(
                    f"{self.folder.path}: iteration {number} trained {plan['tokens'][i]} of the "
                    f"{len(rollout.response_tokens)} tokens of a rollout (tools?), and which ones "
                    "is not stored: choose other --iterations"
                )
            row = Row(
                group=name[0],
                advantage=0.0 if is_masked else float(plan["advantage"][i]),
                num_tokens=len(rollout.response_tokens),
                index=name[1],
                born=plan["born"][i],
                rollout=rollout,
                masked=is_masked,
            )
            rows.append(_with_trained_tokens(row, trained_tokens.get(i), number))
        steps = tuple(tuple(step) for step in plan["steps"])
        plan_of_steps = BatchPlan(str(plan.get("rule", "unknown")), steps)
        return StoredBatch(rows, plan_of_steps, earlier_groups, bool(trained_tokens))

    def _read_trained_tokens(self, number: int) -> dict[int, tuple[Floats, Floats]]:
        """(token advantages, old log-probabilities) [T] by row of the plan, where stored."""
        file = self.folder.step_files("tokens").get(number)
        if file is None:
            return {}
        try:
            table = pq.read_table(file, columns=["row", "position", "advantage", "old_logprob"])
        except PARQUET_ERRORS as fault:
            raise PoiseError(
                f"{file} is damaged ({first_line(fault)}): copy it again, or remove it"
            ) from fault
        columns = {name: table[name].to_numpy() for name in table.column_names}
        order = np.lexsort((columns["position"], columns["row"]))
        rows, starts = np.unique(columns["row"][order], return_index=True)
        advantages = np.split(columns["advantage"][order], starts[1:])
        old_logprobs = np.split(columns["old_logprob"][order], starts[1:])
        return {
            int(row): (advantages_T, old_T)
            for row, advantages_T, old_T in zip(rows, advantages, old_logprobs, strict=True)
        }


def _with_trained_tokens(
    row: Row, trained_tokens: tuple[Floats, Floats] | None, iteration: int
) -> Row:
    """The row with the token weights and old log-probabilities that its update had.

    Old log-probabilities of rows that were sampled in the same iteration are not taken: the replay
    computes them again, with the weights that the iteration starts from.
    """
    if trained_tokens is None or len(trained_tokens[0]) != row.num_tokens or not row.advantage:
        return row
    advantages_T, old_logprobs_T = trained_tokens
    if (advantages_T != np.float32(row.advantage)).any():
        # In double precision, so that weight times advantage rounds to the stored number again.
        weights_T: Any = advantages_T.astype(np.float64) / row.advantage
        row = replace(row, weights_T=weights_T)
    if row.born < iteration and np.isfinite(old_logprobs_T).all():
        row = replace(row, trainer_logprobs_T=old_logprobs_T.astype(np.float32))
    return row
