"""Read what `poise look` shows of one rollout: its tokens, and the quantity that colours them.

Requests for data that the run did not store are refused here; `token_view_text.py` draws the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from counterpoise.errors import PoiseError, format_ranges, unknown_name
from counterpoise.report.charts.quantities import (
    QUANTITIES,
    TokenQuantity,
    available_quantities,
    full_colour_size,
    quantity_values,
)
from counterpoise.report.missing_pushes import replay_command
from counterpoise.report.not_measured import NO_UPDATE, took_no_step
from counterpoise.report.pages.imported import read_imported
from counterpoise.report.run_data import RunData
from counterpoise.report.traces import (
    Columns,
    IterationTrace,
    StoredPushes,
    Vocabulary,
    read_pushes,
    read_trace,
    read_vocabulary,
    stored_iterations,
)
from counterpoise.store.folder import has_plans
from counterpoise.store.stored_rollouts import RolloutLine


@dataclass(frozen=True, slots=True, eq=False)
class TokenView:
    """One rollout, and the quantity that its tokens are coloured by."""

    plan: dict[str, Any]  # of the iteration
    trace: IterationTrace
    row: int
    token: int | None  # position of the selected token
    quantity: TokenQuantity
    pushes: StoredPushes | None
    vocabulary: Vocabulary
    texts: list[RolloutLine | None]  # of the plan's rows
    replay: str  # how to compute pushes that are not stored, in a sentence

    @property
    def columns(self) -> Columns:
        return self.trace.row_columns(self.row)

    @property
    def values(self) -> NDArray[np.float64]:
        """The quantity for the tokens of the row: [T]"""
        return quantity_values(self.quantity, self.columns)

    @property
    def full_colour(self) -> float:
        """The size of a value that gets the strongest colour, over all rows of the iteration."""
        return full_colour_size(quantity_values(self.quantity, self.trace.columns))


def read_token_view(
    path: Path,
    iteration: int | None = None,
    row: int | None = None,
    quantity_name: str | None = None,
    token: int | None = None,
) -> TokenView:
    """Read one row of an iteration; by default the first row of the last stored iteration."""
    is_foreign = has_plans(path)  # imported from another trainer's files, or recorded inside it
    run = read_imported(path)[0] if is_foreign else RunData.read(path)
    # Inside another trainer, the option that stores tokens has another name than in `poise train`.
    remedy = (
        "train with monitor_every=1, or import files that have the trainer's log-probabilities"
        if is_foreign
        else "train with --set store.tokens=true"
    )
    iteration = _choose_iteration(run, iteration, remedy)
    plan = next(plan for plan in run.plans if plan["iteration"] == iteration)
    trace = read_trace(path, iteration)
    row = _choose_row(trace, row)
    length = len(trace.row_columns(row)["token"])
    if token is not None and not 0 <= token < length:
        raise PoiseError(
            f"row {row} of iteration {iteration} has tokens 0 to {length - 1}, not {token}"
        )
    return TokenView(
        plan=plan,
        trace=trace,
        row=row,
        token=token,
        quantity=_choose_quantity(trace, row, quantity_name),
        pushes=read_pushes(path, iteration),
        vocabulary=read_vocabulary(path),
        texts=run.texts_of_plan(plan),
        replay=replay_command(
            path,
            iteration,
            len(plan["groups"]),
            shown_as=str(path),
            model=run.model_name,
        ).sentence,
    )


def _choose_iteration(run: RunData, iteration: int | None, remedy: str) -> int:
    # Tokens and plans are stored by different options, so either may be missing.
    planned_iterations = {plan["iteration"] for plan in run.plans}
    stored_with_plan = [i for i in stored_iterations(run.path) if i in planned_iterations]
    if not stored_with_plan and stored_iterations(run.path):
        raise PoiseError(f"{run.path} did not store its plans: train with store.report=true")
    if not stored_with_plan and took_no_step(run.metrics):
        raise PoiseError(f"{run.path} {NO_UPDATE}, so there are no trained tokens")
    if not stored_with_plan:
        raise PoiseError(f"{run.path} stored no tokens: {remedy}")
    if iteration is None:
        return stored_with_plan[-1]
    if iteration not in stored_with_plan:
        raise PoiseError(
            f"{run.path} has no tokens of iteration {iteration}, "
            f"only of {format_ranges(stored_with_plan)}"
        )
    return iteration


def _choose_row(trace: IterationTrace, row: int | None) -> int:
    if row is None:
        # A replay also stores rows that no step trained: prefer one with a displacement to show.
        row_N = trace.columns["row"]
        displacement_N = trace.columns.get("displacement", np.full(len(row_N), np.nan))
        moved_rows = np.unique(row_N[~np.isnan(displacement_N)])
        return min(moved_rows.tolist() or trace.row_spans)
    if row not in trace.row_spans:
        raise PoiseError(
            f"iteration {trace.iteration} trained on no row {row}, only on rows "
            f"{format_ranges(sorted(trace.row_spans))}"
        )
    return row


def _choose_quantity(trace: IterationTrace, row: int, quantity_name: str | None) -> TokenQuantity:
    # The monitor may have been off in this iteration, or have measured other rows: then only what
    # the update itself computes is stored, and entropy takes the place of the displacement. Other
    # trainers' files may lack the entropy, too.
    known_columns = {
        name for name, values in trace.row_columns(row).items() if np.isfinite(values).any()
    }
    choices = {quantity.name: quantity for quantity in available_quantities(known_columns)}
    if quantity_name is None:
        defaults = ("displacement", "entropy", "advantage")
        return next(choices[name] for name in defaults if name in choices)
    if quantity_name in choices:
        return choices[quantity_name]
    if quantity_name in {quantity.name for quantity in QUANTITIES}:
        raise PoiseError(
            f"iteration {trace.iteration} did not store '{quantity_name}' of row {row}: choose one "
            f"of {', '.join(choices)}"
        )
    raise unknown_name("quantity", quantity_name, choices)
