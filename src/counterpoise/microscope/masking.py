"""The masking effect: what a set M of loss tokens does to one candidate token c (Table 1, Fig. 3).

    effect_M(c) = log pi(c) after the normal update - log pi(c) after the update without M

M is removed from the numerator of eq. 2; the denominator N stays, so that the other tokens push
exactly as before. The update is plain SGD, without momentum or clipping. To first order

    effect_M(c) = (eta / N) sum_{k in M} A_k K_ck

which shows what the paper does not say: the sign of an effect is the sign of A_k times that of
K_ck, so a Boost Rate can only be read together with the rollouts that M was taken from.

Three ways to compute the same number:
    output_layer_effects   a real update of the unembedding alone; exact, without a forward pass
    full_update_effects    a real update of all parameters
    first_order_effect     the first-order sum, from a kernel row of either kind
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from counterpoise.microscope.batch_tokens import Snapshot, token_residuals
from counterpoise.microscope.chosen_gradients import logprob_after_change, weighted_sum
from counterpoise.model.head import cap_logits
from counterpoise.model.load import Policy
from counterpoise.model.residuals import wide
from counterpoise.model.swapped_weights import WeightDirection
from counterpoise.types import Row

LOW_CONFIDENCE = 0.5  # a token has low confidence when pi(o) is at most this
CONDITIONS = ("random", "same", "low", "both")
SOURCES = ("mixed", "positive", "negative")

# -- sets of tokens to mask ------------------------------------------------------------------------


def is_low_confidence(snapshot: Snapshot, threshold: float = LOW_CONFIDENCE) -> Tensor:
    """True where pi(o) <= threshold: [N]."""
    return snapshot.logprobs.exp() <= threshold


def draw_masked_sets(
    snapshot: Snapshot,
    candidate_index: int,
    size: int,
    rng: np.random.Generator,
    threshold: float = LOW_CONFIDENCE,
) -> dict[tuple[str, str], Tensor]:
    """Sets of at most `size` token indices, by (condition, source).

    random   any token
    same     the candidate's token, at high confidence
    low      another token, at low confidence
    both     the candidate's token, at low confidence

    The source names the rollouts a set is drawn from: "positive", "negative", or "mixed" for both.
    Tokens with A = 0 are in no set, nor is the candidate, which is given by its index among the N
    tokens. A set is smaller when the batch has fewer such tokens.
    """
    is_low = is_low_confidence(snapshot, threshold)
    is_same_token = snapshot.tokens == snapshot.tokens[candidate_index]
    is_eligible = torch.ones_like(is_low)
    is_eligible[candidate_index] = False
    pools = {
        "random": is_eligible,
        "same": is_same_token & ~is_low,
        "low": is_low & ~is_same_token,
        "both": is_same_token & is_low,
    }
    return {
        (name, source): draw_indices(pools[name] & is_eligible & members, size, rng)
        for name in CONDITIONS
        for source, members in tokens_by_source(snapshot).items()
    }


def tokens_by_source(snapshot: Snapshot) -> dict[str, Tensor]:
    """Masks [N] of the tokens of positive, negative and all rollouts with an advantage."""
    A_N = snapshot.advantages
    return {"mixed": A_N != 0, "positive": A_N > 0, "negative": A_N < 0}


def draw_indices(pool: Tensor, size: int, rng: np.random.Generator) -> Tensor:
    """At most `size` of the indices where `pool` [N] is True, drawn without replacement."""
    eligible = pool.nonzero().squeeze(1).cpu().numpy()
    sample = np.sort(rng.permutation(eligible)[:size])
    return torch.from_numpy(sample).to(pool.device)


# -- effects of masking ----------------------------------------------------------------------------


@torch.no_grad()
def output_layer_effects(
    snapshot: Snapshot,
    unembedding: Tensor,
    gradient: Tensor,
    candidate_index: int,
    sets: Sequence[Tensor],
    eta: float,
) -> list[float]:
    """The effect of each set under a real step of the unembedding alone.

    `gradient` is `output_gradient` of the whole batch.

    logits = (W + eta G) h_c,      without M: - (eta / N) sum_{k in M} A_k <h_k, h_c> r_k

    before the soft cap, if the model has one.
    """
    W = wide(unembedding)
    candidate_hidden = wide(snapshot.hidden[candidate_index])
    candidate_token = int(snapshot.tokens[candidate_index])

    def logprob(logits_V: Tensor) -> Tensor:
        return torch.log_softmax(cap_logits(logits_V, snapshot.softcap), dim=0)[candidate_token]

    # In float64 from here on, because an effect is a small difference of two log-probabilities.
    # The product is rounded once, in the same way for every set.
    normal_V = ((W + eta * gradient) @ candidate_hidden).double()
    normal_logprob = logprob(normal_V)
    effects = []
    for indices in sets:
        masked_hidden = wide(snapshot.hidden[indices])
        pull_M = (
            eta
            / len(snapshot)
            * snapshot.advantages[indices].to(masked_hidden.dtype)
            * (masked_hidden @ candidate_hidden)
        )
        masked_residuals = token_residuals(
            masked_hidden, W, snapshot.tokens[indices], snapshot.softcap
        )
        masked_V = normal_V - (pull_M @ masked_residuals).double()
        effects.append(float(normal_logprob - logprob(masked_V)))
    return effects


def full_update_effects(
    policy: Policy,
    rows: Sequence[Row],
    candidate: tuple[int, int],
    normal: WeightDirection,
    masked: Mapping[str, WeightDirection],
    eta: float,
    *,
    temperature: float = 1.0,
) -> dict[str, float]:
    """The effect of each set on the token `candidate` (row, position), all parameters moving.

    `normal` and `masked` are `objective_gradient` of the whole batch and of each set.

    Example:
        normal = objective_gradient(policy, rows)
        masked = {"both": objective_gradient(policy, rows, sets["both"])}
        full_update_effects(policy, rows, (row, position), normal, masked, eta=0.1)
    """
    row_index, position = candidate

    def after(changes: list[tuple[float, WeightDirection]]) -> float:
        return logprob_after_change(
            policy, rows[row_index], position, weighted_sum(changes), temperature=temperature
        )

    normal_logprob = after([(eta, normal)])
    return {
        name: normal_logprob - after([(eta, normal), (-eta, masked_direction)])
        for name, masked_direction in masked.items()
    }


def first_order_effect(
    kernel_N: Tensor, advantages_N: Tensor, indices: Tensor, eta: float
) -> float:
    """(eta / N) sum_{k in M} A_k K_ck, from the candidate's row K_c of either kernel."""
    pushes = advantages_N[indices].double() * kernel_N[indices].double()
    return float(eta / len(kernel_N) * pushes.sum())
