"""Token weights by hindsight: how the policy's probabilities change once it is told the answer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from counterpoise.credit.embedding_saliency import truncate_row
from counterpoise.credit.view import CreditView, unit_weights
from counterpoise.errors import PoiseError
from counterpoise.model.load import Policy
from counterpoise.types import Floats, Ints, Row

# A problem with its answer told: the prompt of a teacher that knows more than its student.
#
# What the policy makes of a response after this prompt, and after its own, says what knowing the
# answer changes (RLSD, SDPG). The wording is chosen here, plain enough for a small model; that of
# SDPG's code says the same in two sentences.

HINT_TEMPLATE = "{problem}\nThe answer is {answer}."


def hinted_prompts(policy: Policy, rows: Sequence[Row]) -> list[Ints]:
    """The prompt of every row with the reference answer in it."""
    asked = [(row.content.prompt, row.content.answer) for row in rows]
    told = {
        (problem, answer): policy.encode(HINT_TEMPLATE.format(problem=problem, answer=answer))
        for problem, answer in dict.fromkeys(asked)
    }
    return [told[problem_and_answer] for problem_and_answer in asked]


MAX_LOG_RATIO = 20.0


def rlsd(
    view: CreditView, *, mix: float = 0.5, fade: int = 50, clip: float = 0.2
) -> list[Floats] | None:
    """RLSD: a token is trusted by how much more likely the answer, once known, would make it.

        D_t = log pi(o_t | x, c, o_<t) - log pi(o_t | x, o_<t)         c the reference answer, |D|
        <= 20 w_t = (1 - lam) + lam clip(exp(sign(A) D_t), 1 - clip, 1 + clip) lam = mix (1 -
        (iteration - 1) / fade), not below 0

    Teacher and student are the policy that sampled, with the hint in its prompt and without; both
    passes are the trainer's, so that an uninformative hint gives 1. lam = 0, or a problem without a
    reference answer: 1. arXiv:2604.03128. mix = 0.5, fade = 50 and clip = 0.2 are the paper's (by a
    reading note); it syncs its teacher every 10 steps, here it is always the current policy, as in
    the code of SDPG. The wording of the hint (`credit/hindsight.py`) is chosen here.
    """
    policy, reader = view.policy, view.reader
    assert reader is not None
    lam = faded_mix(mix, fade, reader.iteration)
    if lam == 0:
        return None
    with_hint = view.logprobs_with_prompts(hinted_prompts(policy, view.rows))
    found = unit_weights(view.rows)
    for i, row in enumerate(view.rows):
        if row.content.answer:
            found[i] = trust_weights(with_hint[i], view.logprobs[i], row.sign, lam, clip)
    return found


def faded_mix(mix: float, fade: int, iteration: int) -> float:
    """lam: `mix` in the first iteration, falling to 0 over `fade` of them."""
    if not 0 <= mix <= 1 or fade < 1:
        raise PoiseError(f"mix must be 0 to 1 and fade 1 or more: not {mix:g} and {fade}")
    return mix * max(0.0, 1 - (iteration - 1) / fade)


def trust_weights(
    teacher_T: Floats, student_T: Floats, sign: int, lam: float, clip: float
) -> Floats:
    D_T = np.clip(teacher_T.astype(np.float64) - student_T, -MAX_LOG_RATIO, MAX_LOG_RATIO)
    trusted_T = np.clip(np.exp(sign * D_T), 1 - clip, 1 + clip)
    return ((1 - lam) + lam * trusted_T).astype(np.float32)


FEEDBACK_TEMPLATE = "{problem}\n{feedback}"


def serl(
    view: CreditView, *, mix: float = 0.5, fade: int = 50, clip: float = 0.2
) -> list[Floats] | None:
    """SERL: an action is trusted by how much more likely what came of it, once known, would make
    it.

        D_t = log pi(o_t | x, f, o_<t) - log pi(o_t | x, o_<t)         |D| <= 20 w_t = (1 - lam) +
        lam clip(exp(sign(A) D_t), 1 - clip, 1 + clip)     t in the action of a turn w_t = 1
        elsewhere lam = mix (1 - (iteration - 1) / fade), not below 0

    f is what the environment says of the very turn ("immediate feedback", the mode that the
    authors' code has by default): a wrong answer of an episode that went well loses credit, one of
    an episode that went wrong is blamed more. Which tokens are the action, and f, come with the
    rollout (`types.Turn`): the task knows them. A turn without an action, or of which there is
    nothing to say (it was right), has weights of 1; so have rollouts that are no episodes. lam = 0:
    1 everywhere.

    arXiv:2605.19447; mix = 0.5, fade = 50 (updates), clip = 0.2 by the authors' code. Its teacher
    is a copy of the policy that follows every 10 steps, here the policy itself, as in
    `credit/hindsight.py`. The wording of the hindsight is chosen here. Costs a pass for every turn
    that any rollout has, as far as the turn's action.
    """
    policy, reader = view.policy, view.reader
    assert reader is not None
    lam = faded_mix(mix, fade, reader.iteration)
    if lam == 0:
        return None
    found = unit_weights(view.rows)
    for turn in range(max((len(row.content.turns) for row in view.rows), default=0)):
        looked = rows_with_feedback(view.rows, turn)
        rows = [
            truncate_row(view.rows[i], view.rows[i].content.turns[turn].action[1]) for i in looked
        ]
        prompts = [
            FEEDBACK_TEMPLATE.format(
                problem=row.content.prompt, feedback=row.content.turns[turn].feedback
            )
            for row in rows
        ]
        told = {prompt: policy.encode(prompt) for prompt in dict.fromkeys(prompts)}
        teacher = CreditView(rows, reader).logprobs_with_prompts(
            [told[prompt] for prompt in prompts]
        )
        for i, knowing_T in zip(looked, teacher, strict=True):
            row = view.rows[i]
            span = slice(*row.content.turns[turn].action)
            found[i][span] = trust_weights(
                knowing_T[span], view.logprobs[i][span], row.sign, lam, clip
            )
    return found


def rows_with_feedback(rows: Sequence[Row], turn: int) -> list[int]:
    """Rows whose `turn` had an action of which there is something to say."""
    return [
        i
        for i, row in enumerate(rows)
        if len(turns := row.content.turns) > turn
        and turns[turn].feedback
        and turns[turn].action[1] > turns[turn].action[0]
    ]
