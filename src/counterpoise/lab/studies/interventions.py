"""Fig. 8, Table 2: do query-preserved and reward-balanced batches train better policies?

QB keeps groups whole in one step, RB balances the signs of a batch. The arms are defined in
`lab/studies/arms.py`, costs and comparisons in `lab/experiments/compare.py`. The paper's gains of
QB, RB and QB+RB over neither, mean of six benchmarks in points: Qwen2.5-Math-7B 4.5, 2.7, 7.2;
Qwen3-1.7B-Base 1.8, 3.6, 4.2; Qwen3-4B-Base 1.1, 1.0, 1.7. Table 2 contradicts itself for RB on
Qwen2.5-Math-7B: it prints a mean of 42.4, a gain of 4.6, but the six numbers of that row have a
mean of 40.5.

The verdict is about QB+RB minus shuffled, paired by seed, with intervals that hold for all rates
together. Replicated: at some rate the interval lies above 0 both at equal rollouts and at equal
updates. Not replicated: at every rate both intervals lie below +1.7 points, the smallest of the
paper's gains. Inconclusive otherwise, and with fewer than three seeds: the two seeds of the quick
budget cannot decide.
"""

from __future__ import annotations

from counterpoise.lab.experiments.compare import (
    compare,
    describe_comparison,
    format_points,
    judge_comparisons,
)
from counterpoise.lab.experiments.curves import arm_names, group_by_run
from counterpoise.lab.studies.arms import BASELINE, BUDGETS, arm_numbers, measure_arms
from counterpoise.lab.studies.arms_charts import draw
from counterpoise.lab.studies.harness import Lab
from counterpoise.lab.studies.study import Study
from counterpoise.statistics.finding import Finding, Records

TESTED_ARMS = ("shuffled", "QB", "RB", "QB+RB", "zigzag", "token_balanced")
JUDGED_ARM = "QB+RB"
SMALLEST_PAPER_GAIN = 0.017


def measure(lab: Lab) -> Records:
    return measure_arms(lab, TESTED_ARMS)


def judge(records: Records) -> Finding:
    runs = group_by_run(records)
    comparisons = compare(runs, JUDGED_ARM, BASELINE)
    # Only QB+RB is judged; the other arms are reported beside it.
    other_comparisons = {
        arm: compare(runs, arm, BASELINE)
        for arm in arm_names(runs)
        if arm not in (BASELINE, JUDGED_ARM)
    }
    return Finding(
        judge_comparisons(comparisons, "better", SMALLEST_PAPER_GAIN),
        f"QB+RB minus shuffled: {'; '.join(map(describe_comparison, comparisons))}.",
        arm_numbers(runs),
        (
            "The paper's gains of QB+RB are 7.2, 4.2 and 1.7 points for models of 7, 1.7 and 4 "
            "billion parameters; these runs say nothing about that scale.",
            "The other arms minus shuffled, at equal rollouts: "
            + "; ".join(
                f"{arm} at lr {comparison.rate:g} {format_points(comparison.rollouts)}"
                for arm, arm_comparisons in other_comparisons.items()
                for comparison in arm_comparisons
            )
            + ".",
            "Arms with RB train on batches in which every row has signal; the others also have "
            "rows without signal in the denominator of the loss.",
        ),
    )


STUDY = Study(
    name="interventions",
    title="Batching rules and what they train",
    shows="Fig. 8, Table 2",
    claim="Keeping the rollouts of a query in one update (QB) and balancing the signs of a batch "
    "(RB) stabilise training and end in better policies; together they do best.",
    rule="QB+RB minus shuffled, paired by seed: replicated when at some learning rate its interval "
    "lies above 0 both at equal rollouts and at equal updates; not replicated when at every rate "
    "both lie below +1.7 points, the paper's smallest gain; otherwise, or with fewer than three "
    "seeds, inconclusive.",
    budgets=BUDGETS,
    measure=measure,
    judge=judge,
    draw=draw,
)
