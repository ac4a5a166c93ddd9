"""Fig. 7 a: does training suffer when positive and negative rollouts are in different updates?

`by_sign` puts them into different optimizer steps, so their signals cannot cancel within a step.
The runs come from `lab/studies/arms.py` and are shared with `lab/studies/interventions.py`; costs
and comparisons are in `lab/experiments/compare.py`. The paper shows a substantial drop without a
number; here a drop counts as substantial from 2 points on, which was fixed beforehand.

The verdict is about by_sign minus shuffled, paired by seed, with intervals that hold for all rates
together. Replicated: at some rate the interval lies below 0 both at equal rollouts and at equal
updates. Not replicated: at every rate both intervals lie above -2 points. Inconclusive otherwise,
and with fewer than three seeds: the two seeds of the quick budget cannot decide.
"""

from __future__ import annotations

from counterpoise.lab.experiments.compare import compare, describe_comparison, judge_comparisons
from counterpoise.lab.experiments.curves import group_by_run
from counterpoise.lab.studies.arms import BASELINE, BUDGETS, arm_numbers, measure_arms
from counterpoise.lab.studies.arms_charts import draw
from counterpoise.lab.studies.harness import Lab
from counterpoise.lab.studies.study import Study
from counterpoise.statistics.finding import Finding, Records

TESTED_ARMS = ("shuffled", "by_sign", "QB")
JUDGED_ARM = "by_sign"
SUBSTANTIAL_DROP = 0.02


def measure(lab: Lab) -> Records:
    return measure_arms(lab, TESTED_ARMS)


def judge(records: Records) -> Finding:
    runs = group_by_run(records)
    comparisons = compare(runs, JUDGED_ARM, BASELINE)
    against_qb = compare(runs, JUDGED_ARM, "QB")
    return Finding(
        judge_comparisons(comparisons, "worse", SUBSTANTIAL_DROP),
        f"by_sign minus shuffled: {'; '.join(map(describe_comparison, comparisons))}.",
        arm_numbers(runs),
        (
            "The paper prints no number for this figure.",
            f"by_sign minus QB: {'; '.join(map(describe_comparison, against_qb))}.",
            "Even in separate steps, the two signs follow each other closely: the steps of one "
            "iteration are taken one after another on the same rollouts.",
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
