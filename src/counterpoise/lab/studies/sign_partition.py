"""Fig. 7 a: does keeping positive and negative rollouts in different updates harm?

`by_sign` puts them into different optimizer steps, so no signal of one can cancel one of the other
within a step. Runs are those of `lab/studies/arms.py`, shared with `lab/studies/interventions.py`,
costs and comparisons those of `lab/experiments/compare.py`. The paper draws a substantial drop and
prints no number; a drop counts as substantial from 2 points on, chosen beforehand.

The verdict is about by_sign minus shuffled, paired by seed, with intervals for all rates together.
Replicated: at some rate it lies below 0 both at equal rollouts and at equal updates. Not
replicated: at every rate both intervals lie above -2 points. Inconclusive otherwise, and with fewer
than three seeds: the quick budget's two cannot decide.
"""

from __future__ import annotations

from counterpoise.lab.experiments.compare import compare, describe_comparison, judge_comparisons
from counterpoise.lab.experiments.curves import group_by_run
from counterpoise.lab.studies.arms import BASELINE, BUDGETS, measure_arms, numbers
from counterpoise.lab.studies.arms_charts import draw
from counterpoise.lab.studies.harness import Lab
from counterpoise.lab.studies.study import Study
from counterpoise.statistics.finding import Finding, Records

TESTED = ("shuffled", "by_sign", "QB")
ARM = "by_sign"
SUBSTANTIAL = 0.02


def measure(lab: Lab) -> Records:
    return measure_arms(lab, TESTED)


def judge(records: Records) -> Finding:
    runs = group_by_run(records)
    found = compare(runs, ARM, BASELINE)
    return Finding(
        judge_comparisons(found, "worse", SUBSTANTIAL),
        f"by_sign minus shuffled: {'; '.join(describe_comparison(one) for one in found)}.",
        numbers(runs),
        (
            "The paper prints no number for this figure.",
            f"by_sign minus QB: {'; '.join(describe_comparison(one) for one in compare(runs, ARM, 'QB'))}.",
            "Signs kept apart within an iteration still follow each other closely: the steps of "
            "one iteration are taken one after another from the same rollouts.",
        ),
    )


STUDY = Study(
    name="sign_partition",
    title="Positive and negative rollouts in separate updates",
    shows="Fig. 7 a",
    claim="Putting positive and negative rollouts into different mini-batches destroys "
    "cancellation, and performance drops substantially.",
    rule="by_sign minus shuffled, paired by seed: replicated when at some learning rate its "
    "interval lies below 0 both at equal rollouts and at equal updates; not replicated when at "
    "every rate both lie above -2 points; otherwise, or with fewer than three seeds, inconclusive.",
    budgets=BUDGETS,
    measure=measure,
    judge=judge,
    draw=draw,
)
