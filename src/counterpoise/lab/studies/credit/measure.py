"""Which credit methods find valuable tokens, what they cost, and whether they train better.

Every token weighting, advantage, step rule, trajectory weight and composer for credit (`arms.py`,
which reads the registries) on one model:

    value       rank correlation of A w, and of w within right and within wrong rollouts, with the
                Monte Carlo value of tokens; the same for the displacement in one iteration
                (`tokens.py` measures, `value_correlation.py` correlates)
    cost        share of an iteration; exchangeability residual (the share of the pull on shared
                prefixes that does not cancel); cancellation index
    training    success at equal rollouts and at equal seconds, paired by seed
                (`training.py`)

The verdict is about value. gain = rho(A w, value) - rho(A, value) on the same tokens. Intervals are
by bootstrap over prompts and hold for all weightings together. Replicated: for at least half of the
token weightings, at their default settings, the interval lies above 0. Not replicated: for more
than half it lies below 0.05, so fewer than half can gain that much. Inconclusive otherwise: a gain
that is not shown may still exist. A weighting that is 1 everywhere on this task (`serl` without
turns) is not counted. Training is reported but not judged: few seeds show large differences only.
Arms are trained on the embedded model; for another model, write an experiment with its own learning
rate (docs/results/experiments.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from counterpoise.lab.studies.arms import BUDGETS, check_options
from counterpoise.lab.studies.credit.arms import BASELINE, credit_arms
from counterpoise.lab.studies.credit.judge import MARGIN, judge
from counterpoise.lab.studies.credit.tokens import measure_tokens
from counterpoise.lab.studies.credit.training import measure_training
from counterpoise.lab.studies.harness import Lab
from counterpoise.lab.studies.study import Study
from counterpoise.statistics.finding import Record, Records

if TYPE_CHECKING:
    from counterpoise.report.charts.figure import Figure

TRAINED_MODEL = "embedded"
SLOW_FACTOR = 2.0  # arms slower than this times the baseline are trained last


def measure(lab: Lab) -> Records:
    trains = lab.model == TRAINED_MODEL and bool(lab.sizes["training"]["arms"])
    arm_options = [option for arm in credit_arms().values() for option in arm.options]
    check_options(lab, arm_options, trains=trains)
    token_records = measure_tokens(lab)
    if not trains:
        return token_records
    # An arm with weights of 1 everywhere would repeat the baseline's runs.
    refused_arms = [record["arm"] for record in token_records if record["panel"] == "refused"]
    costs = {record["arm"]: record for record in token_records if record["panel"] == "cost"}
    idle_arms = [arm for arm, record in costs.items() if record["ones"]]
    slow_arms = [
        arm
        for arm, record in costs.items()
        if _seconds(record) > SLOW_FACTOR * _seconds(costs[BASELINE])
    ]
    return [
        *token_records,
        *measure_training(lab, {*refused_arms, *idle_arms} - {BASELINE}, slow_arms),
    ]


def draw(records: Records) -> tuple[Figure, ...]:
    """The figures; imported here, so that measuring and judging work without drawing packages."""
    from counterpoise.lab.studies.credit import draw

    return draw.draw(records)


def _seconds(cost: Record) -> float:
    return float(cost["seconds"] + cost["sampling"])


def _budgets() -> dict[str, dict[str, Any]]:
    """Sizes of both budgets. They name the arms, so that a new arm means measuring again.

    `every` names the arms to measure, `iterated` is the number of prompts in the one iteration of
    each. `quick` trains nothing: a few minutes on two cores cannot show a difference.
    train_minutes = 0 means no limit.
    """
    arm_names = list(credit_arms())
    training_sizes = {
        **BUDGETS["full"],
        "rates": [1e-4],
        "seeds": 4,
        "iterations": 40,
        "arms": arm_names,
    }
    return {
        "quick": {
            "prompts": 48, "continuations": 8, "open": 8, "closed": 0, "iterated": 8, "steps": 4,
            "repeats": 1, "every": arm_names, "training": {"arms": []}, "train_minutes": 0,
        },
        "full": {
            "prompts": 128, "continuations": 32, "open": 8, "closed": 0, "iterated": 64,
            "steps": 4, "repeats": 2, "every": arm_names, "training": training_sizes,
            "train_minutes": 0,
        },
    }  # fmt: skip


STUDY = Study(
    name="credit",
    title="Which credit finds valuable tokens",
    shows="token credit",
    claim="Weights on tokens, as many methods make them, give more credit to tokens of high "
    "value and more blame to tokens of low value than the rollout's advantage alone.",
    rule="Replicated when for at least half of the token weightings, at their own settings, the "
    "rank correlation of A w with the Monte Carlo value exceeds that of A, the interval of the "
    "difference (over prompts, for all weightings together) above 0; not replicated when for more "
    f"than half it lies below {MARGIN:g}; otherwise inconclusive. Training is reported, not "
    "judged.",
    budgets=_budgets(),
    measure=measure,
    judge=judge,
    draw=draw,
)
