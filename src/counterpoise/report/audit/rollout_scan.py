"""One pass over all rollouts: what every finding about prompts, rewards and texts needs.

An iteration is read line by line into small facts and folded into totals, so no text outlives its
iteration. What grows is one tally for each distinct prompt, up to MAX_PROMPTS.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np

from counterpoise.report.audit.answer_check import (
    AnswerChecker,
    final_answer,
    is_number,
    tidy_reference,
)
from counterpoise.report.audit.records import Example, percent
from counterpoise.report.audit.run_files import RunFiles
from counterpoise.report.audit.thresholds import ECHO_OVERLAP
from counterpoise.report.texts import make_visible
from counterpoise.store.stored_rollouts import RolloutLine
from counterpoise.task.contamination.wording import letters_digits_and_operators, split_words

MAX_PROMPTS = 200_000  # distinct prompts with a tally
MAX_PROMPT_TEXTS = 20_000  # kept as text, where benchmarks are looked for
MAX_ANSWERS = 64  # distinct answers of a prompt that are compared
MAX_ALL_ANSWERS = 2_000_000  # of all prompts
MAX_EXAMPLES = 5
ECHO_WORDS = 6  # a sequence of this many words that is in the question was copied
SHORTEST_ECHO = 12  # words: shorter responses may share a sequence by chance
MAX_WORDS = 2000  # of a response that are compared with the question


@dataclass(slots=True)
class PromptTally:
    """What was seen of one prompt text."""

    prompt_id: str
    first_group: str
    rollouts: int = 0
    solved: int = 0
    groups: int = 0
    copies: int = 0  # groups under another id, or a second one in an iteration
    zero_scored: int = 0
    rejected: int = 0  # right in a box by our verifier, scored 0 or less
    unboxed: int = 0  # the same without a box
    paid: int = 0  # scored 1 with a boxed answer to a numeric reference
    accepted: int = 0  # of these, wrong by our verifier
    repeats: int = 0  # rollouts that repeat an earlier answer or response
    inconsistent: int = 0  # of these, with another reward
    rewarded: int = 0  # long enough to echo, with a reward above 0
    echoes: int = 0
    # hash of an answer or a whole response -> its first reward
    first_rewards: dict[bytes, float] = field(default_factory=dict)


@dataclass(slots=True)
class IterationTally:
    """Means of one iteration."""

    iteration: int
    rollouts: int
    reward: float
    success: float
    groups: int
    mixed_groups: int
    without_signal: int  # rollouts in groups with equal rewards
    positive: int  # rollouts above the mean of a mixed group
    negative: int
    length: float  # tokens, or words where tokens are not stored
    truncated: float | None
    right: float | None  # share right by our verifier, of those with a final answer
    echoes: float | None
    length_reward: float | None  # correlation of length and reward within groups
    in_no_plan: int | None  # rollouts of mixed groups; None: no plans, or a buffer where they wait


@dataclass(eq=False)
class RolloutTotals:
    """Totals over a run's stored rollouts."""

    iterations: list[IterationTally] = field(default_factory=list)
    prompts: dict[bytes, PromptTally] = field(default_factory=dict)
    texts: dict[bytes, tuple[str, str, str]] = field(default_factory=dict)  # id, prompt, answer
    examples: dict[str, list[Example]] = field(default_factory=dict)
    rewards_seen: set[float] = field(default_factory=set)  # at most a few: binary or graded
    num_rollouts: int = 0
    with_reference: int = 0
    with_prompt: int = 0
    with_response: int = 0
    untracked_rollouts: int = 0  # of prompts beyond MAX_PROMPTS
    length_unit: str = "tokens"
    undecided_pairs: int = 0
    answers_kept: int = 0

    @property
    def is_binary(self) -> bool:
        """Whether rewards took at most two values: then a reward is a verdict."""
        return len(self.rewards_seen) <= 2

    def forget_repeats(self) -> None:
        """Reset the counts of repeats once rewards turn out to be graded.

        Until then equal answers were expected to score the same.
        """
        for tally in self.prompts.values():
            tally.repeats = tally.inconsistent = 0
            tally.first_rewards.clear()
        self.examples.pop("inconsistent", None)
        self.answers_kept = 0

    def add_example(self, kind: str, rollout: RolloutLine, text: str) -> None:
        """Keep the first few rollouts that show something, from different groups."""
        kind_examples = self.examples.setdefault(kind, [])
        if len(kind_examples) < MAX_EXAMPLES and all(
            example.group != rollout.group for example in kind_examples
        ):
            kind_examples.append(
                Example(make_visible(rollout.group, 200), rollout.index, make_visible(text, 300))
            )


@dataclass(frozen=True, slots=True)
class RolloutFacts:
    """What remains of a rollout when its text is dropped."""

    group: str
    reward: float
    length: int
    finished: bool | None
    right: bool | None
    echo: bool | None


@dataclass(frozen=True, slots=True)
class QuestionWords:
    """The words of a question, and its runs of ECHO_WORDS words."""

    words: frozenset[str]
    grams: frozenset[tuple[str, ...]]

    @classmethod
    def of(cls, text: str) -> QuestionWords:
        words = _first_words(text)
        return cls(frozenset(words), frozenset(_grams(words)))


def scan_rollouts(
    run: RunFiles, planned_rows: Mapping[int, Mapping[str, int]] | None = None
) -> RolloutTotals:
    """Read every stored rollout once; `planned_rows` are those of `PlanTotals`."""
    planned_rows = planned_rows or {}
    scan = RolloutTotals()
    keep_texts = bool(run.benchmark_files)
    with AnswerChecker() as checker:
        for number, iteration in enumerate(run.rollout_files):
            run.progress("rollouts", number, len(run.rollout_files))
            facts = list(_iteration_facts(run, iteration, scan, checker, keep_texts))
            if facts:
                scan.iterations.append(
                    _tally_iteration(iteration, facts, planned_rows.get(iteration))
                )
        scan.undecided_pairs = checker.undecided_pairs
    run.progress("rollouts", len(run.rollout_files), len(run.rollout_files))
    return scan


def _iteration_facts(
    run: RunFiles, iteration: int, scan: RolloutTotals, checker: AnswerChecker, keep_texts: bool
) -> Iterator[RolloutFacts]:
    """Fold each rollout into the tally of its prompt, and yield what its iteration needs."""
    groups_of_prompt: dict[bytes, set[str]] = {}
    questions: dict[bytes, QuestionWords] = {}
    for rollout in run.iterate_rollouts(iteration):
        if np.isnan(rollout.reward):
            continue
        scan.num_rollouts += 1
        scan.with_prompt += bool(rollout.prompt)
        scan.with_response += bool(rollout.response)
        if scan.is_binary:
            scan.rewards_seen.add(rollout.reward)
            if not scan.is_binary:
                scan.forget_repeats()
        key = _digest(letters_digits_and_operators(rollout.prompt) or rollout.prompt_id)
        tally = _prompt_tally(scan, key, rollout, groups_of_prompt.setdefault(key, set()))
        if keep_texts and key not in scan.texts and len(scan.texts) < MAX_PROMPT_TEXTS:
            scan.texts[key] = (rollout.prompt_id, rollout.prompt, rollout.answer)
        if key not in questions:
            questions[key] = QuestionWords.of(rollout.prompt)
        right = _check_answer(rollout, tally, scan, checker)
        _check_consistency(rollout, tally, scan)
        echo = _check_echo(rollout, tally, scan, questions[key])
        length = rollout.num_tokens
        if length is None:
            scan.length_unit, length = "words", len(rollout.response.split())
        yield RolloutFacts(rollout.group, rollout.reward, length, rollout.finished, right, echo)


def _prompt_tally(
    scan: RolloutTotals, key: bytes, rollout: RolloutLine, groups: set[str]
) -> PromptTally:
    tally = scan.prompts.get(key)
    if tally is None:
        tally = PromptTally(rollout.prompt_id, rollout.group)
        if len(scan.prompts) < MAX_PROMPTS:
            scan.prompts[key] = tally
    scan.untracked_rollouts += key not in scan.prompts
    if rollout.group not in groups:
        # Another epoch repeats a prompt under its own id; a copy has another id, or is a second
        # group of one iteration.
        if rollout.prompt_id != tally.prompt_id or groups:
            tally.copies += 1
            scan.add_example(
                "duplicate", rollout, f"same text as {tally.first_group}: {rollout.prompt}"
            )
        groups.add(rollout.group)
        tally.groups += 1
    tally.rollouts += 1
    tally.solved += rollout.reward > 0
    return tally


def _check_answer(
    rollout: RolloutLine, tally: PromptTally, scan: RolloutTotals, checker: AnswerChecker
) -> bool | None:
    """Whether the final answer is right by our verifier; None without answer or reference."""
    reference = tidy_reference(rollout.answer)
    if rollout.reward <= 0:
        tally.zero_scored += 1
    if not reference:
        return None
    scan.with_reference += 1
    answer = final_answer(rollout.response)
    if answer is None:
        return None
    right = checker.check([(answer.text, reference)])[0]
    if rollout.reward <= 0 and right:
        if answer.boxed:
            tally.rejected += 1
            scan.add_example(
                "rejected",
                rollout,
                f"answered {answer.text} for {reference} and scored {rollout.reward:g}",
            )
        else:
            tally.unboxed += 1
            scan.add_example(
                "unboxed", rollout, f"answered {answer.text} for {reference} without a box"
            )
    if rollout.reward >= 1 and answer.boxed and is_number(reference):
        tally.paid += 1
        if right is False:
            tally.accepted += 1
            scan.add_example(
                "accepted",
                rollout,
                f"answered {answer.text} for {reference} and scored {rollout.reward:g}",
            )
    return right


def _check_consistency(rollout: RolloutLine, tally: PromptTally, scan: RolloutTotals) -> None:
    """Whether the same answer, or the same response where rewards are graded, scored the same."""
    # The reward of an episode depends on all its turns; a trainer may have stored no texts.
    if rollout.turns or not rollout.response:
        return
    answer = final_answer(rollout.response)
    kind, text = "response", rollout.response
    # A graded reward may judge more than the answer; a verdict of two values does not.
    if answer is not None and answer.boxed and scan.is_binary and rollout.finished is not False:
        kind, text = "answer", answer.text.strip()
    key = _digest(f"{kind}:{rollout.answer}:{text}")
    first_reward = tally.first_rewards.get(key)
    if first_reward is not None:
        tally.repeats += 1
        if abs(first_reward - rollout.reward) > 1e-6:
            tally.inconsistent += 1
            scan.add_example(
                "inconsistent",
                rollout,
                f"the same {kind} scored {first_reward:g} and {rollout.reward:g}: {text[-200:]}",
            )
    elif len(tally.first_rewards) < MAX_ANSWERS and scan.answers_kept < MAX_ALL_ANSWERS:
        tally.first_rewards[key] = rollout.reward
        scan.answers_kept += 1


def _check_echo(
    rollout: RolloutLine,
    tally: PromptTally,
    scan: RolloutTotals,
    question: QuestionWords,
) -> bool | None:
    """Whether most of the response is copied from the question; None if it is too short."""
    words = _first_words(rollout.response)
    num_grams = len(words) - ECHO_WORDS + 1
    if len(words) < SHORTEST_ECHO:
        return None
    copied = 0
    # A copied run of words begins with a word of the question, so most responses are decided by
    # counting those, which is much cheaper.
    if sum(word in question.words for word in words) >= ECHO_OVERLAP * num_grams:
        copied = sum(gram in question.grams for gram in _grams(words))
    is_echo = copied >= ECHO_OVERLAP * num_grams
    if rollout.reward > 0:
        tally.rewarded += 1
        tally.echoes += is_echo
        if is_echo:
            scan.add_example(
                "echo",
                rollout,
                f"{percent(copied / num_grams)} copied: {rollout.response}",
            )
    return is_echo


def _first_words(text: str) -> list[str]:
    return split_words(text[: 12 * MAX_WORDS])[:MAX_WORDS]


def _grams(words: Sequence[str]) -> list[tuple[str, ...]]:
    return [
        tuple(words[start : start + ECHO_WORDS]) for start in range(len(words) - ECHO_WORDS + 1)
    ]


def _tally_iteration(
    iteration: int, facts: Sequence[RolloutFacts], planned_rows: Mapping[str, int] | None
) -> IterationTally:
    groups: dict[str, list[RolloutFacts]] = {}
    for fact in facts:
        groups.setdefault(fact.group, []).append(fact)
    rewards_N = np.array([fact.reward for fact in facts])
    mixed_groups = without_signal = positive = negative = in_no_plan = 0
    centred_lengths, centred_rewards = [], []
    for group, members in groups.items():
        rewards_G = np.array([fact.reward for fact in members])
        deviation_G = rewards_G - rewards_G.mean()
        if np.ptp(rewards_G) <= 1e-12:
            without_signal += len(members)
            continue
        mixed_groups += 1
        if planned_rows is not None:
            in_no_plan += max(0, len(members) - planned_rows.get(group, 0))
        positive += int((deviation_G > 0).sum())
        negative += int((deviation_G < 0).sum())
        lengths_G = np.array([fact.length for fact in members], dtype=np.float64)
        centred_lengths.append(lengths_G - lengths_G.mean())
        centred_rewards.append(deviation_G)
    return IterationTally(
        iteration=iteration,
        rollouts=len(facts),
        reward=float(rewards_N.mean()),
        success=float((rewards_N > 0).mean()),
        groups=len(groups),
        mixed_groups=mixed_groups,
        without_signal=without_signal,
        positive=positive,
        negative=negative,
        length=float(np.mean([fact.length for fact in facts])),
        truncated=_mean_known([None if f.finished is None else not f.finished for f in facts]),
        right=_mean_known([fact.right for fact in facts]),
        echoes=_mean_known([fact.echo for fact in facts]),
        length_reward=_correlation(centred_lengths, centred_rewards),
        in_no_plan=None if planned_rows is None else in_no_plan,
    )


def _mean_known(values: Sequence[bool | None]) -> float | None:
    known_values = [value for value in values if value is not None]
    return sum(known_values) / len(known_values) if known_values else None


def _correlation(left: Sequence[np.ndarray], right: Sequence[np.ndarray]) -> float | None:
    """The pooled correlation of values that are centred within groups."""
    if not left:
        return None
    left_N, right_N = np.concatenate(left), np.concatenate(right)
    scale = float(np.sqrt((left_N**2).sum() * (right_N**2).sum()))
    return float((left_N * right_N).sum()) / scale if scale else None


def _digest(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "replace"), digest_size=8).digest()
