"""Fig. 7 b: does the value gap vanish when rewards are sparse or saturated?

Every group is extended by `extra` rollouts. Groups with at least 7 right and 7 wrong rollouts take
part, with their first rollout (whose tokens are the candidates) in every composition:

    k of 8 right, k = 1, 2, 4, 6, 7        the first k right and the first 8 - k wrong rollouts

Prompts, candidates and number of rollouts are the same each time; advantages are computed from the
eight rollouts. One GRPO step (fresh AdamW) each, from one checkpoint. The advantages of right and
wrong rollouts change with k (1 of 8: +2.5 and -0.4); that is part of what a composition is.

Replicated: the gap at 4 of 8 exceeds that at 1 of 8 and that at 7 of 8, both intervals of the
difference above 0. Not replicated: either lies below 0. Inconclusive otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby

from counterpoise.lab.studies.fixed_batch import FixedBatch, recredit
from counterpoise.lab.studies.harness import GROUP_SIZE, Lab
from counterpoise.lab.studies.study import Study
from counterpoise.lab.studies.token_values import VALUE_SIZES, VALUES_PROGRESS, TokenValueStore
from counterpoise.lab.studies.value_gap import (
    detectable_note,
    format_gap,
    gap_change,
    pool_signs,
    value_gap,
    verdict_from_intervals,
)
from counterpoise.lab.studies.value_gap_charts import (
    KEYS,
    SIGN_STYLES,
    gap_chart,
    gap_points_by_sign,
)
from counterpoise.report.charts.figure import Figure
from counterpoise.sample.build_groups import build_groups
from counterpoise.sample.native import sample
from counterpoise.seeds import seed_for
from counterpoise.statistics.finding import Finding, Number, Record, Records
from counterpoise.types import Group, Row
from counterpoise.verify.scores import score_responses

RIGHT_COUNTS = (1, 2, 4, 6, 7)  # right rollouts among 8
MAX_RIGHT, BALANCED = max(RIGHT_COUNTS), 4


# -- measure --------------------------------------------------------------------------------------


def measure(lab: Lab) -> Records:
    batch = FixedBatch(lab)
    with_signal = {row.group for row in batch.rows}
    groups = extend_groups(
        lab, [group for group in batch.groups if group.key in with_signal], lab.sizes["extra"]
    )
    # Groups with too few right or wrong rollouts drop out, and their candidates with them.
    usable = [usable_group for group in groups if (usable_group := select_needed_rollouts(group))]
    usable_keys = {group.key for group in usable}
    candidates = [
        candidate
        for candidate in batch.candidates()
        if batch.rows[candidate.row].group in usable_keys
    ]
    values = TokenValueStore(lab, batch).value_records(candidates)
    rows_by_group = [
        list(rows) for _, rows in groupby(lab.credit_rows(usable), key=lambda row: row.group)
    ]
    records: list[Record] = []
    for compositions_done, right in enumerate(RIGHT_COUNTS, 1):
        rows = [row for group_rows in rows_by_group for row in compose_rows(group_rows, right)]
        (displacements,) = batch.measure_displacements(candidates, partial(lab.update, rows))
        records += [
            {"right": right, **value_record, "delta": displacement}
            for value_record, displacement in zip(values, displacements, strict=True)
        ]
        progress_share = VALUES_PROGRESS + (1 - VALUES_PROGRESS) * compositions_done / len(
            RIGHT_COUNTS
        )
        lab.progress(f"composition {compositions_done} of {len(RIGHT_COUNTS)}", progress_share)
    return records


def extend_groups(lab: Lab, groups: Sequence[Group], extra: int) -> list[Group]:
    """The groups with `extra` more rollouts of the same prompts appended."""
    first_rollouts = [group.rollouts[0] for group in groups]
    encoded = [(rollout.problem, rollout.prompt_tokens) for rollout in first_rollouts]
    seeds_PG = [
        [seed_for(lab.seed, f"composition/{group.key}", index=index) for index in range(extra)]
        for group in groups
    ]
    responses_PG = sample(
        lab.policy, [tokens for _, tokens in encoded], seeds_PG, lab.config.sample
    )
    texts = [response.text for responses in responses_PG for response in responses]
    problems = [prompt for prompt, _ in encoded for _ in range(extra)]
    rewards = score_responses(lab.verifier, texts, problems).rewards
    extra_groups = build_groups(encoded, responses_PG, rewards, iteration=0)
    return [
        replace(group_so_far, rollouts=(*group_so_far.rollouts, *extra_group.rollouts))
        for group_so_far, extra_group in zip(groups, extra_groups, strict=True)
    ]


def select_needed_rollouts(group: Group) -> Group | None:
    """The group with the rollouts that some composition uses; None when there are too few."""
    right = [index for index, rollout in enumerate(group.rollouts) if rollout.reward > 0]
    wrong = [index for index, rollout in enumerate(group.rollouts) if rollout.reward <= 0]
    if min(len(right), len(wrong)) < MAX_RIGHT:
        return None
    needed = sorted((*right[:MAX_RIGHT], *wrong[:MAX_RIGHT]))
    return replace(group, rollouts=tuple(group.rollouts[index] for index in needed))


def compose_rows(rows: Sequence[Row], right: int) -> list[Row]:
    """Eight rows of a group, `right` of them right, with advantages computed from these eight."""
    positive = [row for row in rows if row.sign > 0][:right]
    negative = [row for row in rows if row.sign < 0][: GROUP_SIZE - right]
    return recredit([*positive, *negative])


# -- judge ----------------------------------------------------------------------------------------


def judge(records: Records) -> Finding:
    records_by_right = {
        right: [record for record in records if record["right"] == right] for right in RIGHT_COUNTS
    }
    gaps = {right: value_gap(right_records) for right, right_records in records_by_right.items()}
    gap_differences = {
        right: gap_change(records_by_right[BALANCED], records_by_right[right])
        for right in (RIGHT_COUNTS[0], RIGHT_COUNTS[-1])
    }
    numbers = [
        Number(f"gap, {right} of {GROUP_SIZE} right", *gap_interval)
        for right, gap_interval in gaps.items()
    ]
    numbers += [
        Number(
            f"gap, {BALANCED} of {GROUP_SIZE} right minus {right} of {GROUP_SIZE}", *gap_interval
        )
        for right, gap_interval in gap_differences.items()
    ]
    numbers += [
        Number(
            f"gap pooled over signs, {right} of {GROUP_SIZE} right",
            *value_gap(pool_signs(right_records)),
        )
        for right, right_records in records_by_right.items()
    ]
    prompts = len({record["prompt"] for record in records})
    sparse, saturated = gap_differences.values()
    return Finding(
        verdict_from_intervals([sparse, saturated]),
        f"The gap with {BALANCED} of {GROUP_SIZE} right is {format_gap(gaps[BALANCED])}. "
        f"Minus that with {RIGHT_COUNTS[0]} of {GROUP_SIZE}: {format_gap(sparse)}, "
        f"minus that with {RIGHT_COUNTS[-1]} of {GROUP_SIZE}: {format_gap(saturated)}, "
        f"on the same tokens of the same {prompts} prompts.",
        tuple(numbers),
        (
            *detectable_note(
                "Differences of {:.3f} and {:.3f} would usually have been seen.", sparse, saturated
            ),
            f"Only prompts with at least {MAX_RIGHT} right and {MAX_RIGHT} wrong rollouts take "
            "part: neither the easiest nor the hardest.",
        ),
    )


# -- draw -----------------------------------------------------------------------------------------


def draw(records: Records) -> tuple[Figure, ...]:
    points = [
        point
        for right in RIGHT_COUNTS
        for point in gap_points_by_sign(
            f"{right} of {GROUP_SIZE}", [record for record in records if record["right"] == right]
        )
    ]
    gap_plot = gap_chart(
        points,
        SIGN_STYLES,
        "right rollouts in every group",
        "Value gap between boosted and suppressed tokens by the share of right rollouts",
    )
    note = (
        "Boosted minus suppressed on the same tokens; only the other rollouts of their groups "
        "change. 95 % intervals over prompts."
    )
    return (Figure(gap_plot, "Gap by composition of the groups", note, KEYS, wide=True),)


STUDY = Study(
    name="composition",
    title="Sparse and saturated rewards close the value gap",
    shows="Fig. 7 b",
    claim="Within the same query groups, the value gap shrinks or turns negative when nearly all "
    "rollouts are wrong or nearly all are right.",
    rule="Replicated when the gap with 4 of 8 rollouts right exceeds the gap with 1 of 8 and with "
    "7 of 8, both intervals of the difference above 0; not replicated when either lies below 0; "
    "otherwise inconclusive.",
    budgets={
        "quick": {**VALUE_SIZES["quick"], "extra": 16},
        "full": {**VALUE_SIZES["full"], "extra": 24},
    },
    measure=measure,
    judge=judge,
    draw=draw,
)
