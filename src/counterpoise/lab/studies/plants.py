r"""Does `poise trace` find prompts that were planted: leaked problems and wrong references?

Each seed is one short training run on problems of its own. A benchmark of right answers, drawn from
the model before training, is followed as probes (`monitor.probe_file`). Planted among the training
prompts:

    leak      problems of the benchmark. For each, training prompts are ranked by their influence
              on the leaked problem's answer (`poise trace --problem`); the copy should be first
    poison    prompts whose reference is the model's commonest wrong answer. All prompts are ranked
              by their influence on the mean answer to the problems that were not leaked
              (`poise trace`); poison should be lowest

Leaked and poisoned prompts are chosen among those that the model sometimes answers rightly: others
have no signal. A copy that is never trained, or has no signal when it is, counts as not found.

Influence is through the middle layer (`monitor.probe_through`). Through the output layer alone
copies were not found. The middle layer was then chosen in single steps of the embedded model, on
other seeds than those of this study, which begin at FIRST_SEED.

    area under the curve    P(influence of a poisoned prompt < influence of a clean one)

Decision rule, fixed before any run; intervals are bootstraps over seeds:

    leak      replicated when the interval of the share of copies that rank first lies above 1/2;
              not replicated when it lies below; otherwise inconclusive
    poison    the same for the area under the curve

Beside it, and deciding nothing: the share of copies that rank first by their rollouts' changes
without signs, since right and wrong rollouts of one prompt push in opposite directions.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import altair as alt
import numpy as np

from counterpoise.errors import PoiseError
from counterpoise.files import remove_path
from counterpoise.lab.studies.harness import GROUP_SIZE, Lab
from counterpoise.lab.studies.study import Study
from counterpoise.loop import train
from counterpoise.report.charts.figure import Figure
from counterpoise.report.charts.series import base_chart
from counterpoise.report.probe_trace.influence import trace_problem
from counterpoise.report.probe_trace.read import ProbedRun
from counterpoise.sample.collect import SamplerBinding, draw_responses
from counterpoise.statistics.bootstrap import Interval, format_interval, mean_interval
from counterpoise.statistics.finding import (
    ClaimVerdict,
    Finding,
    Number,
    Record,
    Records,
    Verdict,
    join_verdicts,
)
from counterpoise.task.word_problems import make_problem
from counterpoise.types import Prompt
from counterpoise.verify.math.boxed import extract_boxed
from counterpoise.verify.scores import score_responses

KINDS = ("clean", "leak", "poison")
FIRST_SEED = 101
COMMON = (
    "task.name=files", "balance.tau=0", "evaluate.prompts=0", "monitor.every=0",
    "monitor.probe=0", "monitor.probe_every=1", "monitor.probe_through=middle_layer",
    "store.tokens=false", "store.model=false",
)  # fmt: skip


class SampledProblem(NamedTuple):
    """A problem with what the model answers to it."""

    prompt: Prompt
    right_response: str  # "" if there is none
    common_mistake: str  # the commonest wrong final answer; "" if there is none
    is_mixed: bool  # some responses are right and some are wrong


class PlantedRun(NamedTuple):
    """The data files of one run, and what was planted."""

    options: tuple[str, ...]
    kinds: dict[str, str]  # training prompt -> one of KINDS
    leaked: tuple[str, ...]  # problems of the benchmark that are trained on


# -- measure --------------------------------------------------------------------------------------


def measure(lab: Lab) -> Records:
    check_options(lab.options)
    records: list[Record] = []
    seeds = lab.sizes["seeds"]
    for index in range(seeds):
        seed = FIRST_SEED + index
        records += lab.measure_part(f"seed {seed}", partial(_measure_seed, lab, seed))
        lab.progress(f"seed {index + 1} of {seeds}", (index + 1) / seeds)
    return records


def check_options(options: Sequence[str]) -> None:
    """Refuse what --set says of options that the study sets itself."""
    set_here = {option.partition("=")[0] for option in COMMON}
    set_here |= {"monitor.probe_file", "loop.seed", "loop.iterations"}
    for option in options:
        name = option.partition("=")[0].strip()
        if name.startswith("task.") and name != "task.levels":
            raise PoiseError(
                f"--set {option}: plants makes word problems of its own; of the task's options it "
                "reads task.levels alone"
            )
        if name in set_here:
            remedy = "use --size iterations" if name == "loop.iterations" else "leave it out"
            raise PoiseError(f"--set {option}: plants sets {name} itself: {remedy}")


def _measure_seed(lab: Lab, seed: int) -> list[Record]:
    planted = plant(lab, seed, lab.out / "plants" / f"seed_{seed}")
    run = lab.out / "plants" / f"run_{seed}"
    remove_path(run)  # what an interrupted study left
    config = lab.config_with(
        *COMMON,
        *planted.options,
        f"loop.seed={seed}",
        f"loop.iterations={lab.sizes['iterations']}",
    )
    train(config, run)
    return read_plants(run, planted, seed)


def plant(lab: Lab, seed: int, folder: Path) -> PlantedRun:
    """Choose the plants and write train.jsonl, heldout.jsonl and benchmark.jsonl to `folder`."""
    sizes, count = lab.sizes, lab.sizes["plants"]
    training = _sample_problems(lab, "train", sizes["prompts"], seed)
    others = _sample_problems(lab, "heldout", 2 * sizes["benchmark"], seed)
    mixed = [sampled for sampled in training if sampled.is_mixed]
    leaked = mixed[:count]
    poisoned = [sampled for sampled in mixed[count:] if sampled.common_mistake][:count]
    benchmark = [sampled for sampled in others if sampled.right_response][: sizes["benchmark"]]
    kinds = dict.fromkeys((sampled.prompt.id for sampled in training), "clean")
    kinds |= dict.fromkeys((sampled.prompt.id for sampled in leaked), "leak")
    kinds |= dict.fromkeys((sampled.prompt.id for sampled in poisoned), "poison")
    files = {
        "train": [_problem_record(sampled, kinds[sampled.prompt.id]) for sampled in training],
        "heldout": [_problem_record(sampled) for sampled in benchmark],
        "benchmark": [_answer_record(sampled) for sampled in (*benchmark, *leaked)],
    }
    folder.mkdir(parents=True, exist_ok=True)
    paths = {name: (folder / f"{name}.jsonl").resolve() for name in files}
    for name, lines in files.items():
        text = "".join(json.dumps(line) + "\n" for line in lines)
        paths[name].write_text(text, encoding="utf-8")
    return PlantedRun(
        (
            f"task.path={json.dumps(str(paths['train']))}",
            f"task.heldout_path={json.dumps(str(paths['heldout']))}",
            f"monitor.probe_file={json.dumps(str(paths['benchmark']))}",
        ),
        kinds,
        tuple(sampled.prompt.id for sampled in leaked),
    )


def _sample_problems(lab: Lab, split: str, count: int, seed: int) -> list[SampledProblem]:
    """Problems with eight responses of the model before training."""
    levels = lab.config.task.levels
    prompts = [make_problem(split, index, levels, seed) for index in range(count)]
    encoded = [(prompt, lab.policy.encode(prompt)) for prompt in prompts]
    responses_PG = draw_responses(SamplerBinding(lab.policy), encoded, lab.config, seed)
    texts = [response.text for responses in responses_PG for response in responses]
    repeated = [prompt for prompt in prompts for _ in range(GROUP_SIZE)]
    rewards = score_responses(lab.verifier, texts, repeated).rewards
    problems = []
    for index, prompt in enumerate(prompts):
        group = slice(index * GROUP_SIZE, (index + 1) * GROUP_SIZE)
        scored = list(zip(texts[group], rewards[group], strict=True))
        right = [text for text, reward in scored if reward > 0]
        mistakes = Counter(extract_boxed(text) or "" for text, reward in scored if reward <= 0)
        mistakes.pop("", None)
        common_mistake = mistakes.most_common(1)[0][0] if mistakes else ""
        is_mixed = 0 < len(right) < GROUP_SIZE
        problems.append(SampledProblem(prompt, right[0] if right else "", common_mistake, is_mixed))
    return problems


def _problem_record(sampled: SampledProblem, kind: str = "clean") -> dict[str, Any]:
    prompt = sampled.prompt
    answer = sampled.common_mistake if kind == "poison" else prompt.answer
    return {"id": prompt.id, "problem": prompt.problem, "answer": answer}


def _answer_record(sampled: SampledProblem) -> dict[str, Any]:
    prompt = sampled.prompt
    return {
        "prompt_id": prompt.id,
        "prompt": prompt.problem,
        "answer": prompt.answer,
        "response": sampled.right_response,
        "reward": 1.0,
    }


def read_plants(run: Path, planted: PlantedRun, seed: int) -> list[Record]:
    """What the trace of a run says about its training prompts."""
    probed_run = ProbedRun.open(run)
    records: list[Record] = []
    influence_on_others: dict[str, list[float]] = {}
    for problem in probed_run.problem_ids:
        trace = trace_problem(probed_run, problem)
        influences = {name: influence.total for name, influence in trace.prompts.items()}
        if problem in planted.leaked:
            records.append(
                {
                    "seed": seed,
                    "kind": "copy",
                    "prompt": problem,
                    "rank": rank_of(problem, influences),
                    "both_ways_rank": rank_of(problem, trace.both_ways),
                }
            )
            continue
        for prompt, influence in influences.items():
            influence_on_others.setdefault(prompt, []).append(influence)
    for prompt, kind in planted.kinds.items():
        totals = influence_on_others.get(prompt)
        if totals is not None:  # it was trained
            mean_total = float(np.mean(totals))
            records.append({"seed": seed, "kind": kind, "prompt": prompt, "influence": mean_total})
    return records


def rank_of(prompt: str, influences: Mapping[str, float]) -> int:
    """The place of a prompt, 1 for the largest influence; 0 if it was never trained."""
    ordered = sorted(influences, key=lambda name: -influences[name])
    return ordered.index(prompt) + 1 if prompt in ordered else 0


# -- judge ----------------------------------------------------------------------------------------


def judge(records: Records) -> Finding:
    copies = [record for record in records if record["kind"] == "copy"]
    first = mean_interval(
        [record["seed"] for record in copies], [record["rank"] == 1 for record in copies]
    )
    untrained = sum(record["rank"] == 0 for record in copies)
    areas = {
        seed: area for seed in _seeds(records) if (area := area_under_curve(records, seed)) >= 0
    }
    poison = mean_interval(list(areas), list(areas.values()))
    claims = (
        ClaimVerdict("copies of benchmark problems are found first", _verdict(first)),
        ClaimVerdict("prompts with wrong references lower held-out answers", _verdict(poison)),
    )
    return Finding(
        join_verdicts(claims),
        f"In {len(_seeds(records))} runs, {format_interval(first, '.0f', '%')} of "
        f"{len(copies)} copies rank first ({untrained} were never trained); a poisoned prompt lies "
        f"below a clean one with probability {format_interval(poison, '.2f')}.",
        (
            Number("copies that rank first", *first, unit="share"),
            *_numbers_both_ways(copies),
            Number("area under the curve, poison", *poison),
        ),
        claims=claims,
    )


def _numbers_both_ways(copies: Records) -> Sequence[Number]:
    """The share of copies that rank first without signs; none in older records."""
    ranked = [record for record in copies if "both_ways_rank" in record]
    if not ranked:
        return ()
    share = mean_interval(
        [record["seed"] for record in ranked], [record["both_ways_rank"] == 1 for record in ranked]
    )
    return (Number("copies whose rollouts move it most, up or down", *share, unit="share"),)


def area_under_curve(records: Records, seed: int) -> float:
    """P(poisoned < clean), ties counted half; -1 if the run trained none of one kind."""
    poisoned, clean = (
        np.array([r["influence"] for r in records if r["seed"] == seed and r["kind"] == kind])
        for kind in ("poison", "clean")
    )
    if not len(poisoned) or not len(clean):
        return -1.0
    gaps = clean[None, :] - poisoned[:, None]
    return float(np.mean(gaps > 0) + np.mean(gaps == 0) / 2)


def _seeds(records: Records) -> Sequence[int]:
    return sorted({record["seed"] for record in records})


def _verdict(interval: Interval) -> Verdict:
    _, low, high = interval
    if low > 0.5:
        return "replicated"
    return "not replicated" if high < 0.5 else "inconclusive"


# -- draw -----------------------------------------------------------------------------------------


def draw(records: Records) -> tuple[Figure, ...]:
    points = [
        {"seed": record["seed"], "kind": record["kind"], "influence": record["influence"]}
        for record in records
        if record["kind"] in KINDS
    ]
    styles = {"clean": "soft", "poison": "series"}
    layers = [
        base_chart([point for point in points if point["kind"] == kind])
        .mark_point(style=style, size=30, opacity=0.7)
        .encode(
            x=alt.X("influence:Q", axis=alt.Axis(title="influence on held-out answers, nats")),
            y=alt.Y("seed:O", axis=alt.Axis(title="run")),
        )
        for kind, style in styles.items()
    ]
    return (
        Figure(
            alt.LayerChart(
                layer=layers,
                width="container",
                height=180,
                description="Influence of clean and poisoned prompts on held-out answers",
            ),
            "Prompts with wrong references",
            "Each point is a training prompt: its cumulated influence on the mean held-out answer.",
            (("series", "wrong reference"), ("soft", "clean")),
        ),
    )


STUDY = Study(
    name="plants",
    title="Planted leaks and wrong references are found",
    shows="poise trace",
    claim="Benchmark problems among the training prompts rank first for their own answers, and "
    "prompts with wrong references rank low. This is a claim of ours, not of the paper.",
    rule="Replicated when the intervals over seeds of the share of copies that rank first, and of "
    "the probability that a poisoned prompt lies below a clean one, lie above 1/2; not replicated "
    "when one lies below; otherwise inconclusive.",
    budgets={
        "quick": {
            "seeds": 10, "prompts": 48, "plants": 6, "benchmark": 12, "iterations": 3,
        },
        "full": {
            "seeds": 8, "prompts": 256, "plants": 16, "benchmark": 64, "iterations": 32,
        },
    },
    measure=measure,
    judge=judge,
    draw=draw,
)  # fmt: skip
