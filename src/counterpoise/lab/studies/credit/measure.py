"""Which way of giving credit finds valuable tokens, at what price, and does it train better?

Every token weighting, advantage, rule, trajectory weight and composer of credit (`arms.py`,
which reads the registries) on one model:

    value       rank correlation of A w, and of w within right and within wrong rollouts, with the
                Monte Carlo value of tokens; that of what one iteration does to them
                (`tokens.py` measures, `value_correlation.py` correlates)
    price       share of an iteration; what is left on shared prefixes; the cancellation index
    training    success at equal rollouts and at equal seconds, paired by seed
                (`training.py`)

The verdict is about value. gain = rho(A w, value) - rho(A, value) on the same tokens, its interval
by bootstrap over prompts, for all weightings together. Replicated: for at least half of the token
weightings, at their own settings, the interval lies above 0. Not replicated: for more than half it
lies below 0.05, so that fewer than half can gain as much. Inconclusive otherwise: that a gain is
not shown does not say that it is not there. A weighting that is 1 everywhere on this task (`serl`
without turns) is not counted. Training is reported, and not judged: few seeds show large
differences only. Arms are trained on the embedded model; on another one they are an experiment with
a learning rate of its own (docs/experiment.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from counterpoise.lab.studies.arms import BUDGETS
from counterpoise.lab.studies.credit.arms import BASELINE, credit_arms
from counterpoise.lab.studies.credit.judge import MARGIN, judge
from counterpoise.lab.studies.credit.tokens import measure_tokens
from counterpoise.lab.studies.credit.training import measure_training
from counterpoise.lab.studies.harness import Lab
from counterpoise.lab.studies.study import Study
from counterpoise.statistics.finding import Record, Records

if TYPE_CHECKING:
    from counterpoise.report.panels.panel import Figure

TRAINED_MODEL = "embedded"
SLOW_FACTOR = 2.0  # times the baseline's seconds, from where an arm is trained after all others


def measure(lab: Lab) -> Records:
    found = measure_tokens(lab)
    if lab.model != TRAINED_MODEL or not lab.sizes["training"]["arms"]:
        return found
    refused = [r["arm"] for r in found if r["panel"] == "refused"]
    costs = {r["arm"]: r for r in found if r["panel"] == "cost"}
    plain = [arm for arm, r in costs.items() if r["ones"]]
    slow = [
        arm for arm, r in costs.items() if _seconds(r) > SLOW_FACTOR * _seconds(costs[BASELINE])
    ]
    return [*found, *measure_training(lab, {*refused, *plain} - {BASELINE}, slow)]


def draw(records: Records) -> tuple[Figure, ...]:
    """Where nothing can be drawn, measuring and judging still work."""
    from counterpoise.lab.studies.credit import draw

    return draw.draw(records)


def _seconds(cost: Record) -> float:
    return float(cost["seconds"] + cost["sampling"])


def _budgets() -> dict[str, dict[str, Any]]:
    """The arms are named in it: records of other arms than there are now are measured again.

    `quick` trains nothing: what a few minutes of two cores can train shows no difference.
    train_minutes = 0 is no limit.
    """
    every = list(credit_arms())
    full = {**BUDGETS["full"], "rates": [1e-4], "seeds": 4, "iterations": 40, "arms": every}
    return {
        "quick": {
            "prompts": 48, "continuations": 8, "open": 8, "closed": 0, "iterated": 8, "steps": 4,
            "repeats": 1, "every": every, "training": {"arms": []}, "train_minutes": 0,
        },
        "full": {
            "prompts": 128, "continuations": 32, "open": 8, "closed": 0, "iterated": 64,
            "steps": 4, "repeats": 2, "every": every, "training": full, "train_minutes": 0,
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
