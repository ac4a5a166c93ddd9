"""SERL: trust an action by how much more likely it becomes once its result is known.

    D_t = log pi_T(o_t | x, f, o_<t) - log pi(o_t | x, o_<t)               |D| <= 20
    w_t = (1 - lam) + lam clip(exp(sign(A) D_t), 1 - clip, 1 + clip)       t in a turn's action
    w_t = 1                                                                elsewhere
    lam = mix (1 - (iteration - 1) / fade), not below 0

f is what became known after that turn, by `feedback`:

    immediate           the environment's feedback on it (the default of the authors' code)
    next_observation    what the policy reads before its next turn
    future              the rest of the episode
    success             a successful episode of the group; for failed episodes only

After the last turn, next_observation and future are its feedback. A wrong action in a successful
episode loses credit, one in a failed episode gets more blame. The rollout carries the action's
tokens and the feedback (`types.Turn`), because only the task knows them. Weights are 1 for a turn
without an action, for one without feedback (which means that its action was right), for groups
without a successful episode (success) and for rollouts that are not episodes. lam = 0: 1
everywhere. The authors' modes that ask a judge are not here.

arXiv:2605.19447; mix = 0.5, fade = 50 (updates), clip = 0.2 by the authors' code. The teacher pi_T
is as in `rlsd`; theirs follows every 10 steps. The wording of the hindsight prompt is chosen here.
It costs one pass for every turn that any rollout has, up to the end of the turn's action.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from counterpoise.credit.hints import rewritten_prompts, with_teacher
from counterpoise.credit.rlsd import check_clip, faded_mix, trust_weights
from counterpoise.credit.view import CreditView, unit_weights
from counterpoise.errors import unknown_name
from counterpoise.types import Floats, Row

FEEDBACK_TEMPLATE = "{problem}\n{feedback}"
IMMEDIATE = "immediate"


def immediate_feedback(view: CreditView, row_index: int, turn: int) -> str:
    return view.rows[row_index].content.turns[turn].feedback


def next_observation(view: CreditView, row_index: int, turn: int) -> str:
    """What the policy read before the turn after `turn`."""
    turns = view.rows[row_index].content.turns
    if turn + 1 == len(turns):
        return turns[turn].feedback
    return view.policy.decode(turns[turn + 1].observation)


def future_trajectory(view: CreditView, row_index: int, turn: int) -> str:
    """The observations and responses after `turn`, as text."""
    rollout = view.rows[row_index].content
    later_turns = rollout.turns[turn + 1 :]
    if not later_turns:
        return rollout.turns[turn].feedback
    ends = [*(later.start for later in later_turns[1:]), len(rollout.response_tokens)]
    token_lists = [
        tokens
        for later, end in zip(later_turns, ends, strict=True)
        for tokens in (later.observation, rollout.response_tokens[later.start : end])
    ]
    return " ".join(view.policy.decode_rows(token_lists))


def successful_sample(view: CreditView, row_index: int, turn: int) -> str:
    """The text of the first successful episode of the group; "" for one that succeeded itself."""
    row = view.rows[row_index]
    if row.sign > 0:
        return ""
    successes = (r.content.response for r in view.rows if r.group == row.group and r.sign > 0)
    return next(successes, "")


FEEDBACK_MODES: dict[str, Callable[[CreditView, int, int], str]] = {
    IMMEDIATE: immediate_feedback,
    "next_observation": next_observation,
    "future": future_trajectory,
    "success": successful_sample,
}


@with_teacher
def weights(
    view: CreditView,
    *,
    mix: float = 0.5,
    fade: int = 50,
    clip: float = 0.2,
    feedback: str = IMMEDIATE,
) -> list[Floats] | None:
    """Token weights of every row, by a teacher that knows each action's result. arXiv:2605.19447"""
    check_clip(clip)
    if feedback not in FEEDBACK_MODES:
        raise unknown_name("feedback of serl", feedback, FEEDBACK_MODES)
    policy, reader = view.policy, view.reader
    assert reader is not None
    lam = faded_mix(mix, fade, reader.iteration)
    if lam == 0:
        return None
    row_weights = unit_weights(view.rows)
    describe = partial(FEEDBACK_MODES[feedback], view)
    # One pass per turn, over all rows that have feedback on it: each sees its own hindsight prompt.
    for turn in range(max((len(row.content.turns) for row in view.rows), default=0)):
        hindsight = {i: describe(i, turn) for i in rows_with_feedback(view.rows, turn)}
        indices = [i for i, text in hindsight.items() if text]
        rows = [view.rows[i].truncate(view.rows[i].content.turns[turn].action[1]) for i in indices]
        prompts = rewritten_prompts(
            policy, rows, [partial(add_feedback, feedback=hindsight[i]) for i in indices]
        )
        teacher_logprobs = CreditView(rows, reader).logprobs_with_prompts(prompts)
        for i, teacher_T in zip(indices, teacher_logprobs, strict=True):
            row = view.rows[i]
            action_span = slice(*row.content.turns[turn].action)
            row_weights[i][action_span] = trust_weights(
                teacher_T[action_span], view.logprobs[i][action_span], row.sign, lam, clip
            )
    return row_weights


def add_feedback(problem: str, feedback: str) -> str:
    """The problem's text with the environment's feedback after it."""
    return FEEDBACK_TEMPLATE.format(problem=problem, feedback=feedback)


def rows_with_feedback(rows: Sequence[Row], turn: int) -> list[int]:
    """Rows whose `turn` has an action and feedback on it."""
    return [
        i
        for i, row in enumerate(rows)
        if len(turns := row.content.turns) > turn
        and turns[turn].feedback
        and turns[turn].action[1] > turns[turn].action[0]
    ]
