"""Sec. 3.1, eq. 11 to 14: is an update less noisy when groups stay whole?

`microscope/variance.py` has the closed form: along a direction u an update has 1 + rho C times the
noise of independent rollouts. Here rho is how much the rollouts of a prompt share u, and C, the
cross-advantage term of eq. 14 over sum A^2, depends on how the group is cut: -1 for whole groups,
above 0 for groups cut by sign.

This study measures X_i = <u, g_i> of every rollout of one batch, under the model as loaded, along
three directions taken from another batch:

    shared     the sum of all scores, whatever the reward
    token      the scores of one token type: the one with the largest frequency times uncertainty
    success    mean score of right rollouts minus that of wrong ones, mean over prompts

For every cut of the groups (parts of a group; composers with 4 steps) the squared update is
compared with the closed form. Advantages are also shuffled within groups ("dealt"), many times:
then they are independent of X, and the closed form must hold.

Expected before the first run: rho = 0, because E[g | q] = 0 for rollouts of the policy itself; then
the noise does not depend on the cut.

Untestable here: along `shared` the interval of rho lies below the value at which the closed form
would give whole groups 0.8 of the noise of groups cut by sign (about 0.1): the rollouts of a prompt
share no direction, so the claim has nothing to be about. Replicated: with dealt advantages, whole
groups have at most 0.8 of the noise of groups cut by sign, interval included, and the closed form
lies within the interval of the measurement, or within 10 % of it, for every cut of a group. Not
replicated: the interval lies above 0.8. Inconclusive otherwise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from counterpoise.batch.compose import compose
from counterpoise.batch.describe import describe_plan
from counterpoise.lab.studies.harness import Lab
from counterpoise.lab.studies.study import Study
from counterpoise.lab.studies.variance.draw import draw
from counterpoise.lab.studies.variance.judge import (
    COMPOSERS,
    DIRECTIONS,
    CutStatistics,
    cross_term_interval,
    rho_interval,
    signal_numbers,
)
from counterpoise.microscope.batch_tokens import check_rows
from counterpoise.microscope.variance import (
    CUTS,
    reference_directions,
    rollout_scores,
    shuffle_advantages,
    update_along_direction,
    update_noise,
)
from counterpoise.seeds import rng_for
from counterpoise.statistics.bootstrap import Interval, format_interval
from counterpoise.statistics.finding import Finding, Number, Record, Records, Verdict
from counterpoise.types import Row

MAX_NOISE_RATIO = 0.8  # of the noise of groups cut by sign
TOLERANCE = 0.1
STEPS = 4
BATCH, DIRECTIONS_BATCH = 1, 2
FloatArray = NDArray[np.float64]
# (advantages [P, G], seed) -> part of each rollout.
CutFunction = Callable[[FloatArray, int], NDArray[np.int64]]


# -- measure --------------------------------------------------------------------------------------


def measure(lab: Lab) -> Records:
    rows, G = whole_groups(lab.rows(lab.sizes["prompts"], batch=BATCH))
    check_rows(rows)
    # Directions come from other rollouts, of prompts that are among the measured ones (see
    # Lab.groups): along a direction fitted to X itself, rho would not be 0.
    direction_rows = lab.rows(lab.sizes["direction_prompts"], batch=DIRECTIONS_BATCH)
    A_PG = np.array([row.advantage for row in rows]).reshape(-1, G)
    lab.progress("directions", 0.1)
    scores_by_direction: dict[str, FloatArray] = {}
    for direction_name, direction_vector in reference_directions(
        lab.policy, direction_rows
    ).items():
        lab.progress(f"scores along {direction_name}", 0.1 + 0.1 * (1 + len(scores_by_direction)))
        scores_by_direction[direction_name] = rollout_scores(
            lab.policy, rows, direction_vector
        ).reshape(-1, G)
    records = _plan_records(rows) + [
        record
        for direction_name in scores_by_direction
        for record in _filter_records(direction_name, scores_by_direction[direction_name], A_PG)
    ]
    cuts = _cuts(rows)
    for cuts_done, (cut, cut_function) in enumerate(cuts.items()):
        lab.progress(f"groups cut: {cut}", 0.4 + 0.6 * cuts_done / len(cuts))
        records += _cut_records(cut, cut_function, scores_by_direction, A_PG, lab.sizes["draws"])
    return records


def whole_groups(rows: Sequence[Row]) -> tuple[list[Row], int]:
    """(rows of complete groups, rollouts of each group).

    A rollout whose advantage is exactly 0, which happens with rewards other than 0 and 1, is not
    among the rows and leaves its group incomplete.
    """
    sizes = Counter(row.group for row in rows)
    G = max(sizes.values(), default=0)
    return [row for row in rows if sizes[row.group] == G], G


def _cuts(rows: Sequence[Row]) -> dict[str, CutFunction]:
    """All ways to cut groups: into parts of single groups, and into the steps of composers."""

    def of_group(name: str) -> CutFunction:
        return lambda A_PG, draw: CUTS[name](A_PG, rng_for(draw, name))

    def of_plan(composer: str) -> CutFunction:
        # Composers read advantages, so a plan has to be composed anew for every deal.
        def parts(A_PG: FloatArray, seed: int) -> NDArray[np.int64]:
            dealt_rows = [
                replace(row, advantage=advantage)
                for row, advantage in zip(rows, A_PG.ravel().tolist(), strict=True)
            ]
            step_R = np.empty(len(rows), dtype=np.int64)
            for step_index, step in enumerate(compose(composer, dealt_rows, STEPS, seed).steps):
                step_R[list(step)] = step_index
            return step_R.reshape(A_PG.shape)

        return parts

    return {cut_name: of_group(cut_name) for cut_name in CUTS} | {
        composer: of_plan(composer) for composer in COMPOSERS
    }


def _cut_records(
    cut: str, cut_function: CutFunction, X: dict[str, FloatArray], A_PG: FloatArray, draws: int
) -> list[Record]:
    """One record per prompt, direction and kind of advantages: sums over parts, mean over draws."""
    records: list[Record] = []
    for dealt in (True, False):
        deals = []
        for seed in range(draws):
            A_draw = shuffle_advantages(A_PG, rng_for(seed, "deal")) if dealt else A_PG
            deals.append((A_draw, cut_function(A_draw, seed)))
        for direction, X_PG in X.items():
            # The closed form is for scores of mean zero; a sample mean is not exactly zero.
            centred_PG = X_PG - X_PG.mean()
            noises = [update_noise(centred_PG, *deal) for deal in deals]
            mean_P = centred_PG.mean(axis=1)
            columns = {
                "measured": np.mean([noise.measured for noise in noises], axis=0),
                "squares": np.mean([noise.sum_of_squares for noise in noises], axis=0),
                "sums": np.mean([noise.squared_sums for noise in noises], axis=0),
                "mean": mean_P,
                "within": np.square(centred_PG - mean_P[:, None]).sum(axis=1),
            }
            shared_columns = {"panel": "cut", "cut": cut, "dealt": dealt, "direction": direction}
            records += [
                {**shared_columns, "prompt": prompt, "rollouts": X_PG.shape[1]}
                | {column: float(column_P[prompt]) for column, column_P in columns.items()}
                for prompt in range(len(X_PG))
            ]
    return records


def _filter_records(direction: str, X_PG: FloatArray, A_PG: FloatArray) -> list[Record]:
    """The update of each whole group along a direction, and that of its right rollouts alone."""
    joint_P = update_along_direction(X_PG, A_PG)
    right_P = update_along_direction(X_PG, A_PG.clip(min=0))
    shared_columns = {"panel": "filter", "direction": direction}
    return [
        {**shared_columns, "prompt": prompt, "joint": joint, "right": right}
        for prompt, (joint, right) in enumerate(
            zip(joint_P.tolist(), right_P.tolist(), strict=True)
        )
    ]


def _plan_records(rows: Sequence[Row]) -> list[Record]:
    """Eq. 14 for each step of one plan per composer, as every run reports it."""
    records: list[Record] = []
    for composer in COMPOSERS:
        plan = compose(composer, rows, STEPS, 0)
        for step_index, cross in enumerate(describe_plan(rows, plan)["cross_advantage_sum"]):
            squares = sum(rows[row_index].advantage ** 2 for row_index in plan.steps[step_index])
            records.append(
                {
                    "panel": "plan",
                    "cut": composer,
                    "step": step_index,
                    "cross": cross,
                    "squares": squares,
                }
            )
    return records


# -- judge ----------------------------------------------------------------------------------------


def judge(records: Records) -> Finding:
    shared = {cut: CutStatistics(records, "shared", cut) for cut in CUTS}
    whole_groups_noise, by_sign = shared["whole"], shared["by sign"]
    ratio = whole_groups_noise.interval(
        lambda weights: whole_groups_noise.per_square(weights) / by_sign.per_square(weights)
    )
    fit_by_cut = {
        cut: statistics.interval(statistics.over_closed_form) for cut, statistics in shared.items()
    }
    # A narrow interval may exclude 1 by a negligible amount, hence the tolerance.
    closed_form_holds = all(
        low <= 1 <= high or abs(value - 1) <= TOLERANCE for value, low, high in fit_by_cut.values()
    )
    rho = {direction: rho_interval(records, direction) for direction in DIRECTIONS}
    every_prompt = np.ones(len(by_sign.prompts))
    rho_needed = needed_rho(by_sign.cross_term(every_prompt))
    because = (
        f"Along the shared direction whole groups have {format_interval(ratio, '.2f')} of the "
        "noise of groups cut by sign. The rollouts of a prompt share it by "
        f"rho = {format_interval(rho['shared'], '+.3f')}, and "
        f"the closed form {'holds for every cut' if closed_form_holds else 'fails for some cut'}. "
        f"By that form a noise of {MAX_NOISE_RATIO:g} needs rho = {rho_needed:.2f}."
    )
    return Finding(
        verdict_from_noise(ratio, rho["shared"], rho_needed, closed_form_holds=closed_form_holds),
        because,
        (
            Number("noise, whole groups over cut by sign", *ratio),
            *(Number(f"rho, {direction} direction", *rho[direction]) for direction in DIRECTIONS),
            *(
                Number(
                    f"noise over independent rollouts, {cut}",
                    *statistics.interval(statistics.factor),
                )
                for cut, statistics in shared.items()
            ),
            *(
                Number(f"measured over closed form, {cut}", *fit_interval)
                for cut, fit_interval in fit_by_cut.items()
            ),
            *(
                Number(f"C of eq. 14, {composer}", *cross_term_interval(records, composer))
                for composer in COMPOSERS
            ),
            *signal_numbers(records),
        ),
        (
            "The paper prints no numbers for Sec. 3.1; eq. 11 to 13 are our derivation.",
            "A score has mean zero under the policy that sampled it, so in theory rho = 0 along "
            "any direction fixed beforehand, and noise does not depend on how groups are cut. "
            "Stale rollouts and scores divided by their own length are another matter.",
            f"Scores have heavy tails: one of {len(whole_groups_noise.prompts)} prompts holds "
            f"{100 * whole_groups_noise.largest_prompt():.0f} % of their squares along the shared "
            "direction, so a few dozen prompts say little.",
            "Groups without signal are left out, which makes rho a little negative along "
            "directions that go with success.",
        ),
    )


def needed_rho(cross_term_by_sign: float) -> float:
    """The rho at which the closed form gives whole groups MAX_NOISE_RATIO of the noise by sign.

    (1 - rho) / (1 + rho C) = MAX_NOISE_RATIO, with C the cross term of groups cut by sign.
    """
    return (1 - MAX_NOISE_RATIO) / (1 + MAX_NOISE_RATIO * cross_term_by_sign)


def verdict_from_noise(
    ratio: Interval, rho: Interval, needed: float, *, closed_form_holds: bool
) -> Verdict:
    """The verdict by the study's rule.

    `ratio` is the noise of whole groups over that of groups cut by sign, `rho` that of the shared
    direction, and `needed` the rho below which the claim cannot be tested.
    """
    if rho[2] < needed:
        return "untestable here"
    if closed_form_holds and ratio[2] < MAX_NOISE_RATIO:
        return "replicated"
    return "not replicated" if ratio[1] > MAX_NOISE_RATIO else "inconclusive"


STUDY = Study(
    name="variance",
    title="Noise of an update, and how groups are cut",
    shows="Sec. 3.1, eq. 14",
    claim="Keeping the rollouts of a prompt in one update makes their cross terms negative, which "
    "lowers its variance along the directions they share.",
    rule="Untestable here when the interval of rho along the shared direction lies below the value "
    "at which the closed form would give whole groups 0.8 of the noise of groups cut by sign. Else "
    "replicated when, with dealt advantages, whole groups have at most 0.8 of that noise, interval "
    "included, and the closed form meets the measurement for every cut; not replicated when the "
    "interval lies above 0.8; otherwise inconclusive.",
    budgets={
        "quick": {"prompts": 80, "direction_prompts": 24, "draws": 32},
        "full": {"prompts": 1024, "direction_prompts": 256, "draws": 64},
    },
    measure=measure,
    judge=judge,
    draw=draw,
)
