"""The masking effect: what the tokens M of the loss did to one candidate token c (Table 1, Fig. 3).

    effect_M(c) = log pi(c) after the normal update - log pi(c) after the update without M

M is removed from the numerator of eq. 2; its denominator N stays, so that the other tokens push
exactly as before. The update is plain SGD: no momentum, no clipping. To first order

    effect_M(c) = (eta / N) sum_{k in M} A_k K_ck

which shows what the paper leaves unsaid: the sign of an effect is the sign of A_k times that of
K_ck, so a Boost Rate means nothing before one knows from which rollouts M was taken.

Three ways to the same number:
    output_effects   a real update of the unembedding alone; exact, and no forward pass at all
    full_effects     a real update of all parameters
    predicted        the first-order sum, from a kernel row of either kind
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from counterpoise.microscope.batch_tokens import Snapshot, token_residuals
from counterpoise.microscope.chosen_gradients import logprob_after_change, weighted_sum
from counterpoise.model.load import Policy
from counterpoise.model.residuals import wide
from counterpoise.model.swapped_weights import Direction
from counterpoise.types import Row

LOW_CONFIDENCE = 0.5  # a token is of low confidence when pi(o) <= LOW
CONDITIONS = ("random", "same", "low", "both")
SOURCES = ("mixed", "positive", "negative")

# -- which tokens are masked ----------------------------------------------------------------------


def is_low_confidence(snapshot: Snapshot, threshold: float = LOW_CONFIDENCE) -> Tensor:
    """pi(o) <= at_most: [N] of bool."""
    return snapshot.logprobs.exp() <= threshold


def draw_masked_sets(
    snapshot: Snapshot,
    candidate: int,
    size: int,
    rng: np.random.Generator,
    threshold: float = LOW_CONFIDENCE,
) -> dict[tuple[str, str], Tensor]:
    """By (condition, source), at most `size` places of the flat batch.

    random   any token        same   the candidate's token, of high confidence
    both     the candidate's token, of low confidence      low   of low confidence, another token

    The source is the rollouts they are drawn from: "positive", "negative", or "mixed" for all.
    The candidate is in no set. A set is smaller when the batch holds no more such tokens.
    """
    low, same = (
        is_low_confidence(snapshot, threshold),
        snapshot.tokens == snapshot.tokens[candidate],
    )
    other = torch.ones_like(low)
    other[candidate] = False
    pools = {"random": other, "same": same & ~low, "low": low & ~same, "both": same & low}
    return {
        (name, source): draw_indices(pools[name] & other & members, size, rng)
        for name in CONDITIONS
        for source, members in tokens_by_source(snapshot).items()
    }


def tokens_by_source(snapshot: Snapshot) -> dict[str, Tensor]:
    """Which tokens [N] come from which rollouts, by the sign of their advantage."""
    A = snapshot.advantages
    return {"mixed": A != 0, "positive": A > 0, "negative": A < 0}


def draw_indices(pool: Tensor, size: int, rng: np.random.Generator) -> Tensor:
    """At most `size` of the places where `pool` [N] is True, without replacement."""
    places = pool.nonzero().squeeze(1).cpu().numpy()
    drawn = np.sort(rng.permutation(places)[:size])
    return torch.from_numpy(drawn).to(pool.device)


# -- what masking them does -----------------------------------------------------------------------


@torch.no_grad()
def output_layer_effects(
    snapshot: Snapshot,
    unembedding: Tensor,
    gradient: Tensor,
    candidate: int,
    sets: Sequence[Tensor],
    eta: float,
) -> list[float]:
    """Of a real step of the unembedding; `gradient` is `output_gradient` of the whole batch.

    logits = (W + eta G) h_c,      without M: - (eta / N) sum_{k in M} A_k <h_k, h_c> r_k
    """
    W = wide(unembedding)
    h, o = wide(snapshot.hidden[candidate]), int(snapshot.tokens[candidate])
    normal_V = ((W + eta * gradient) @ h).double()  # rounded once, the same for every set
    after = torch.log_softmax(normal_V, dim=0)[o]
    effects = []
    for places in sets:
        H = wide(snapshot.hidden[places])
        pull_M = eta / len(snapshot) * snapshot.advantages[places].to(H.dtype) * (H @ h)
        masked_V = normal_V - (pull_M @ token_residuals(H, W, snapshot.tokens[places])).double()
        effects.append(float(after - torch.log_softmax(masked_V, dim=0)[o]))
    return effects


def full_update_effects(
    policy: Policy,
    rows: Sequence[Row],
    candidate: tuple[int, int],
    normal: Direction,
    masked: Mapping[str, Direction],
    eta: float,
    *,
    temperature: float = 1.0,
) -> dict[str, float]:
    """Of a real step of all parameters; directions are `objective.gradient` of the batch and of M.

    Example:
        normal = gradient(policy, rows)
        full_effects(policy, rows, (row, position), normal,
                     {"both": gradient(policy, rows, sets["both"])}, eta=0.1)
    """
    row, position = rows[candidate[0]], candidate[1]

    def after(terms: list[tuple[float, Direction]]) -> float:
        return logprob_after_change(
            policy, row, position, weighted_sum(terms), temperature=temperature
        )

    whole = after([(eta, normal)])
    return {name: whole - after([(eta, normal), (-eta, part)]) for name, part in masked.items()}


def first_order_effect(
    kernel_N: Tensor, advantages_N: Tensor, indices: Tensor, eta: float
) -> float:
    """(eta / N) sum_{k in M} A_k K_ck, from the candidate's row K_c of either kernel."""
    pushes = advantages_N[indices].double() * kernel_N[indices].double()
    return float(eta / len(kernel_N) * pushes.sum())
