"""Fig. 6: does the value gap grow with the sampling budget?

One GRPO step (fresh AdamW) from one checkpoint on nested batches; the gap between boosted and
suppressed tokens is measured on the same candidates (fixed_batch.py) each time.

    batch size   16, 32, 64, 96 prompts of 8 rollouts. A core of 16 prompts is in all of them and
                 holds the candidates; `cores` disjoint cores are used in turn, each extended by
                 the prompts that follow it.
    rollout-n    the first 1, 2, 4, 8 rollouts of 96 prompts, with advantages from those alone. At
                 n = 1 there is no group to compare with: A = r, as in verl, so wrong rollouts have
                 no advantage.

Candidates stay even when their own group has no signal at a smaller n: other groups still move
them, and groups without signal are part of what a small n means. Groups without signal at n = 8 are
left out. The quarter of tokens with the largest |value| is chosen by one half of the continuations
and measured by the other; signs are pooled there, because hardly any token of a right rollout is
suppressed.

Replicated: the gap at 96 prompts exceeds that at 16, and at n = 8 that at n = 1, both intervals of
the difference above 0. Not replicated: either lies below 0. Inconclusive otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import groupby

from counterpoise.errors import PoiseError
from counterpoise.lab.studies.fixed_batch import FixedBatch, recredit
from counterpoise.lab.studies.harness import GROUP_SIZE, Lab
from counterpoise.lab.studies.study import Study
from counterpoise.lab.studies.token_values import VALUE_SIZES, VALUES_PROGRESS, TokenValueStore
from counterpoise.lab.studies.value_gap import (
    detectable_note,
    format_gap,
    gap_change,
    pool_signs,
    strongest_quarter,
    value_gap,
    verdict_from_intervals,
)
from counterpoise.lab.studies.value_gap_charts import gap_chart, gap_point
from counterpoise.report.charts.figure import Figure
from counterpoise.statistics.bootstrap import Interval
from counterpoise.statistics.finding import Finding, Number, Record, Records
from counterpoise.types import Row

AXES = {"batch": "prompts", "rollouts": "rollouts a prompt"}
SUBSETS = {"all": "all tokens", "strongest": "quarter with the largest |value|"}


# -- measure --------------------------------------------------------------------------------------


def measure(lab: Lab) -> Records:
    sizes, rollout_counts, cores = _checked_sizes(lab)
    batch = FixedBatch(lab)
    candidates = batch.candidates()
    values = TokenValueStore(lab, batch).value_records(candidates)
    group_keys = [group.key for group in batch.groups]
    # The update on the full batch is computed once and shared by all cores.
    updates = cores * sum(size < len(group_keys) for size in sizes) + len(rollout_counts)
    updates_done = 0

    def measure_displacement(rows: Sequence[Row]) -> list[float]:
        nonlocal updates_done
        if rows:
            (delta,) = batch.measure_displacements(candidates, partial(lab.update, rows))
        else:  # no group has signal: nothing moves
            delta = [0.0] * len(candidates)
        updates_done += 1
        progress_share = VALUES_PROGRESS + (1 - VALUES_PROGRESS) * updates_done / updates
        lab.progress(f"update {updates_done} of {updates}", progress_share)
        return delta

    records: list[Record] = []
    full_displacement = measure_displacement(batch.rows)
    # Prompts are rotated, so that each core comes first and is extended by the prompts after it.
    for core_start in range(0, cores * sizes[0], sizes[0]):
        rotated_keys = [*group_keys[core_start:], *group_keys[:core_start]]
        core = set(rotated_keys[: sizes[0]])
        for size in sizes:
            displacements = (
                full_displacement
                if size == len(group_keys)
                else measure_displacement(batch.rows_of(rotated_keys[:size]))
            )
            records += [
                {"axis": "batch", "size": size, **value_record, "delta": displacement}
                for value_record, displacement in zip(values, displacements, strict=True)
                if value_record["prompt"] in core
            ]
    for rollout_count in rollout_counts:
        rows = keep_first_rollouts(batch.rows, rollout_count)
        displacements = (
            full_displacement if len(rows) == len(batch.rows) else measure_displacement(rows)
        )
        records += [
            {"axis": "rollouts", "size": rollout_count, **value_record, "delta": displacement}
            for value_record, displacement in zip(values, displacements, strict=True)
        ]
    return records


def _checked_sizes(lab: Lab) -> tuple[list[int], list[int], int]:
    """(batch sizes, rollouts per prompt, cores); an error when there are not enough of them."""
    sizes, rollout_counts = sorted(lab.sizes["batch"]), sorted(lab.sizes["rollouts"])
    cores, prompts = lab.sizes["cores"], lab.sizes["prompts"]
    if min(len(sizes), len(rollout_counts)) < 2:
        raise PoiseError(
            "the smallest is compared with the largest: give --size batch and rollouts "
            "two values or more"
        )
    needed = max(sizes[-1], cores * sizes[0])
    if needed > prompts:
        raise PoiseError(
            f"a batch of {sizes[-1]} prompts and {cores} cores of {sizes[0]} need {needed} prompts "
            f"and there are {prompts}: raise --size prompts, or lower --size batch and cores"
        )
    if rollout_counts[-1] > GROUP_SIZE:
        raise PoiseError(
            f"a prompt has {GROUP_SIZE} rollouts, not {rollout_counts[-1]}: lower --size rollouts"
        )
    return sizes, rollout_counts, cores


def keep_first_rollouts(rows: Sequence[Row], n: int) -> list[Row]:
    """The first n rows of every group, credited as groups of n; rows without signal are dropped."""
    credited: list[Row] = []
    for _, members in groupby(rows, key=lambda row: row.group):
        credited += recredit(list(members)[:n])
    return [row for row in credited if row.sign]


# -- judge ----------------------------------------------------------------------------------------


def judge(records: Records) -> Finding:
    numbers: list[Number] = []
    growth: dict[tuple[str, str], Interval] = {}
    for axis, unit in AXES.items():
        for subset, label in SUBSETS.items():
            records_by_size = _records_by_size(records, axis, subset)
            numbers += [
                Number(f"gap, {size} {unit}, {label}", *value_gap(size_records))
                for size, size_records in records_by_size.items()
            ]
            sizes = list(records_by_size)
            growth[axis, subset] = gap_change(records_by_size[sizes[-1]], records_by_size[sizes[0]])
            numbers.append(
                Number(f"from {sizes[0]} to {sizes[-1]} {unit}, {label}", *growth[axis, subset])
            )
        # Pooled over signs the gap also contains the rollouts' own rewards: reported, not judged.
        smallest, *_, largest = _records_by_size(records, axis, "all").values()
        pooled_growth = gap_change(pool_signs(largest), pool_signs(smallest))
        numbers.append(
            Number(f"from {sizes[0]} to {sizes[-1]} {unit}, pooled over signs", *pooled_growth)
        )
    judged_growths = [growth[axis, "all"] for axis in AXES]
    return Finding(
        verdict_from_intervals(judged_growths),
        f"The gap changes by {format_gap(judged_growths[0])} from the smallest batch to the "
        f"largest and by {format_gap(judged_growths[1])} from one rollout a prompt to eight; "
        "on the quarter of tokens with the largest |value| by "
        f"{format_gap(growth['batch', 'strongest'])} and "
        f"{format_gap(growth['rollouts', 'strongest'])}.",
        tuple(numbers),
        (
            *detectable_note(
                "Changes of {:.3f} over batch size and {:.3f} over rollouts would usually have "
                "been seen.",
                *judged_growths,
            ),
            "One rollout a prompt has no group baseline: A = r, so wrong rollouts carry no signal.",
        ),
    )


def _records_by_size(records: Records, axis: str, subset: str) -> dict[int, list[Record]]:
    """The records of every size, in order; all sizes have the same tokens."""
    axis_records = [record for record in records if record["axis"] == axis]
    records_by_size = {
        size: [record for record in axis_records if record["size"] == size]
        for size in sorted({record["size"] for record in axis_records})
    }
    if subset == "all":
        return records_by_size
    return {
        size: pool_signs(strongest_quarter(size_records))
        for size, size_records in records_by_size.items()
    }


# -- draw -----------------------------------------------------------------------------------------


def draw(records: Records) -> tuple[Figure, ...]:
    figures = []
    titles = {"batch": "Gap over batch size", "rollouts": "Gap over rollouts a prompt"}
    notes = {
        "batch": "Tokens of prompts that are in every batch.",
        "rollouts": "Tokens of the first rollout, which is in every batch; with one rollout A = r.",
    }
    for axis, unit in AXES.items():
        points = [
            gap_point(str(size), subset, value_gap(size_records))
            for subset in SUBSETS
            for size, size_records in _records_by_size(records, axis, subset).items()
        ]
        gap_plot = gap_chart(
            points,
            {"all": "series", "strongest": "soft"},
            unit,
            f"Value gap between boosted and suppressed tokens over {unit}",
        )
        note = (
            "Boosted minus suppressed; all tokens: mean of both signs of rollouts; the quarter: "
            f"signs pooled. 95 % intervals over prompts. {notes[axis]}"
        )
        legend_entries = (("series", SUBSETS["all"]), ("soft", SUBSETS["strongest"]))
        figures.append(Figure(gap_plot, titles[axis], note, legend_entries))
    return tuple(figures)


STUDY = Study(
    name="budget",
    title="A larger sampling budget widens the value gap",
    shows="Fig. 6",
    claim="The value gap between boosted and suppressed tokens grows with the batch size (16 to 96 "
    "prompts) and with the rollouts a prompt (1 to 8), most for tokens of large value.",
    rule="Replicated when the gap at the largest batch exceeds that at the smallest and the gap at "
    "8 rollouts that at 1, both intervals of the difference above 0; not replicated when either "
    "lies below 0; otherwise inconclusive.",
    budgets={
        "quick": {
            **VALUE_SIZES["quick"],
            "batch": [16, 32, 64, 96],
            "rollouts": [1, 2, 4, 8],
            "cores": 3,
        },
        "full": {
            **VALUE_SIZES["full"],
            "batch": [16, 32, 64, 96],
            "rollouts": [1, 2, 4, 8],
            "cores": 6,
        },
    },
    measure=measure,
    judge=judge,
    draw=draw,
)
