"""Negative token filtering: only tokens of a wrong rollout that may be its mistake are punished.

    w_t = 0   for tokens of wrong rollouts that count as supported,    else 1

    support=probability    the share `keep` of the rollout's tokens that have the lowest pi(o_t) is
                           not supported; all others are: the policy itself finds them likely
    support=group          tokens that occur in a right rollout of the group are supported

A wrong rollout consists mostly of tokens that right rollouts have as well; punishing them is a
false penalty. In a group, right rollouts push the same tokens back up. The paper says that this is
what a group is for, and that the penalty can be filtered out instead, which also works with one
rollout per prompt. That rivals cancellation as an explanation of the same facts. arXiv:2606.17250

How support is measured was not found in the paper's abstract. A public reproduction keeps the tenth
of lowest probability, with the loss still divided by all tokens: that is the default, with the
trainer's probability at the sampling temperature; at least one token is kept, ties by position.
`support=group` takes the wording literally, needs no policy, and leaves a group without right
rollouts as it is. Right and wrong are the signs of A; right rollouts keep w = 1.
"""

from __future__ import annotations

import numpy as np

from counterpoise.credit.view import CreditView, unit_weights
from counterpoise.errors import PoiseError
from counterpoise.types import Floats

SUPPORT_MEASURES = ("probability", "group")


def weights(view: CreditView, *, keep: float = 0.1, support: str = "probability") -> list[Floats]:
    """0 for the supported tokens of wrong rollouts, 1 for all others."""
    if support not in SUPPORT_MEASURES:
        raise PoiseError(
            f"negative_filter: support is one of {', '.join(SUPPORT_MEASURES)}, not '{support}'"
        )
    if not 0 < keep <= 1:
        raise PoiseError(
            f"negative_filter: keep {keep:g} punishes no token: choose above 0 and at most 1"
        )
    row_weights = unit_weights(view.rows)
    wrong_rows = [i for i, row in enumerate(view.rows) if row.sign < 0]
    if support == "group":
        _filter_by_group(view, row_weights)
    elif wrong_rows:
        for i in wrong_rows:
            logprobs_T = view.logprobs[i]
            num_kept = max(1, int(keep * len(logprobs_T)))
            # A stable sort breaks ties by position: the choice does not depend on the platform.
            row_weights[i][np.argsort(logprobs_T, kind="stable")[num_kept:]] = 0
    return row_weights


def _filter_by_group(view: CreditView, row_weights: list[Floats]) -> None:
    tokens = view.tokens
    for group in view.groups:
        in_right_rollouts = [tokens[i] for i in group if view.rows[i].sign > 0]
        if not in_right_rollouts:
            continue
        supported = np.unique(np.concatenate(in_right_rollouts))
        for i in group:
            if view.rows[i].sign < 0:
                row_weights[i][np.isin(tokens[i], supported)] = 0
