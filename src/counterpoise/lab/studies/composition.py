"""Fig. 7 b: does the value gap vanish when rewards are sparse or saturated?

Every group is extended by `extra` rollouts; those with 7 right and 7 wrong ones among them all take
part, with their first rollout (whose tokens are the candidates) in every composition:

    k of 8 right, k = 1, 2, 4, 6, 7        the first k right and the first 8 - k wrong rollouts

Same prompts, same candidates, same number of rollouts; advantages are those of the eight. One GRPO
step (AdamW, fresh) each, from one checkpoint. With k the advantages of right and wrong rollouts
change too (1 of 8: +2.5 and -0.4); that is part of what a composition is.

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
    detectable_gap,
    format_interval,
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
from counterpoise.report.panels.panel import Figure
from counterpoise.sample.build_groups import gather
from counterpoise.sample.native import sample
from counterpoise.seeds import seed_for
from counterpoise.statistics.finding import Finding, Number, Record, Records
from counterpoise.types import Group, Row
from counterpoise.verify.scores import verified

RIGHT_COUNTS = (1, 2, 4, 6, 7)  # of 8
MAX_RIGHT, BALANCED = max(RIGHT_COUNTS), 4


def measure(lab: Lab) -> Records:
    batch = FixedBatch(lab)
    with_signal = {row.group for row in batch.rows}
    groups = extend_groups(
        lab, [g for g in batch.groups if g.key in with_signal], lab.sizes["extra"]
    )
    usable = [kept for group in groups if (kept := select_needed_rollouts(group))]
    keys = {group.key for group in usable}
    candidates = [c for c in batch.candidates() if batch.rows[c.row].group in keys]
    values = TokenValueStore(lab, batch).value_records(candidates)
    members = [
        list(rows) for _, rows in groupby(lab.credit_rows(usable), key=lambda row: row.group)
    ]
    records: list[Record] = []
    for done, right in enumerate(RIGHT_COUNTS, 1):
        rows = [row for each in members for row in compose_rows(each, right)]
        (delta,) = batch.measure_displacements(candidates, partial(lab.update, rows))
        records += [
            {"right": right, **value, "delta": moved}
            for value, moved in zip(values, delta, strict=True)
        ]
        share = VALUES_PROGRESS + (1 - VALUES_PROGRESS) * done / len(RIGHT_COUNTS)
        lab.progress(f"composition {done} of {len(RIGHT_COUNTS)}", share)
    return records


def extend_groups(lab: Lab, groups: Sequence[Group], extra: int) -> list[Group]:
    """The groups with `extra` more rollouts of the same prompts, at the end."""
    ones = [group.rollouts[0] for group in groups]
    encoded = [(rollout.problem, rollout.prompt_tokens) for rollout in ones]
    seeds_PG = [
        [seed_for(lab.seed, f"composition/{group.key}", index=g) for g in range(extra)]
        for group in groups
    ]
    drawn_PG = sample(lab.policy, [tokens for _, tokens in encoded], seeds_PG, lab.config.sample)
    texts = [response.text for drawn in drawn_PG for response in drawn]
    asked = [prompt for prompt, _ in encoded for _ in range(extra)]
    rewards = verified(lab.verifier, texts, asked).rewards
    more = gather(encoded, drawn_PG, rewards, now=0)
    return [
        replace(old, rollouts=(*old.rollouts, *new.rollouts))
        for old, new in zip(groups, more, strict=True)
    ]


def select_needed_rollouts(group: Group) -> Group | None:
    """The rollouts some composition uses, as they were sampled; None when there are too few."""
    right = [i for i, rollout in enumerate(group.rollouts) if rollout.reward > 0]
    wrong = [i for i, rollout in enumerate(group.rollouts) if rollout.reward <= 0]
    if min(len(right), len(wrong)) < MAX_RIGHT:
        return None
    kept = sorted((*right[:MAX_RIGHT], *wrong[:MAX_RIGHT]))
    return replace(group, rollouts=tuple(group.rollouts[i] for i in kept))


def compose_rows(rows: Sequence[Row], right: int) -> list[Row]:
    """Eight rows of a group, `right` of them right, with the advantages of these eight."""
    positive = [row for row in rows if row.sign > 0][:right]
    negative = [row for row in rows if row.sign < 0][: GROUP_SIZE - right]
    return recredit([*positive, *negative])


def judge(records: Records) -> Finding:
    arms = {right: [r for r in records if r["right"] == right] for right in RIGHT_COUNTS}
    gaps = {right: value_gap(arm) for right, arm in arms.items()}
    ends = {
        right: gap_change(arms[BALANCED], arms[right])
        for right in (RIGHT_COUNTS[0], RIGHT_COUNTS[-1])
    }
    numbers = [
        Number(f"gap, {right} of {GROUP_SIZE} right", *found) for right, found in gaps.items()
    ]
    numbers += [
        Number(f"gap, {BALANCED} of {GROUP_SIZE} right minus {right} of {GROUP_SIZE}", *found)
        for right, found in ends.items()
    ]
    numbers += [
        Number(f"gap pooled over signs, {right} of {GROUP_SIZE} right", *value_gap(pool_signs(arm)))
        for right, arm in arms.items()
    ]
    prompts = len({r["prompt"] for r in records})
    sparse, saturated = ends.values()
    return Finding(
        verdict_from_intervals([sparse, saturated]),
        f"Against {BALANCED} of {GROUP_SIZE} right ({format_interval(gaps[BALANCED])}) the gap is smaller by "
        f"{format_interval(sparse)} at {RIGHT_COUNTS[0]} of {GROUP_SIZE} and by {format_interval(saturated)} at {RIGHT_COUNTS[-1]} of "
        f"{GROUP_SIZE}, on the same tokens of the same {prompts} prompts.",
        tuple(numbers),
        (
            f"Differences of {detectable_gap(sparse):.3f} and {detectable_gap(saturated):.3f} would "
            "usually have been seen.",
            f"Only prompts with at least {MAX_RIGHT} right and {MAX_RIGHT} wrong rollouts take part: neither "
            "the easiest nor the hardest.",
        ),
    )


def draw(records: Records) -> tuple[Figure, ...]:
    points = [
        point
        for right in RIGHT_COUNTS
        for point in gap_points_by_sign(
            f"{right} of {GROUP_SIZE}", [r for r in records if r["right"] == right]
        )
    ]
    drawn = gap_chart(
        points,
        SIGN_STYLES,
        "right rollouts in every group",
        "Value gap between boosted and suppressed tokens by the share of right rollouts",
    )
    note = (
        "Boosted minus suppressed on the same tokens; only the rollouts beside theirs are "
        "exchanged. 95 % intervals over prompts."
    )
    return (Figure(drawn, "Gap by composition of the groups", note, KEYS, wide=True),)


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
