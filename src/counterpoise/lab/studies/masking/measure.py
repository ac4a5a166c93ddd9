"""Table 1 and Fig. 3: how removing some tokens from the loss changes the update of another token.

Candidates c are tokens of low confidence, pi(c) <= 0.5, from positive and negative rollouts in
turn. The masked tokens M are at most 16 others: any (random), the same token at high confidence
(same), another token at low confidence (low), the same token at low confidence (both). The masking
effect is defined in microscope/masking.py; Boost Rate is the share of positive effects and Mean
Boost the mean effect. One SGD step of rate 0.1, without clipping, with the denominator unchanged.

The paper does not say from which rollouts M is taken, and the sign of an effect is that of A_k
times the kernel. So each set is drawn three times: whatever the sign ("mixed", the literal
reading), from positive rollouts only, and from negative rollouts only. A fourth panel varies the
share of positive tokens in M from 0 to 1, to see which mixture would give the printed rate.

    layer head   a real update of the unembedding, for every candidate
    layer full   Table 1: a real update of all parameters, for `real` candidates
                 Fig. 3 b, c and the mixture: first order by kernel rows, for `rows` candidates

First-order predictions are compared with real updates on the sets of Table 1, at the paper's rate
and at a hundredth of it.

Replicated: in the mixed column, under both layers, Boost Rate rises from random over same to both,
and the interval of both minus random lies above 0. Not replicated: under both layers that interval
lies below 12 points, half of what the paper prints. Inconclusive otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from counterpoise.lab.studies.harness import Lab
from counterpoise.lab.studies.masking.draw import draw
from counterpoise.lab.studies.masking.judge import COSINE_EDGES, ETA, SMALL_ETA, judge
from counterpoise.lab.studies.study import Study
from counterpoise.microscope.batch_tokens import Snapshot, take_snapshot
from counterpoise.microscope.chosen_gradients import objective_gradient, weighted_sum
from counterpoise.microscope.masking import (
    CONDITIONS,
    draw_indices,
    draw_masked_sets,
    first_order_effect,
    full_update_effects,
    is_low_confidence,
    output_layer_effects,
    tokens_by_source,
)
from counterpoise.microscope.output_layer import output_gradient
from counterpoise.microscope.pairs import gradient_norms, kernel_rows
from counterpoise.microscope.parameter_kernel import parameter_kernel_row
from counterpoise.model.swapped_weights import WeightDirection
from counterpoise.seeds import rng_for
from counterpoise.statistics.finding import Record, Records
from counterpoise.types import Row

SET_SIZE = 16  # about as many as there are equal tokens at low confidence
TOP_COUNTS = (1, 2, 4, 8, 16, 32, 64)
MIXTURE_SIZE = 4  # tokens per set in the mixture panel: 0 to 4 of them positive

SetKey = tuple[str, str, str]  # (panel, condition, source)


@dataclass(frozen=True, slots=True, eq=False)
class _Batch:
    """The batch, its candidates, and their kernel rows."""

    lab: Lab
    rows: list[Row]
    snapshot: Snapshot
    W: Tensor
    candidates: list[int]
    kernel_CN: Tensor  # output layer
    cosine_CN: Tensor


def measure(lab: Lab) -> Records:
    batch = _prepare(lab)
    # Gradients of the whole batch do not depend on the candidate, so they are computed once.
    output_gradient_VD = output_gradient(batch.snapshot, batch.W)
    full_gradient = objective_gradient(lab.policy, batch.rows)
    records: list[Record] = []
    num_candidates = len(batch.candidates)
    for index in range(num_candidates):
        records += lab.measure_part(
            f"candidate {index}",
            partial(_measure_candidate, batch, index, output_gradient_VD, full_gradient),
        )
        lab.progress(f"candidate {index + 1} of {num_candidates}", (index + 1) / num_candidates)
    return records


def _measure_candidate(
    batch: _Batch, index: int, output_gradient_VD: Tensor, full_gradient: WeightDirection
) -> list[Record]:
    lab, candidate = batch.lab, batch.candidates[index]
    sets = {set_key: indices for set_key, indices in _masked_sets(batch, index) if len(indices)}
    table = {set_key: indices for set_key, indices in sets.items() if set_key[0] == "table"}
    effects = output_layer_effects(
        batch.snapshot, batch.W, output_gradient_VD, candidate, list(sets.values()), ETA
    )
    effect_by_set = dict(zip(sets, effects, strict=True))
    records = _records(batch, candidate, sets, effect_by_set, "head", "update")
    records += _predictions(batch, candidate, table, batch.kernel_CN[index], "head")
    # Kernel rows and real updates cost passes of the whole model: only the first candidates.
    if index < lab.sizes["rows"]:
        kernel_row_N = parameter_kernel_row(
            lab.policy, batch.rows, _row_and_position(batch.snapshot, candidate)
        )
        records += _predictions(batch, candidate, sets, kernel_row_N, "full")
    if index < lab.sizes["real"]:
        rates = (ETA, SMALL_ETA) if index < lab.sizes["rows"] else (ETA,)
        records += _real_updates(batch, candidate, table, full_gradient, rates)
    return records


def _prepare(lab: Lab) -> _Batch:
    rows = lab.rows(lab.sizes["prompts"])
    snapshot = take_snapshot(lab.policy, rows)
    W = lab.policy.decoder.unembedding.detach()
    candidates = _choose_candidates(
        snapshot, lab.sizes["candidates"], rng_for(lab.seed, "candidates")
    )
    candidate_indices = torch.tensor(candidates, dtype=torch.long, device=W.device)
    kernel_CN = kernel_rows(
        snapshot.hidden, W, snapshot.tokens, candidate_indices, softcap=snapshot.softcap
    )
    norm_N = gradient_norms(snapshot.hidden, W, snapshot.tokens, softcap=snapshot.softcap)
    return _Batch(
        lab=lab,
        rows=rows,
        snapshot=snapshot,
        W=W,
        candidates=candidates,
        kernel_CN=kernel_CN,
        cosine_CN=kernel_CN / (norm_N[candidate_indices, None] * norm_N),
    )


def _choose_candidates(snapshot: Snapshot, limit: int, rng: np.random.Generator) -> list[int]:
    """Tokens of low confidence in random order, from positive and negative rollouts in turn."""
    is_low = is_low_confidence(snapshot)
    candidates_by_sign = [
        rng.permutation(
            (is_low & tokens_by_source(snapshot)[sign]).nonzero().squeeze(1).cpu().numpy()
        ).tolist()
        for sign in ("positive", "negative")
    ]
    # Alternate the signs, so that any number of candidates is balanced.
    pair_count = min(map(len, candidates_by_sign))
    alternating = [
        candidate
        for pair in zip(
            *(sign_candidates[:pair_count] for sign_candidates in candidates_by_sign), strict=True
        )
        for candidate in pair
    ]
    unpaired = candidates_by_sign[0][pair_count:] + candidates_by_sign[1][pair_count:]
    return (alternating + unpaired)[:limit]


def _masked_sets(batch: _Batch, index: int) -> Iterator[tuple[SetKey, Tensor]]:
    snapshot, candidate = batch.snapshot, batch.candidates[index]
    # Seeded by the candidate: a resumed study draws the same sets.
    rng = rng_for(batch.lab.seed, "masking", index=candidate)
    for (condition, source), indices in draw_masked_sets(
        snapshot, candidate, SET_SIZE, rng
    ).items():
        yield ("table", condition, source), indices

    cosine_N, sources = batch.cosine_CN[index], tokens_by_source(snapshot)
    is_other = torch.ones_like(sources["mixed"])
    is_other[candidate] = False
    for source, members in sources.items():
        for low, high in pairwise(COSINE_EDGES):
            pool = is_other & members & (cosine_N > low) & (cosine_N <= high)
            yield ("strength", f"{low}", source), draw_indices(pool, SET_SIZE, rng)
        ranked = torch.where(is_other & members, cosine_N, -torch.inf).argsort(descending=True)
        member_count = int((is_other & members).sum())
        for set_size in TOP_COUNTS:
            yield ("top", f"{set_size}", source), ranked[: min(set_size, member_count)]

    pool = is_other & is_low_confidence(snapshot) & (snapshot.tokens == snapshot.tokens[candidate])
    sign_pools = [pool & sources["positive"], pool & sources["negative"]]
    if all(int(sign_pool.sum()) >= MIXTURE_SIZE for sign_pool in sign_pools):
        for num_positive in range(MIXTURE_SIZE + 1):
            chosen_indices = [
                draw_indices(sign_pool, set_size, rng)
                for sign_pool, set_size in zip(
                    sign_pools, (num_positive, MIXTURE_SIZE - num_positive), strict=True
                )
            ]
            yield ("mixture", f"{num_positive / MIXTURE_SIZE}", "mixed"), torch.cat(chosen_indices)


def _real_updates(
    batch: _Batch,
    candidate: int,
    table: dict[SetKey, Tensor],
    full_gradient: WeightDirection,
    rates: tuple[float, ...],
) -> list[Record]:
    """Effects by real updates, one condition at a time: each gradient is as large as the model."""
    policy, rows = batch.lab.policy, batch.rows
    candidate_place = _row_and_position(batch.snapshot, candidate)
    records: list[Record] = []
    for condition in CONDITIONS:
        sets = {set_key: indices for set_key, indices in table.items() if set_key[1] == condition}
        masked_gradients: dict[str, WeightDirection] = {}
        one_sided_sets = {
            source: indices for (_, _, source), indices in sets.items() if source != "mixed"
        }
        for source, indices in one_sided_sets.items():
            masked_gradients[source] = objective_gradient(policy, rows, indices)
        if (mixed_set := sets.get(("table", condition, "mixed"))) is not None:
            one_sided_indices = {
                index for indices in one_sided_sets.values() for index in indices.tolist()
            }
            # In a small pool the one-sided sets make up the mixed one, and gradients just add.
            if one_sided_indices == set(mixed_set.tolist()):
                masked_gradients["mixed"] = weighted_sum(
                    (1.0, masked_gradients[source]) for source in one_sided_sets
                )
            else:
                masked_gradients["mixed"] = objective_gradient(policy, rows, mixed_set)
        for eta in rates:
            effects_by_source = full_update_effects(
                policy, rows, candidate_place, full_gradient, masked_gradients, eta
            )
            effects = {set_key: effects_by_source[set_key[2]] for set_key in sets}
            records += _records(batch, candidate, sets, effects, "full", "update", eta)
    return records


def _predictions(
    batch: _Batch, candidate: int, sets: dict[SetKey, Tensor], row_N: Tensor, layer: str
) -> list[Record]:
    A_N = batch.snapshot.advantages
    predicted_effects = {
        set_key: first_order_effect(row_N, A_N, indices, ETA) for set_key, indices in sets.items()
    }
    return _records(batch, candidate, sets, predicted_effects, layer, "first order")


def _records(
    batch: _Batch,
    candidate: int,
    sets: dict[SetKey, Tensor],
    effects: dict[SetKey, float],
    layer: str,
    how: str,
    eta: float = ETA,
) -> list[Record]:
    snapshot = batch.snapshot
    return [
        {
            "panel": panel,
            "condition": condition,
            "source": source,
            "layer": layer,
            "how": how,
            "rate": eta,
            "candidate": candidate,
            "sign": "positive" if snapshot.advantages[candidate] > 0 else "negative",
            "prompt": batch.rows[int(snapshot.rows[candidate])].group,
            "tokens": len(sets[set_key]),
            "positive_tokens": int((snapshot.advantages[sets[set_key]] > 0).sum()),
            "effect": effects[set_key],
        }
        for set_key in sets
        for panel, condition, source in (set_key,)
    ]


def _row_and_position(snapshot: Snapshot, candidate: int) -> tuple[int, int]:
    return int(snapshot.rows[candidate]), int(snapshot.positions[candidate])


STUDY = Study(
    name="masking",
    title="Which tokens move a token",
    shows="Table 1, Fig. 3",
    claim="Removing tokens that equal the candidate and are of low confidence from the loss lowers "
    "it in 75 % of cases, against 50 % for random tokens; equal tokens alone reach 66 %, low "
    "confidence alone 43 %; the effect grows with coupling and with the number of tokens.",
    rule="Replicated when, for masked tokens drawn whatever their sign and under both layers, "
    "Boost Rate rises from random over same to both and the interval of both minus random lies "
    "above 0; not replicated when under both layers that interval lies below 12 points; otherwise "
    "inconclusive.",
    budgets={
        "quick": {"prompts": 16, "candidates": 400, "real": 24, "rows": 12},
        "full": {"prompts": 64, "candidates": 2048, "real": 512, "rows": 128},
    },
    measure=measure,
    judge=judge,
    draw=draw,
)
