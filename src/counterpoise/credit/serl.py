"""SERL: an action is trusted by how much more likely what came of it, once known, would make it.

    D_t = log pi(o_t | x, f, o_<t) - log pi(o_t | x, o_<t)         |D| <= 20
    w_t = (1 - lam) + lam clip(exp(sign(A) D_t), 1 - clip, 1 + clip)     t in the action of a turn
    w_t = 1                                                              elsewhere
    lam = mix (1 - (iteration - 1) / fade), not below 0

f is what the environment says of the very turn ("immediate feedback", the mode that the authors'
code has by default): a wrong answer of an episode that went well loses credit, one of an episode
that went wrong is blamed more. Which tokens are the action, and f, come with the rollout
(`types.Turn`): the task knows them. A turn without an action, or of which there is nothing to say
(it was right), has weights of 1; so have rollouts that are no episodes. lam = 0: 1 everywhere.

arXiv:2605.19447; mix = 0.5, fade = 50 (updates), clip = 0.2 by the authors' code. Its teacher is a
copy of the policy that follows every 10 steps, here the policy itself, as in `credit/rlsd.py`. The
wording of the hindsight is chosen here. Costs a pass for every turn that any rollout has, as far as
the turn's action.
"""

from __future__ import annotations

from collections.abc import Sequence

from counterpoise.credit.embedding_saliency import cut
from counterpoise.credit.rlsd import faded, weigh
from counterpoise.credit.view import View, ones
from counterpoise.types import Floats, Row

HINDSIGHT = "{problem}\n{feedback}"


def weights(
    view: View, *, mix: float = 0.5, fade: int = 50, clip: float = 0.2
) -> list[Floats] | None:
    policy, reader = view.policy, view.reader
    assert reader is not None
    lam = faded(mix, fade, reader.iteration)
    if lam == 0:
        return None
    found = ones(view.rows)
    for turn in range(max((len(row.content.turns) for row in view.rows), default=0)):
        looked = in_hindsight(view.rows, turn)
        rows = [cut(view.rows[i], view.rows[i].content.turns[turn].action[1]) for i in looked]
        prompts = [
            HINDSIGHT.format(problem=row.content.prompt, feedback=row.content.turns[turn].feedback)
            for row in rows
        ]
        told = {prompt: policy.encode(prompt) for prompt in dict.fromkeys(prompts)}
        teacher = View(rows, reader).logprobs_after([told[prompt] for prompt in prompts])
        for i, knowing_T in zip(looked, teacher, strict=True):
            row = view.rows[i]
            span = slice(*row.content.turns[turn].action)
            found[i][span] = weigh(knowing_T[span], view.logprobs[i][span], row.sign, lam, clip)
    return found


def in_hindsight(rows: Sequence[Row], turn: int) -> list[int]:
    """Rows whose `turn` had an action of which there is something to say."""
    return [
        i
        for i, row in enumerate(rows)
        if len(turns := row.content.turns) > turn
        and turns[turn].feedback
        and turns[turn].action[1] > turns[turn].action[0]
    ]
