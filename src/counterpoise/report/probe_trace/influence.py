"""Which prompts, rollouts and tokens raised and lowered held-out answers over a run.

    influence of a prompt on an answer = sum over updates and its rows of lr * push

Where answers were sampled anew, the influence on a problem goes on with its newer answer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from counterpoise.report.probe_trace.agreement import Agreement, AgreementMeter
from counterpoise.report.probe_trace.read import ProbedIteration, ProbedRun, find_id
from counterpoise.report.texts import make_visible
from counterpoise.report.traces import (
    Vocabulary,
    read_trace,
    read_vocabulary,
    stored_iterations,
)

KINDS = ("right", "wrong")
TOP_ROLLOUTS = 5  # rollouts shown in each direction
MAX_RESPONSE = 160  # characters shown of a rollout
SHOWN_TOKENS = 2  # of an answer, in each update


@dataclass(slots=True)
class Influence:
    """Cumulated influence of one source, for example a prompt, on one target."""

    total: float = 0.0
    updates: int = 0  # in which it moved the target: at learning rate 0 an update moves nothing
    raising: int = 0  # updates in which it raised the target

    def add(self, change: float) -> None:
        self.total += change
        self.updates += change != 0
        self.raising += change > 0


@dataclass(frozen=True, slots=True)
class UpdateEffect:
    """What the update of one iteration did to a problem's answer."""

    iteration: int
    kind: str  # right, wrong
    sampled_in: int  # the iteration that sampled the answer; 0: it is from the user's probe_file
    moved: float  # real change of the answer's log-probability
    predicted: float
    raised: float  # predicted, of the rows that raise it
    lowered: float
    changed_tokens: tuple[tuple[int, float], ...]  # (token id, real change): its largest ones


@dataclass(frozen=True, slots=True)
class RolloutEffect:
    """The influence of one rollout on a problem's right answer."""

    iteration: int
    group: str
    index: int  # in its group
    row: int  # of the plan
    advantage: float
    change: float
    answer: int  # index of the held-out answer among those of the iteration
    response: str = ""
    tokens: tuple[tuple[int, str, float], ...] = ()  # (position, text, change), strongest first


@dataclass(frozen=True, slots=True, eq=False)
class ProblemTrace:
    """What moved the answers of one held-out problem."""

    problem_id: str
    problem: str
    answer: str  # the reference; the answers that are followed are in `updates`
    half: str  # "steer" or "judge" (microscope/probe_monitor.py)
    updates: list[UpdateEffect]
    prompts: dict[str, Influence]  # on the right answer
    # The changes of the right answer by a prompt's rollouts, without their signs: right and wrong
    # rollouts of one prompt often push in opposite directions.
    both_ways: dict[str, float]
    rollouts: list[RolloutEffect]  # strongest first
    agreement: Agreement  # of the whole run


@dataclass(frozen=True, slots=True, eq=False)
class PromptTrace:
    """Which held-out problems one training prompt helped and hurt."""

    prompt_id: str
    prompt: str
    iterations: list[int]
    problems: dict[str, dict[str, Influence]]  # problem -> kind -> influence
    moved: dict[str, float]  # real change of each problem's right answer in these updates
    agreement: Agreement


@dataclass(frozen=True, slots=True, eq=False)
class RunTrace:
    """The whole run: how every problem moved, and every prompt's influence on all of them."""

    # Sums by problem: the real change of its "right" and "wrong" answers; of the right ones also
    # the "predicted" change, and the number of "updates" that it was measured in.
    problems: dict[str, dict[str, float]]
    halves: dict[str, str]
    prompts: dict[str, Influence]  # on the mean log-probability of the right answers
    agreement: Agreement


def trace_problem(probed_run: ProbedRun, wanted: str) -> ProblemTrace:
    """Follow one held-out problem through the run."""
    problem_id = find_id("held-out problem", wanted, probed_run.problem_ids)
    meter = AgreementMeter(probed_run)
    updates: list[UpdateEffect] = []
    prompts: defaultdict[str, Influence] = defaultdict(Influence)
    both_ways: defaultdict[str, float] = defaultdict(float)
    rollouts = _StrongestRollouts()
    for probed in probed_run.read():
        meter.add(probed)
        for answer, answer_record in enumerate(probed.answers):
            if answer_record["problem_id"] != problem_id:
                continue
            kind = _kind(answer_record)
            change_of_row = _changes_by_row(probed, answer)
            updates.append(_update_effect(probed, answer, kind, list(change_of_row.values())))
            if kind == "right":
                rollouts.add(probed, answer, change_of_row)
                for prompt, change in _sum_by_prompt(probed, change_of_row).items():
                    prompts[prompt].add(change)
                for row, change in change_of_row.items():
                    both_ways[probed.prompt_of_row(row)] += abs(change)
    problem_record = next(
        answer_record
        for answers in probed_run.answers_since.values()
        for answer_record in answers
        if answer_record["problem_id"] == problem_id
    )
    return ProblemTrace(
        problem_id=problem_id,
        problem=make_visible(problem_record["problem"]),
        answer=make_visible(problem_record["answer"]),
        half=problem_record["half"],
        updates=updates,
        prompts=dict(prompts),
        both_ways=dict(both_ways),
        rollouts=rollouts.with_texts(probed_run),
        agreement=meter.result(),
    )


def trace_prompt(probed_run: ProbedRun, wanted: str) -> PromptTrace:
    """Follow the influence of one training prompt."""
    prompt_id = find_id("training prompt", wanted, probed_run.prompt_ids)
    meter = AgreementMeter(probed_run)
    problems: dict[str, dict[str, Influence]] = {}
    moved: defaultdict[str, float] = defaultdict(float)
    iterations: list[int] = []
    prompt_text = ""
    for probed in probed_run.read():
        meter.add(probed)
        rows = [
            row
            for row in np.unique(probed.rows["row"]).tolist()
            if probed.prompt_of_row(row) == prompt_id
        ]
        if not rows:
            continue
        iterations.append(probed.iteration)
        prompt_text = prompt_text or _prompt_text(probed_run, probed, rows[0])
        chosen = np.isin(probed.rows["row"], rows)
        pushes = probed.rows["push"][chosen].astype(np.float64)
        change_Q = probed.lr * np.bincount(
            probed.rows["answer"][chosen], pushes, len(probed.answers)
        )
        moved_Q = probed.moved_Q()
        for answer, record in enumerate(probed.answers):
            by_kind = problems.setdefault(
                record["problem_id"], {kind: Influence() for kind in KINDS}
            )
            by_kind[_kind(record)].add(float(change_Q[answer]))
            if _kind(record) == "right":
                moved[record["problem_id"]] += float(moved_Q[answer])
    return PromptTrace(
        prompt_id, make_visible(prompt_text), iterations, problems, dict(moved), meter.result()
    )


def trace_run(probed_run: ProbedRun) -> RunTrace:
    """How every held-out problem moved, and which prompts moved them."""
    meter = AgreementMeter(probed_run)
    names = ("right", "wrong", "predicted", "updates")
    problems = {problem: dict.fromkeys(names, 0.0) for problem in probed_run.problem_ids}
    halves: dict[str, str] = {}
    prompts: defaultdict[str, Influence] = defaultdict(Influence)
    for probed in probed_run.read():
        meter.add(probed)
        moved_Q, predicted_Q = probed.moved_Q(), probed.predicted_Q()
        right_answers = []
        for answer, record in enumerate(probed.answers):
            sums, kind = problems[record["problem_id"]], _kind(record)
            halves[record["problem_id"]] = record["half"]
            sums[kind] += float(moved_Q[answer])
            if kind == "right":
                right_answers.append(answer)
                sums["predicted"] += float(predicted_Q[answer])
                sums["updates"] += 1
        if right_answers:
            for prompt, change in _changes_of_mean_by_prompt(probed, right_answers).items():
                prompts[prompt].add(change)
    return RunTrace(problems, halves, dict(prompts), meter.result())


# -- sums of one iteration ----------------------------------------------------------------------


def _kind(record: dict[str, Any]) -> str:
    return "right" if record["reward"] > 0 else "wrong"


def _changes_by_row(probed: ProbedIteration, answer: int) -> dict[int, float]:
    """The predicted change of an answer by each row; a row is in one step only."""
    chosen = probed.rows["answer"] == answer
    changes = probed.lr * probed.rows["push"][chosen].astype(np.float64)
    return dict(zip(probed.rows["row"][chosen].tolist(), changes.tolist(), strict=True))


def _sum_by_prompt(probed: ProbedIteration, change_of_row: dict[int, float]) -> dict[str, float]:
    sums: defaultdict[str, float] = defaultdict(float)
    for row, change in change_of_row.items():
        sums[probed.prompt_of_row(row)] += change
    return sums


def _changes_of_mean_by_prompt(probed: ProbedIteration, answers: Sequence[int]) -> dict[str, float]:
    """How far each prompt's rows are predicted to move the mean log-probability of `answers`."""
    chosen = np.isin(probed.rows["answer"], answers)
    pushes = probed.rows["push"][chosen].astype(np.float64)
    change_of_row = probed.lr / len(answers) * np.bincount(probed.rows["row"][chosen], pushes)
    rows = np.unique(probed.rows["row"][chosen]).tolist()
    return _sum_by_prompt(probed, {row: float(change_of_row[row]) for row in rows})


def _update_effect(
    probed: ProbedIteration, answer: int, kind: str, changes: Sequence[float]
) -> UpdateEffect:
    record = probed.answers[answer]
    columns = probed.tokens
    chosen = columns["answer"] == answer
    positions = columns["position"][chosen]
    moved_T = np.bincount(positions, columns["displacement"][chosen].astype(np.float64))
    largest = np.argsort(-np.abs(moved_T), kind="stable")[:SHOWN_TOKENS]
    return UpdateEffect(
        iteration=probed.iteration,
        kind=kind,
        sampled_in=record["drawn"],
        moved=float(moved_T.sum()),
        predicted=float(sum(changes)),
        raised=sum(change for change in changes if change > 0),
        lowered=sum(change for change in changes if change < 0),
        changed_tokens=tuple(
            (int(record["response_tokens"][position]), float(moved_T[position]))
            for position in largest
        ),
    )


def _prompt_text(probed_run: ProbedRun, probed: ProbedIteration, row: int) -> str:
    rollout = probed_run.run.texts_of_plan(probed.plan)[row]
    return rollout.prompt if rollout else ""


@dataclass(slots=True)
class _StrongestRollouts:
    """The rollouts that raise and lower an answer most, over all updates."""

    effects: list[RolloutEffect] = field(default_factory=list)
    iterations: dict[int, ProbedIteration] = field(default_factory=dict)

    def add(self, probed: ProbedIteration, answer: int, change_of_row: dict[int, float]) -> None:
        ordered = sorted(change_of_row, key=lambda row: change_of_row[row])
        rows = dict.fromkeys([*ordered[:TOP_ROLLOUTS], *ordered[-TOP_ROLLOUTS:]])
        candidates = [
            RolloutEffect(
                iteration=probed.iteration,
                group=probed.group_of_row(row),
                index=probed.plan["index"][row],
                row=row,
                advantage=probed.plan["advantage"][row],
                change=change_of_row[row],
                answer=answer,
            )
            for row in rows
        ]
        ranked = sorted([*self.effects, *candidates], key=lambda effect: effect.change)
        self.effects = list(
            {
                (effect.iteration, effect.row): effect
                for effect in [*ranked[:TOP_ROLLOUTS], *ranked[-TOP_ROLLOUTS:]]
            }.values()
        )
        kept = {effect.iteration for effect in self.effects}
        self.iterations[probed.iteration] = probed
        self.iterations = {i: p for i, p in self.iterations.items() if i in kept}

    def with_texts(self, probed_run: ProbedRun) -> list[RolloutEffect]:
        """The rollouts with their responses and the tokens that pushed most."""
        vocabulary = read_vocabulary(probed_run.run.path)
        effects = [
            self._with_text(effect, self.iterations[effect.iteration], probed_run, vocabulary)
            for effect in self.effects
        ]
        return sorted(effects, key=lambda effect: -effect.change)

    @staticmethod
    def _with_text(
        effect: RolloutEffect,
        probed: ProbedIteration,
        probed_run: ProbedRun,
        vocabulary: Vocabulary,
    ) -> RolloutEffect:
        rollout = probed_run.run.texts_of_plan(probed.plan)[effect.row]
        pushes = probed.token_pushes(effect.answer, effect.row)
        tokens: tuple[tuple[int, str, float], ...] = ()
        if pushes and probed.iteration in stored_iterations(probed.path):
            columns = read_trace(probed.path, probed.iteration).row_columns(effect.row)
            tokens = tuple(
                (position, vocabulary[int(columns["token"][position])], change)
                for position, change in pushes
            )
        response = make_visible(rollout.response, MAX_RESPONSE) if rollout else ""
        return replace(effect, response=response, tokens=tokens)


def ranked_influences(
    influences: dict[str, Influence], count: int
) -> tuple[list[tuple[str, Influence]], list[tuple[str, Influence]]]:
    """The sources that raise most and those that lower most, strongest first."""
    ordered: Iterable[tuple[str, Influence]] = sorted(
        influences.items(), key=lambda item: -item[1].total
    )
    raising = [item for item in ordered if item[1].total > 0]
    lowering = [item for item in ordered if item[1].total < 0]
    return raising[:count], lowering[::-1][:count]
