"""Fig. 1 and 9: do tokens move in the direction of their rollout's advantage?

A token is boosted, suppressed or stable (`microscope/displacement.py`); it is flipped when it moves
against its own advantage. Two measurements:

    step   one update of the model as loaded, on fixed batches, all from the same checkpoint:
           joint (GRPO advantages) and positive-only (negative advantages set to 0, the rows kept,
           so that nothing else changes), under AdamW and SGD; displacements of all tokens of the
           batch, summed by prompt, so that prompts can be resampled. Gradients are clipped as in
           training (update.max_grad_norm), which hardly changes an AdamW step and shortens an SGD
           step of a larger gradient
    run    two training runs with the monitor on: joint (the demo) and positive-only (the same
           without reward balance, which needs both signs); the monitor's numbers of every
           iteration, means over the tokens of its optimizer steps

To use runs of your own, put their metrics.jsonl into OUT/runs/joint/ or OUT/runs/positive_only/;
nothing else of a run is read.

    flip share, positive rollouts     suppressed / (boosted + suppressed)
    flip share, negative rollouts     boosted / (boosted + suppressed)
    flip share, all                   tokens moved against their advantage / tokens moved

The paper makes two claims, and each has a verdict, by the step under AdamW:

    boosted in negative rollouts      at least 35 % of their moved tokens rise, and their boosted
                                      share is within 10 points of that of positive ones
    suppressed in positive rollouts   at least 35 % of their moved tokens fall, and positive-only
                                      lowers that share

Replicated: both conditions of a claim hold with the whole 95 % interval, and the means over the
runs contradict neither. Not replicated: an interval lies wholly on the wrong side. Inconclusive
otherwise. The study is replicated if both claims are, not replicated if one is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from counterpoise.lab.experiments.processes import train_runs
from counterpoise.lab.studies.flipping.draw import draw
from counterpoise.lab.studies.flipping.judge import (
    ARMS,
    NUMBER_LABELS,
    SIGNS,
    class_shares,
    run_means,
    step_numbers,
)
from counterpoise.lab.studies.harness import Lab
from counterpoise.lab.studies.partial_results import measure_batches
from counterpoise.lab.studies.study import Study
from counterpoise.microscope.batch_tokens import take_snapshot
from counterpoise.microscope.displacement import displacement_classes
from counterpoise.microscope.polarity import without_negative_advantages
from counterpoise.statistics.bootstrap import Interval, format_interval
from counterpoise.statistics.finding import (
    ClaimVerdict,
    Finding,
    Number,
    Record,
    Records,
    Verdict,
    join_verdicts,
)
from counterpoise.store.folder import RunFolder

MAX_DIFFERENCE, MIN_FLIPPED = 0.10, 0.35
BOOSTED_CLAIM = "tokens of negative rollouts are boosted"
SUPPRESSED_CLAIM = "tokens of positive rollouts are suppressed"
ARM_OPTIONS = {"joint": (), "positive_only": ("credit.name=positive_only", "balance.tau=0")}
COMMON = (
    "evaluate.prompts=0",
    "store.rollouts=false",
    "store.tokens=false",
    "monitor.every=1",
    "monitor.watch=0",
)


# -- measure --------------------------------------------------------------------------------------


def measure(lab: Lab) -> Records:
    return _steps(lab) + _runs(lab)


def _steps(lab: Lab) -> list[Record]:
    return measure_batches(lab, _measure_batch, "single updates, ", share=0.3)


def _measure_batch(lab: Lab, batch: int) -> list[Record]:
    records: list[Record] = []
    rows = lab.rows(lab.sizes["prompts"], batch=batch)
    snapshot_before = take_snapshot(lab.policy, rows)
    group_N, A_N = snapshot_before.groups.cpu().numpy(), snapshot_before.advantages.cpu().numpy()
    for optimizer, lr in lab.learning_rates.items():
        for arm, trained in (("joint", rows), ("positive_only", without_negative_advantages(rows))):
            with lab.unchanged():
                lab.update(trained, optimizer=optimizer, lr=lr)
                snapshot_after = take_snapshot(lab.policy, rows)
            delta_N = (snapshot_after.logprobs - snapshot_before.logprobs).cpu().numpy()
            arm_columns = {"panel": "step", "optimizer": optimizer, "arm": arm}
            for group in np.unique(group_N).tolist():
                for sign, direction in SIGNS.items():
                    member_N = (group_N == group) & (np.sign(A_N) == direction)
                    prompt_columns = {"prompt": f"{batch}:{group}", "sign": sign}
                    records.append({**arm_columns, **prompt_columns, **_counts(delta_N[member_N])})
    return records


def _counts(delta_N: np.ndarray) -> Record:
    class_N = displacement_classes(delta_N)
    return {
        "tokens": len(delta_N),
        "boosted": int((class_N > 0).sum()),
        "suppressed": int((class_N < 0).sum()),
        "moved": float(np.abs(delta_N).sum()),
    }


def _runs(lab: Lab) -> list[Record]:
    """Shares and mean |delta| for each sign and iteration of the two training runs."""
    model_options = (f"model.name={lab.model}", f"model.dtype={lab.config.model.dtype}")
    update = lab.config.update
    update_options = (f"update.lr={update.lr}", f"update.micro_tokens={update.micro_tokens}")
    common = (*model_options, *update_options, f"loop.seed={lab.seed}", *COMMON, *lab.options)
    length_option = f"loop.iterations={lab.sizes['iterations']}"
    # Runs of the user's own replace the trained ones, where their metrics are in the folder.
    user_folders = {arm: lab.out / "runs" / arm for arm in ARMS}
    missing = [arm for arm in ARMS if not (user_folders[arm] / "metrics.jsonl").is_file()]
    trained = train_runs(
        {f"flipping-{arm}": (*common, length_option, *ARM_OPTIONS[arm]) for arm in missing},
        lab.out / "runs" / lab.budget,
        lambda doing, share: lab.progress(doing, 0.3 + 0.7 * share),
        lab.weights_digest,
    )
    records = []
    for arm in ARMS:
        folder = trained[f"flipping-{arm}"] if arm in missing else RunFolder(user_folders[arm])
        records += [
            {"panel": "run", "arm": arm, **record} for record in read_monitor_records(folder.path)
        ]
    return records


def read_monitor_records(folder: Path) -> list[Record]:
    """The monitor's numbers from metrics.jsonl, by sign and iteration."""
    return [
        {
            "sign": sign,
            "iteration": metrics_line["iteration"],
            **{
                column: metrics_line[f"{column}_{sign}"]
                for column in ("boosted", "suppressed", "stable", "moved")
            },
        }
        for metrics_line in RunFolder(folder).read("metrics")
        for sign in SIGNS
        if metrics_line.get(f"boosted_{sign}") is not None
    ]


# -- judge ----------------------------------------------------------------------------------------


def judge(records: Records) -> Finding:
    step_intervals, means_over_runs = step_numbers(records), run_means(records)
    claims = judge_claims(step_intervals, means_over_runs)
    percent = {name: format_interval(share, ".1f", "%") for name, share in step_intervals.items()}
    return Finding(
        join_verdicts(claims),
        f"After one AdamW step the boosted shares of positive and negative rollouts differ by "
        f"{format_interval(step_intervals['difference'], '.1f', 'points')}, and "
        f"{percent['flipped']} of moved tokens go against their advantage: {percent['negative']} "
        f"in negative rollouts and {percent['positive']} in positive ones. With positive rollouts "
        f"alone it is {percent['positive-only']}, which takes away {percent['removed']} of the "
        "latter. In the training runs the first five of these numbers are "
        f"{', '.join(f'{100 * value:.1f}' for value in means_over_runs.values())}.",
        (
            *(
                Number(
                    NUMBER_LABELS[number_key],
                    *step_interval,
                    unit="" if number_key == "size" else "share",
                )
                for number_key, step_interval in step_intervals.items()
            ),
            *(
                Number(f"{NUMBER_LABELS[number_key]}, over the runs", value, unit="share")
                for number_key, value in means_over_runs.items()
            ),
            *class_shares(records),
        ),
        (
            "The paper draws its shares and prints none; it says that 'nearly half' are flipped.",
            "The rule asks that positive-only lowers the flip share, not by how much; the paper "
            "speaks of a great decrease.",
            "Tokens of negative rollouts move "
            f"{format_interval(step_intervals['size'], '.1f', 'times')} as far as those of "
            "positive ones; the paper finds the sizes similar (Fig. 1 c). This is not part of the "
            "rule.",
            "Shares of a run are means over iterations, which are not independent of each other: "
            "they have no interval.",
            "The two training runs differ in reward balance too; the single updates differ in "
            "nothing but the negative advantages.",
        ),
        claims,
    )


def judge_claims(
    step: Mapping[str, Interval], run: Mapping[str, float]
) -> tuple[ClaimVerdict, ClaimVerdict]:
    """The verdicts on both claims, by single updates; the runs can only contradict them."""
    _, difference_low, difference_high = step["difference"]
    alike = _Condition(
        holds=difference_low > -MAX_DIFFERENCE and difference_high < MAX_DIFFERENCE,
        fails=difference_low > MAX_DIFFERENCE or difference_high < -MAX_DIFFERENCE,
        runs_agree=abs(run["difference"]) < MAX_DIFFERENCE,
    )
    lowered = _Condition(
        holds=step["lowered"][1] > 0,
        fails=step["lowered"][2] < 0,
        runs_agree=run["positive"] > run["positive-only"],
    )
    boosted_verdict = _verdict(_flip_condition("negative", step, run), alike)
    suppressed_verdict = _verdict(_flip_condition("positive", step, run), lowered)
    return (
        ClaimVerdict(BOOSTED_CLAIM, boosted_verdict),
        ClaimVerdict(SUPPRESSED_CLAIM, suppressed_verdict),
    )


class _Condition(NamedTuple):
    """One condition of a claim, judged by single updates and by the training runs."""

    holds: bool  # with its whole interval
    fails: bool  # with its whole interval
    runs_agree: bool


def _flip_condition(
    sign: str, step: Mapping[str, Interval], run: Mapping[str, float]
) -> _Condition:
    """At least MIN_FLIPPED of the moved tokens in rollouts of this sign are flipped."""
    return _Condition(
        holds=step[sign][1] >= MIN_FLIPPED,
        fails=step[sign][2] < MIN_FLIPPED,
        runs_agree=run[sign] >= MIN_FLIPPED,
    )


def _verdict(*conditions: _Condition) -> Verdict:
    if any(condition.fails for condition in conditions):
        return "not replicated"
    if all(condition.holds and condition.runs_agree for condition in conditions):
        return "replicated"
    return "inconclusive"


STUDY = Study(
    name="flipping",
    title="Tokens move against their rollout's advantage",
    shows="Fig. 1, 9",
    claim="Positive and negative rollouts have nearly the same shares of boosted and suppressed "
    "tokens, nearly half of all tokens move against their advantage, and training on positive "
    "rollouts alone takes most of that away.",
    rule="Two claims, after one AdamW step. Boosted in negative rollouts: replicated when at least "
    "35 % of their moved tokens rise and the boosted shares of positive and negative rollouts "
    "differ by less than 10 points. Suppressed in positive rollouts: replicated when at least 35 % "
    "of their moved tokens fall and positive-only lowers that share. Intervals included, and the "
    "runs do not contradict it; not replicated when an interval lies wholly on the wrong side; "
    "otherwise inconclusive. The study is replicated when both are, and not when one is not.",
    budgets={
        "quick": {"prompts": 16, "batches": 3, "iterations": 12},
        "full": {"prompts": 64, "batches": 8, "iterations": 60},
    },
    measure=measure,
    judge=judge,
    draw=draw,
)
