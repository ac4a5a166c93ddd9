"""The hypothesis itself: what right and wrong rollouts share cancels, what is specific rises.

The tokens of a group's rollouts are counted by node (`prefix_tree.py`): a node is *shared* if right
and wrong rollouts pass through it, and *specific to success* if only right ones do. Judged are
nodes with p(o) <= 0.5, since a token that is nearly certain has nowhere to rise. One AdamW step
from the loaded weights, on the same rows, in three arms (the clip of gradients at
update.max_grad_norm hardly changes an AdamW step, and an SGD step only where it is reached):

    joint          GRPO advantages
    positive_only  negative advantages set to 0, the rows kept: nothing else changes
    shuffled       advantages permuted within each group: right and wrong mean nothing to it

    Delta          log p(o) after the step - before, of every node
    D(arm)         mean Delta of specific nodes - mean Delta of shared ones, within bins

Two ways to bin, because specific nodes are rarer and less likely than shared ones:

    by token       p(o) in five bins x how often the token occurs in the whole batch, in three
    by node        p(o) in five bins x how many rollouts of the group pass through the node

and a third number that needs no two kinds of nodes, the sign mix at fixed frequency: the slope of
Delta on (right - wrong) / (right + wrong) of the rollouts through a node, among nodes that at
least two rollouts pass, within the bins by node.

Three claims, each judged against the mean rise s of specific nodes in the joint arm:

    1  specific nodes rise more         D(joint) above 0 in both binnings
    2  wrong rollouts are the cause     D(joint) - D(positive_only) above 0 in both binnings
    3  the sign mix decides             the slope above 0

Replicated: the whole 95 % interval (over prompts) lies above 0. Not replicated: it lies below s/4.
Inconclusive otherwise, and where both hold. A probe of the embedded model with 65 prompts was known
when this rule was written (joint: shared +.001 [-.029, +.032], specific +.124 [+.081, +.174];
positive_only: +.081 and +.165); no other model had been looked at.

Reported beside it: the same after an SGD step; the push that the output layer receives from right
and from wrong rollouts (microscope/coupling.py), whose sum is what cancels; and the Monte Carlo
value of shared and specific tokens of first rollouts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from counterpoise.lab.studies.fixed_batch import FixedBatch
from counterpoise.lab.studies.harness import Lab
from counterpoise.lab.studies.partial_results import measure_batches
from counterpoise.lab.studies.shared.draw import draw
from counterpoise.lab.studies.shared.judge import ARMS, judge
from counterpoise.lab.studies.shared.prefix_tree import find_nodes
from counterpoise.lab.studies.study import Study
from counterpoise.lab.studies.token_values import VALUE_SIZES, TokenValueStore
from counterpoise.lab.studies.value.measure import shuffle_row_advantages
from counterpoise.microscope.batch_tokens import Snapshot, take_snapshot
from counterpoise.microscope.coupling import decompose
from counterpoise.microscope.polarity import without_negative_advantages
from counterpoise.statistics.finding import Record, Records
from counterpoise.types import Row

MAX_PROBABILITY = 0.5


def measure(lab: Lab) -> Records:
    displacements = measure_batches(lab, _measure_batch, "single updates, ", share=0.3)
    return [*displacements, *_value_records(lab)]


def _measure_batch(lab: Lab, batch: int) -> list[Record]:
    rows = lab.rows(lab.sizes["prompts"], batch=batch)
    snapshot_before = take_snapshot(lab.policy, rows)
    logprob_N = snapshot_before.logprobs.double().cpu().numpy()
    nodes, nodes_of_rows = find_nodes(rows)
    # The tokens of a node are alike in everything below, so its first one stands for all.
    _, first_token_N = np.unique(np.concatenate(nodes_of_rows), return_index=True)
    group_N = snapshot_before.groups.tolist()
    delta_by_arm = _displacements(lab, rows, snapshot_before)
    push_right_N, push_wrong_N = _pushes_by_sign(lab, snapshot_before)
    token_counts = Counter(snapshot_before.tokens.tolist())
    return [
        {
            "panel": "nodes",
            "prompt": f"{batch}:{group_N[token_index]}",
            "p": float(np.exp(logprob_N[token_index])),
            "right": node.num_right,
            "wrong": node.num_wrong,
            "in_batch": token_counts[node.token],
            "push_right": float(push_right_N[token_index]),
            "push_wrong": float(push_wrong_N[token_index]),
            **{arm: float(delta_N[token_index]) for arm, delta_N in delta_by_arm.items()},
        }
        for node, token_index in zip(nodes, first_token_N.tolist(), strict=True)
        if logprob_N[token_index] <= np.log(MAX_PROBABILITY)
    ]


def _displacements(
    lab: Lab, rows: Sequence[Row], snapshot_before: Snapshot
) -> dict[str, NDArray[np.float64]]:
    """Delta of every token [N] by "optimizer arm", each from the same weights."""
    trained_rows = {
        "joint": rows,
        "positive_only": without_negative_advantages(rows),
        "shuffled": shuffle_row_advantages(rows, lab.seed),
    }
    delta_by_arm = {}
    for optimizer, lr in lab.learning_rates.items():
        for arm in ARMS:
            with lab.unchanged():
                lab.update(trained_rows[arm], optimizer=optimizer, lr=lr)
                snapshot_after = take_snapshot(lab.policy, rows)
            delta_N = snapshot_after.logprobs.double() - snapshot_before.logprobs.double()
            delta_by_arm[f"{optimizer} {arm}"] = delta_N.cpu().numpy()
    return delta_by_arm


def _pushes_by_sign(
    lab: Lab, snapshot: Snapshot
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """What right and what wrong rollouts do to each token through the output layer: [N] each.

    A token's push on itself counts with the sign of its own rollout, so that all rollouts through a
    node are treated alike.
    """
    W = lab.policy.decoder.unembedding.detach()
    coupling = decompose(
        snapshot.hidden,
        W,
        snapshot.tokens,
        snapshot.advantages,
        snapshot.groups,
        softcap=snapshot.softcap,
    )
    is_right_N = (snapshot.advantages > 0).cpu().numpy()
    self_push_N = coupling.self_push.double().cpu().numpy()
    pushes = {"positive": self_push_N * is_right_N, "negative": self_push_N * ~is_right_N}
    for (_, _, sign), part_N in coupling.parts.items():
        pushes[sign] = pushes[sign] + part_N.double().cpu().numpy()
    return pushes["positive"], pushes["negative"]


def _value_records(lab: Lab) -> list[Record]:
    """Monte Carlo values of the judged tokens in first rollouts that are right."""
    batch = FixedBatch(lab)
    nodes, nodes_of_rows = find_nodes(batch.rows)
    candidates = [
        candidate
        for candidate in batch.candidates()
        if batch.rows[candidate.row].sign > 0 and candidate.logprob <= np.log(MAX_PROBABILITY)
    ]
    value_records = TokenValueStore(lab, batch).value_records(candidates)
    candidate_nodes = [
        nodes[nodes_of_rows[candidate.row][candidate.position]] for candidate in candidates
    ]
    return [
        {
            "panel": "value",
            "prompt": record["prompt"],
            "p": record["p"],
            "right": node.num_right,
            "wrong": node.num_wrong,
            "value": record["value"],
        }
        for node, record in zip(candidate_nodes, value_records, strict=True)
    ]


STUDY = Study(
    name="shared",
    title="What right and wrong rollouts share cancels",
    shows="Sec. 3",
    claim="Tokens that successful and failed rollouts share receive opposing signals that cancel; "
    "what is specific to success survives.",
    rule="Three claims after one AdamW step, on tokens with p <= 0.5. Specific tokens rise more "
    "than shared ones; failed rollouts are the cause (the difference is larger than without their "
    "advantages); at fixed frequency the mix of signs decides. All among tokens of like "
    "probability and frequency, counted in the batch and at the node. Replicated when the whole "
    "interval lies above 0; not replicated when it lies below a quarter of the specific tokens' "
    "mean rise; otherwise inconclusive.",
    budgets={
        "quick": {"batches": 1, **VALUE_SIZES["quick"]},
        "full": {"batches": 4, **VALUE_SIZES["full"]},
    },
    measure=measure,
    judge=judge,
    draw=draw,
)
