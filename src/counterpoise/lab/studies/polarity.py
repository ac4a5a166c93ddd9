"""Fig. 4, and the control of Fig. 1 d: what negative rollouts remove from an update.

Algorithm 2 from one checkpoint, on several batches: one step on the positive rollouts alone and one
on all rollouts, both measured on all tokens. Every token has a category (microscope/categories.py);
the share of boosted mass in category c is

    share_c = sum_{j in c} max(delta_j, 0) / sum_j max(delta_j, 0)

The verdict is by AdamW, the trainer's optimizer, at its first step; plain SGD is reported too.
Gradients are not clipped, so that the two updates differ by their tokens alone. Shares are pooled
over tokens; prompts are resampled.

Untestable here: under AdamW positive-only puts less than 1 % of the boosted mass on template
tokens, interval included, so that there is no template to lose. Replicated: the template share
falls from positive-only to joint and the share of reasoning tokens (numbers, LaTeX, content words)
rises, both intervals of the change off 0. Not replicated: either moves the other way, its interval
off 0. Inconclusive otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import altair as alt
import numpy as np
from numpy.typing import NDArray

from counterpoise.lab.studies.harness import Lab
from counterpoise.lab.studies.partial_results import measure_batches
from counterpoise.lab.studies.study import Study
from counterpoise.microscope.batch_tokens import Snapshot, check_rows
from counterpoise.microscope.categories import (
    CATEGORIES,
    REASONING_CATEGORIES,
    load_nltk_tagger,
    token_categories,
    token_texts,
)
from counterpoise.microscope.displacement import displacement_classes, flipped_tokens
from counterpoise.microscope.polarity import measure_polarity
from counterpoise.report.charts.figure import Figure
from counterpoise.report.charts.forest import ForestPoint, forest_chart, forest_point
from counterpoise.statistics.bootstrap import (
    Interval,
    Weights,
    bootstrap_interval,
    format_interval,
    ratio_interval,
)
from counterpoise.statistics.finding import Finding, Number, Record, Records, Verdict

OPTIMIZERS = {"adamw": "AdamW", "sgd": "SGD"}
UPDATES = ("positive", "joint")
UPDATE_NAMES = {"positive": "positive-only", "joint": "joint"}
SIGNS = ("positive", "negative")
TAGGERS = {"nltk": "NLTK's tagger", "rules": "our own word lists, without NLTK"}
KEYS = (("soft", "positive rollouts alone"), ("series", "joint"))
LABELS = {
    "number": "numbers",
    "latex": "operators, LaTeX",
    "template": "template, format",
    "function": "function words",
    "content": "content words",
    "other": "other",
}
CATEGORY_KINDS = {
    "template": ("template",),
    "reasoning": REASONING_CATEGORIES,
    "function": ("function",),
}
MIN_TEMPLATE_SHARE = 0.01  # of the boosted mass of positive-only: less cannot be seen to go away
Statistic = Callable[[Weights], float]


def measure(lab: Lab) -> Records:
    return measure_batches(lab, _measure_batch)


def _measure_batch(lab: Lab, batch: int) -> list[Record]:
    records: list[Record] = []
    tagger = load_nltk_tagger()
    rows = lab.rows(lab.sizes["prompts"], batch=batch)
    check_rows(rows)
    # Categories do not depend on the update, so tokens are classified once for all of them.
    texts = [token_texts(lab.policy.tokenizer, row.content.response_tokens) for row in rows]
    category_N = np.concatenate([token_categories(row_texts, tagger) for row_texts in texts])
    for optimizer, lr in lab.learning_rates.items():
        # Clipping would scale the two updates by different factors.
        step = partial(lab.update, optimizer=optimizer, lr=lr, max_grad_norm=0.0)
        displacements = measure_polarity(lab.policy, rows, step)
        for update, update_delta in (
            ("positive", displacements.positive),
            ("joint", displacements.joint),
        ):
            shared = {
                "optimizer": optimizer,
                "update": update,
                "batch": batch,
                "tagger": "nltk" if tagger else "rules",
            }
            delta_N = update_delta.double().cpu().numpy()
            records += [
                shared | record
                for record in _category_sums(displacements.before, delta_N, category_N, batch)
            ]
    return records


def _category_sums(
    snapshot: Snapshot, delta_N: NDArray[np.float64], category_N: NDArray[np.str_], batch: int
) -> Iterator[Record]:
    """Sums over tokens, by prompt, category and sign of the rollout."""
    A_N, group_N = snapshot.advantages.cpu().numpy(), snapshot.groups.cpu().numpy()
    class_N, flipped_N = displacement_classes(delta_N), flipped_tokens(delta_N, A_N)
    for group in np.unique(group_N):
        for category in np.unique(category_N):
            for sign, inside_N in (("positive", A_N > 0), ("negative", A_N < 0)):
                member_N = (group_N == group) & (category_N == category) & inside_N
                yield {
                    "prompt": f"{batch}:{group}",
                    "category": str(category),
                    "sign": sign,
                    "tokens": int(member_N.sum()),
                    "boosted_mass": float(delta_N[member_N].clip(min=0).sum()),
                    "delta": float(delta_N[member_N].sum()),
                    "boosted": int((class_N[member_N] > 0).sum()),
                    "suppressed": int((class_N[member_N] < 0).sum()),
                    "flipped": int(flipped_N[member_N].sum()),
                }


# -- judge ----------------------------------------------------------------------------------------


def judge(records: Records) -> Finding:
    numbers: list[Number] = []
    changes: dict[tuple[str, str], Interval] = {}
    flip_shares: list[float] = []
    for optimizer in OPTIMIZERS:
        optimizer_records = _matching(records, optimizer=optimizer)
        prompts = [record["prompt"] for record in optimizer_records]
        for kind_name, category_names in CATEGORY_KINDS.items():
            share_by_update = {
                update: _share(optimizer_records, update, category_names) for update in UPDATES
            }
            for update, statistic in share_by_update.items():
                label = f"{kind_name} share of boosted mass, {UPDATE_NAMES[update]}, {optimizer}"
                numbers.append(Number(label, *bootstrap_interval(prompts, statistic), unit="share"))
            change = bootstrap_interval(
                prompts, _change(share_by_update["joint"], share_by_update["positive"])
            )
            changes[kind_name, optimizer] = change
            numbers.append(
                Number(f"change of {kind_name} share, {optimizer}", *change, unit="share")
            )
        for sign in SIGNS:
            for update in UPDATES:
                flip_interval = _rate(
                    _matching(optimizer_records, update=update, sign=sign), "flipped"
                )
                flip_shares.append(flip_interval[0])
                label = f"flipped in {sign} rollouts, {UPDATE_NAMES[update]}, {optimizer}"
                numbers.append(Number(label, *flip_interval, unit="share"))
    template, reasoning = changes["template", "adamw"], changes["reasoning", "adamw"]
    template_before = numbers[0]  # positive-only, AdamW
    return Finding(
        verdict_from_shares(template_before.high, template, reasoning),
        "From positive-only to joint the share of boosted mass on template tokens changes by "
        f"{format_interval(template, '+.1f', 'points')}, on reasoning tokens by "
        f"{format_interval(reasoning, '+.1f', 'points')}. Of the tokens of positive rollouts "
        f"{100 * flip_shares[0]:.0f} % fall after positive-only, {100 * flip_shares[1]:.0f} % "
        "after joint (AdamW).",
        tuple(numbers),
        _notes(records, template_before.value, changes["function", "adamw"]),
    )


def verdict_from_shares(
    template_bound: float | None, template: Interval, reasoning: Interval
) -> Verdict:
    """The verdict by the study's rule.

    `template_bound` is the upper bound of the template share under positive-only (None without an
    interval); the other two are the changes of the template and the reasoning share.
    """
    if template_bound is not None and template_bound < MIN_TEMPLATE_SHARE:
        return "untestable here"
    if template[2] < 0 and reasoning[1] > 0:
        return "replicated"
    return "not replicated" if template[1] > 0 or reasoning[2] < 0 else "inconclusive"


def _notes(records: Records, template: float, function: Interval) -> tuple[str, ...]:
    # On a task whose template the model already knows, the claim cannot show: say so.
    notes = [f"Words were classified by {TAGGERS[records[0]['tagger']]}."]
    if template < MIN_TEMPLATE_SHARE:
        notes.append(
            f"The model is certain of its template: only {100 * template:.2g} % of the boosted "
            "mass of positive-only lies there, so there is nothing to take away. Function words, "
            "which open the sentences of this task, are the nearest to a surface pattern; their "
            f"share changes by {format_interval(function, '+.1f', 'points')}."
        )
    return tuple(notes)


def _matching(records: Records, **required_values: str) -> list[Record]:
    return [
        record
        for record in records
        if all(record[column] == column_value for column, column_value in required_values.items())
    ]


def _share(records: Records, update: str, category_names: Sequence[str]) -> Statistic:
    """The share of the update's boosted mass in the wanted categories, as a function of weights."""
    mass_N = np.array([record["boosted_mass"] * (record["update"] == update) for record in records])
    inside_N = np.array([record["category"] in category_names for record in records])

    def share(w_N: Weights) -> float:
        total = w_N @ mass_N
        return float(w_N @ (mass_N * inside_N) / total) if total else float("nan")

    return share


def _change(joint: Statistic, positive: Statistic) -> Statistic:
    return lambda w_N: joint(w_N) - positive(w_N)


def _rate(records: Records, column: str) -> Interval:
    """The mean of a column per token, pooled over records."""
    prompts = [record["prompt"] for record in records]
    tokens = [record["tokens"] for record in records]
    return ratio_interval(prompts, [record[column] for record in records], tokens)


# -- draw -----------------------------------------------------------------------------------------


def draw(records: Records) -> tuple[Figure, ...]:
    return (
        *(_shares(records, optimizer) for optimizer in OPTIMIZERS),
        _means(records),
        _flips(records),
    )


def _shares(records: Records, optimizer: str) -> Figure:
    optimizer_records = _matching(records, optimizer=optimizer)
    prompts = [record["prompt"] for record in optimizer_records]
    tokens = sum(record["tokens"] for record in optimizer_records)
    points = []
    for category in _present_categories(optimizer_records):
        count = sum(record["tokens"] for record in _matching(optimizer_records, category=category))
        for update in UPDATES:
            share_interval = bootstrap_interval(
                prompts, _share(optimizer_records, update, (category,))
            )
            points.append(
                forest_point(LABELS[category], UPDATE_NAMES[update], share_interval, count / tokens)
            )
    return Figure(
        _forest(points, "share of boosted mass", "%"),
        f"Boosted mass by kind of token, {OPTIMIZERS[optimizer]}",
        "Share of all gains in log-probability, after a step on positive rollouts alone and after "
        "the joint step. Ticks: the share of tokens of this kind.",
        KEYS,
    )


def _means(records: Records) -> Figure:
    adamw_records = _matching(records, optimizer="adamw")
    points = [
        forest_point(LABELS[category], UPDATE_NAMES[update], _rate(members, "delta"))
        for category in _present_categories(adamw_records)
        for update in UPDATES
        for members in [_matching(adamw_records, category=category, update=update)]
    ]
    return Figure(
        _forest(points, "mean change of log-probability", "~g"),
        "Change of a token, AdamW",
        "Mean change of log-probability over all tokens of the batch, of both kinds of rollouts.",
        KEYS,
    )


def _flips(records: Records) -> Figure:
    points = [
        forest_point(
            f"{sign}, {OPTIMIZERS[optimizer]}", UPDATE_NAMES[update], _rate(members, "flipped")
        )
        for optimizer in OPTIMIZERS
        for sign in SIGNS
        for update in UPDATES
        for members in [_matching(records, optimizer=optimizer, sign=sign, update=update)]
    ]
    return Figure(
        _forest(points, "tokens that moved against their rollout's sign", "%"),
        "Flipped tokens",
        "Positive rollouts: tokens that fell. Negative rollouts: tokens that rose. The control of "
        "Fig. 1 d: without negative rollouts flipping should mostly go away in positive ones.",
        KEYS,
    )


def _present_categories(records: Records) -> list[str]:
    """The categories that occur, in the order of CATEGORIES."""
    return [
        category
        for category in CATEGORIES
        if any(record["tokens"] for record in _matching(records, category=category))
    ]


def _forest(points: Sequence[ForestPoint], title: str, axis: str) -> alt.LayerChart:
    styles = {UPDATE_NAMES["positive"]: "soft", UPDATE_NAMES["joint"]: "series"}
    description = "Positive-only against joint update"
    return forest_chart(points, styles, title, description, axis=axis, zero=True, labels=112)


STUDY = Study(
    name="polarity",
    title="What negative rollouts take away",
    shows="Fig. 4, Fig. 1 d",
    claim="A step on positive rollouts alone mainly raises template and formatting tokens; the "
    "joint step takes much of that away and moves boosted mass to reasoning tokens. Without "
    "negative rollouts token flipping largely disappears.",
    rule="Untestable here when, under AdamW, positive-only puts less than 1 % of the boosted mass "
    "on template tokens, interval included. Else replicated when the template share falls from "
    "positive-only to joint and the share of numbers, LaTeX and content words rises, both "
    "intervals off 0; not replicated when either moves the other way, its interval off 0; "
    "otherwise inconclusive.",
    budgets={
        "quick": {"prompts": 16, "batches": 3},
        "full": {"prompts": 64, "batches": 8},
    },
    measure=measure,
    judge=judge,
    draw=draw,
)
