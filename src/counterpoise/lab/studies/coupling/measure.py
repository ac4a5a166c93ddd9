"""Fig. 2: which pairs of tokens couple, and what eq. 10 leaves out.

Two looks at one batch. Sampled pairs, as many of equal tokens as of different ones, for the
distributions of <h_j, h_k> (a) and of phi_jk (b). And all pairs (j, k) of `watched` tokens j with
every token k of the batch, for where the coupling |A_k <h_j, h_k> phi_jk| lies: by entropy of both
tokens (c), by confidence, by equal or different token; of the different ones, a rival is one that
could well have stood in j's place, pi_j(o_k) >= 0.05. Low confidence is pi(o) <= 0.5, high entropy
the top fifth of the batch.

    a   most products <h_j, h_k> are positive, and equal tokens are aligned more than different ones
    b   |phi| > 0.01 is more frequent between equal tokens than between different ones
    c   the mean coupling of two tokens of high entropy is above that of any other kind of pair

Replicated: a, b and c hold, with their intervals. Not replicated: one is reversed, with its
interval. Inconclusive otherwise. Beside it: how much of all coupling the pairs carry that the
paper calls primary (equal tokens, both of low confidence), and the share of phi between equal
tokens that the printed eq. 10 lacks (microscope/pairs.py).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from counterpoise.lab.studies.coupling.draw import ENTROPY_BINS, draw
from counterpoise.lab.studies.coupling.judge import judge
from counterpoise.lab.studies.harness import Lab
from counterpoise.lab.studies.study import Study
from counterpoise.microscope.batch_tokens import Snapshot, take_snapshot, token_residuals
from counterpoise.microscope.coupling import decompose
from counterpoise.microscope.masking import is_low_confidence
from counterpoise.microscope.pairs import kernel_rows, pair_coupling
from counterpoise.model.residuals import wide
from counterpoise.seeds import rng_for
from counterpoise.statistics.finding import Record, Records

RIVAL_PROBABILITY = 0.05  # a different token is a rival where j gave it at least this probability
KINDS = ("different", "rival", "equal")
WATCHED_BLOCK = 256  # watched tokens whose rows of the kernel are held at once


def measure(lab: Lab) -> Records:
    rows = lab.rows(lab.sizes["prompts"])
    seen = take_snapshot(lab.policy, rows)
    W = lab.policy.decoder.unembedding.detach()
    rng = rng_for(lab.seed, "pairs")
    records = list(_sample_pairs(seen, W, lab.sizes["pairs"], rng))
    lab.progress("pairs", 0.3)
    records += _kernel_cells(seen, W, lab.sizes["watched"], rng, lab)
    records += _displacement_parts(seen, W)
    return records


def _sample_pairs(
    seen: Snapshot, W: Tensor, count: int, rng: np.random.Generator
) -> Iterator[Record]:
    """`count` pairs of equal tokens and `count` of different ones; j is drawn uniformly."""
    tokens_N = seen.tokens.cpu().numpy()
    places = {v: np.flatnonzero(tokens_N == v) for v in np.unique(tokens_N)}
    repeated = np.flatnonzero([len(places[v]) > 1 for v in tokens_N])
    equal: list[tuple[int, int]] = []
    different: list[tuple[int, int]] = []
    for j in rng.choice(repeated, count):
        k = int(rng.choice(places[tokens_N[j]]))
        while k == j:
            k = int(rng.choice(places[tokens_N[j]]))
        equal.append((int(j), k))
    while len(different) < count:
        j, k = (int(x) for x in rng.integers(len(tokens_N), size=2))
        if tokens_N[j] != tokens_N[k]:
            different.append((j, k))
    confidence_N = seen.logprobs.exp()
    for kind, chosen in (("equal", equal), ("different", different)):
        for part in torch.tensor(chosen, device=W.device).split(max(1, (1 << 22) // len(W))):
            j_n, k_n = part.T
            found = pair_coupling(seen.hidden, W, seen.tokens, j_n, k_n)
            length = seen.hidden.float().norm(dim=1)
            columns = {
                "similarity": found.similarity,
                "cosine": found.similarity / (length[j_n] * length[k_n]),
                "phi": found.phi,
                "printed": found.printed_phi,
                "confidence": torch.maximum(confidence_N[j_n], confidence_N[k_n]),
                "group": seen.groups[j_n],
            }
            for values in zip(*(c.tolist() for c in columns.values()), strict=True):
                record = dict(zip(columns, values, strict=True))
                prompt = str(record.pop("group"))
                if kind == "different":
                    del record["printed"]
                yield {"panel": "pairs", "kind": kind, "prompt": prompt, **record}


def _kernel_cells(
    seen: Snapshot, W: Tensor, watched: int, rng: np.random.Generator, lab: Lab
) -> list[Record]:
    """Sums of |A_k K_jk| by prompt of j, entropy bins of both, equal tokens and confidence."""
    N = len(seen)
    chosen = np.sort(rng.permutation(N)[:watched])
    rank_N = seen.entropies.argsort().argsort()
    bin_N = (rank_N * ENTROPY_BINS) // N
    low_N = is_low_confidence(seen).long()
    P = int(seen.groups.max()) + 1
    shape = (P, ENTROPY_BINS, ENTROPY_BINS, 3, 3)
    strength = torch.zeros(shape, dtype=torch.float64, device=W.device).flatten()
    counted = torch.zeros_like(strength)
    blocks = torch.from_numpy(chosen).to(W.device).split(WATCHED_BLOCK)
    for done, j_n in enumerate(blocks):
        push = (kernel_rows(seen.hidden, W, seen.tokens, j_n) * seen.advantages).abs().double()
        cell = (seen.groups[j_n] * ENTROPY_BINS + bin_N[j_n])[:, None] * ENTROPY_BINS + bin_N
        cell = cell * 3 + _pair_kinds(seen, W, j_n)
        cell = cell * 3 + low_N[j_n, None] + low_N
        other = j_n[:, None] != torch.arange(N, device=W.device)
        strength.index_add_(0, cell[other], push[other])
        counted += torch.bincount(cell[other], minlength=len(counted))
        lab.progress("kernel", 0.3 + 0.6 * (done + 1) / len(blocks))
    sums, counts = strength.view(shape).cpu().numpy(), counted.view(shape).cpu().numpy()
    return [
        {
            "panel": "cells",
            "prompt": str(p),
            "entropy_j": a,
            "entropy_k": b,
            "kind": KINDS[kind],
            "low": low,  # how many of the two are of low confidence
            "pairs": int(counts[p, a, b, kind, low]),
            "strength": float(sums[p, a, b, kind, low]),
        }
        for p, a, b, kind, low in np.argwhere(counts > 0).tolist()
    ]


def _pair_kinds(seen: Snapshot, W: Tensor, j_n: Tensor) -> Tensor:
    """Index into KINDS for each of `j_n` with every token of the batch: [n, N]."""
    r_nV = token_residuals(wide(seen.hidden[j_n]), wide(W), seen.tokens[j_n])
    rival = (
        r_nV[:, seen.tokens] <= -RIVAL_PROBABILITY
    )  # r_j(o_k) = -pi_j(o_k) where the tokens differ
    return torch.where(seen.tokens[j_n, None] == seen.tokens, 2, rival.long())


def _displacement_parts(seen: Snapshot, W: Tensor) -> list[Record]:
    """What remains after summing over k: the parts of each token's displacement."""
    found = decompose(seen.hidden, W, seen.tokens, seen.advantages, seen.groups)
    same = found.parts["same", "same", "positive"] + found.parts["same", "same", "negative"]
    same += found.parts["same", "other", "positive"] + found.parts["same", "other", "negative"]
    sums = {"equal": same, "different": found.from_others - same, "own": found.self_push}
    return [
        {
            "panel": "parts",
            "prompt": str(int(p)),
            "kind": kind,
            "strength": float(values[seen.groups == p].abs().double().sum()),
        }
        for p in seen.groups.unique()
        for kind, values in sums.items()
    ]


STUDY = Study(
    name="coupling",
    title="Which tokens couple",
    shows="Fig. 2",
    claim="Hidden states of different places are mostly aligned, those of equal tokens more; the "
    "output factor phi is far from 0 mainly between equal tokens; their product is largest where "
    "both tokens have high entropy. So coupling is sparse: equal tokens of low confidence.",
    rule="Replicated when most products are positive and larger between equal tokens, |phi| > 0.01 "
    "is more frequent between equal tokens, and two tokens of high entropy couple more than other "
    "pairs, each with its interval; not replicated when one is reversed, with its interval; "
    "otherwise inconclusive.",
    budgets={
        "quick": {"prompts": 16, "pairs": 6000, "watched": 2048},
        "full": {"prompts": 64, "pairs": 20000, "watched": 8192},
    },
    measure=measure,
    judge=judge,
    draw=draw,
)
