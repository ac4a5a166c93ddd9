"""Fig. 2: which pairs of tokens couple, and what eq. 10 leaves out.

One batch is measured in two ways. Sampled pairs, equal numbers of equal and of different tokens,
give the distributions of <h_j, h_k> (a) and of phi_jk (b). All pairs (j, k) of `watched` tokens j
with every token k of the batch show where the coupling |A_k <h_j, h_k> phi_jk| is: by entropy of
both tokens (c), by confidence, and by equal or different token. A different token is a rival if it
was a likely alternative to j's token, pi_j(o_k) >= 0.05. Low confidence means pi(o) <= 0.5, high
entropy means the top fifth of the batch.

    a   most products <h_j, h_k> are positive, and equal tokens are aligned more than different ones
    b   |phi| > 0.01 is more frequent between equal tokens than between different ones
    c   the mean coupling of two tokens of high entropy is above that of any other kind of pair

Replicated: a, b and c hold, with their intervals. Not replicated: one is reversed, with its
interval. Inconclusive otherwise. Also reported: the share of all coupling in the pairs that the
paper calls primary (equal tokens, both of low confidence), and the share of phi between equal
tokens that the printed eq. 10 omits (microscope/pairs.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from counterpoise.lab.studies.coupling.draw import ENTROPY_BINS, draw
from counterpoise.lab.studies.coupling.judge import judge
from counterpoise.lab.studies.harness import Lab
from counterpoise.lab.studies.study import Study
from counterpoise.microscope.batch_tokens import Snapshot, take_snapshot
from counterpoise.microscope.coupling import decompose
from counterpoise.microscope.masking import is_low_confidence
from counterpoise.microscope.pairs import kernel_rows, pair_coupling
from counterpoise.model.head import cap_logits
from counterpoise.model.residuals import wide
from counterpoise.seeds import rng_for
from counterpoise.statistics.finding import Record, Records

RIVAL_PROBABILITY = 0.05  # a different token is a rival if j's distribution gives it at least this
FIRST_HIGH_BIN = 8  # of ENTROPY_BINS: bins from here on are the top fifth
KINDS = ("different", "rival", "equal")  # in the order of the indices of _pair_kinds
WATCHED_BLOCK = 256  # watched tokens whose kernel rows are in memory at once


def measure(lab: Lab) -> Records:
    rows = lab.rows(lab.sizes["prompts"])
    snapshot = take_snapshot(lab.policy, rows)
    W = lab.policy.decoder.unembedding.detach()
    rng = rng_for(lab.seed, "pairs")
    records = list(_sample_pairs(snapshot, W, lab.sizes["pairs"], rng))
    lab.progress("pairs", 0.3)
    records += _kernel_cells(snapshot, W, lab.sizes["watched"], rng, lab)
    records += _displacement_parts(snapshot, W)
    return records


def _sample_pairs(
    snapshot: Snapshot, W: Tensor, count: int, rng: np.random.Generator
) -> Iterator[Record]:
    """`count` pairs of equal tokens and `count` of different ones; j is drawn uniformly."""
    tokens_N = snapshot.tokens.cpu().numpy()
    indices_by_token = {token: np.flatnonzero(tokens_N == token) for token in np.unique(tokens_N)}
    repeated = np.flatnonzero([len(indices_by_token[token]) > 1 for token in tokens_N])
    equal_pairs: list[tuple[int, int]] = []
    different_pairs: list[tuple[int, int]] = []
    # j is uniform among tokens that occur more than once, k among the others equal to it.
    for j in rng.choice(repeated, count):
        k = int(rng.choice(indices_by_token[tokens_N[j]]))
        while k == j:
            k = int(rng.choice(indices_by_token[tokens_N[j]]))
        equal_pairs.append((int(j), k))
    while len(different_pairs) < count:
        j, k = (int(drawn_index) for drawn_index in rng.integers(len(tokens_N), size=2))
        if tokens_N[j] != tokens_N[k]:
            different_pairs.append((j, k))
    confidence_N = snapshot.logprobs.exp()
    for kind, index_pairs in (("equal", equal_pairs), ("different", different_pairs)):
        # Residuals [n, V] of a chunk stay below 4 million numbers.
        for chunk in torch.tensor(index_pairs, device=W.device).split(max(1, (1 << 22) // len(W))):
            j_n, k_n = chunk.T
            coupling = pair_coupling(
                snapshot.hidden, W, snapshot.tokens, j_n, k_n, softcap=snapshot.softcap
            )
            norm_N = snapshot.hidden.float().norm(dim=1)
            columns = {
                "similarity": coupling.similarity,
                "cosine": coupling.similarity / (norm_N[j_n] * norm_N[k_n]),
                "phi": coupling.phi,
                "printed": coupling.printed_phi,
                "confidence": torch.maximum(confidence_N[j_n], confidence_N[k_n]),
                "group": snapshot.groups[j_n],
                "group_k": snapshot.groups[k_n],
            }
            for values in zip(*(column.tolist() for column in columns.values()), strict=True):
                record = dict(zip(columns, values, strict=True))
                prompts = {
                    "prompt": str(record.pop("group")),
                    "prompt_k": str(record.pop("group_k")),
                }
                if kind == "different":
                    del record["printed"]
                yield {"panel": "pairs", "kind": kind, **prompts, **record}


def _kernel_cells(
    snapshot: Snapshot, W: Tensor, watched: int, rng: np.random.Generator, lab: Lab
) -> list[Record]:
    """Sums of |A_k K_jk| by kind of pair, confidence, and entropy or prompts of both tokens.

    cells           by entropy bins of both, for the figure
    prompt_pairs    by prompts of both and how many have high entropy, for the intervals
    """
    N = len(snapshot)
    watched_indices = np.sort(rng.permutation(N)[:watched])
    rank_N = snapshot.entropies.argsort().argsort()
    bin_N = (rank_N * ENTROPY_BINS) // N
    low_N = is_low_confidence(snapshot).long()
    P = int(snapshot.groups.max()) + 1
    high_N = (bin_N >= FIRST_HIGH_BIN).long()
    cells = PairSums((ENTROPY_BINS, ENTROPY_BINS, len(KINDS), 3), W.device)
    prompt_pairs = PairSums((P, P, 3, len(KINDS), 3), W.device)
    blocks = torch.from_numpy(watched_indices).to(W.device).split(WATCHED_BLOCK)
    for block_index, j_n in enumerate(blocks):
        kernel_nN = kernel_rows(snapshot.hidden, W, snapshot.tokens, j_n, softcap=snapshot.softcap)
        push_strength = (kernel_nN * snapshot.advantages).abs().double()
        # What a token does to itself is not coupling.
        is_other = j_n[:, None] != torch.arange(N, device=W.device)
        kind_and_low = (_pair_kinds(snapshot, W, j_n), low_N[j_n, None] + low_N)
        cells.add((bin_N[j_n, None], bin_N, *kind_and_low), push_strength, is_other)
        prompts_and_high = (
            snapshot.groups[j_n, None],
            snapshot.groups,
            high_N[j_n, None] + high_N,
        )
        prompt_pairs.add((*prompts_and_high, *kind_and_low), push_strength, is_other)
        lab.progress("kernel", 0.3 + 0.6 * (block_index + 1) / len(blocks))
    cell_records: list[Record] = [
        {
            "panel": "cells",
            "entropy_j": bin_j,
            "entropy_k": bin_k,
            "kind": KINDS[kind],
            "low": low,  # how many of the two are of low confidence
            **sums,
        }
        for (bin_j, bin_k, kind, low), sums in cells.nonempty()
    ]
    return cell_records + [
        {
            "panel": "prompt_pairs",
            "prompt": str(prompt_j),
            "prompt_k": str(prompt_k),
            "high": high,  # how many of the two have high entropy
            "kind": KINDS[kind],
            "low": low,
            **sums,
        }
        for (prompt_j, prompt_k, high, kind, low), sums in prompt_pairs.nonempty()
    ]


class PairSums:
    """The number of pairs and the sum of their strengths in every cell of a table."""

    def __init__(self, shape: tuple[int, ...], device: torch.device) -> None:
        self._shape = shape
        self._strength = torch.zeros(math.prod(shape), dtype=torch.float64, device=device)
        self._pairs = torch.zeros_like(self._strength)

    def add(self, indices: Sequence[Tensor], strength: Tensor, included: Tensor) -> None:
        """Add pairs [n, N]; each of `indices` broadcasts to them and gives one axis of the cell."""
        flat_index = torch.zeros_like(included, dtype=torch.long)
        for index, axis_length in zip(indices, self._shape, strict=True):
            flat_index = flat_index * axis_length + index
        flat_index = flat_index[included]
        self._strength.index_add_(0, flat_index, strength[included])
        self._pairs += torch.bincount(flat_index, minlength=len(self._pairs))

    def nonempty(self) -> Iterator[tuple[list[int], Record]]:
        """(cell, its number of pairs and strength) for every cell with a pair."""
        pairs = self._pairs.view(self._shape).cpu().numpy()
        strength = self._strength.view(self._shape).cpu().numpy()
        for cell in np.argwhere(pairs > 0).tolist():
            yield cell, {"pairs": int(pairs[*cell]), "strength": float(strength[*cell])}


def _pair_kinds(snapshot: Snapshot, W: Tensor, j_n: Tensor) -> Tensor:
    """Index into KINDS for each of `j_n` with every token of the batch: [n, N]."""
    logits_nV = cap_logits(wide(snapshot.hidden[j_n]) @ wide(W).T, snapshot.softcap)
    pi_nV = torch.softmax(logits_nV, dim=-1)
    is_rival = pi_nV[:, snapshot.tokens] >= RIVAL_PROBABILITY
    return torch.where(snapshot.tokens[j_n, None] == snapshot.tokens, 2, is_rival.long())


def _displacement_parts(snapshot: Snapshot, W: Tensor) -> list[Record]:
    """Coupling after summation over k: the parts of each token's displacement."""
    coupling = decompose(
        snapshot.hidden,
        W,
        snapshot.tokens,
        snapshot.advantages,
        snapshot.groups,
        softcap=snapshot.softcap,
    )
    by_equal_tokens = (
        coupling.parts["same", "same", "positive"] + coupling.parts["same", "same", "negative"]
    )
    by_equal_tokens += (
        coupling.parts["same", "other", "positive"] + coupling.parts["same", "other", "negative"]
    )
    sums = {
        "equal": by_equal_tokens,
        "different": coupling.from_others - by_equal_tokens,
        "own": coupling.self_push,
    }
    return [
        {
            "panel": "parts",
            "prompt": str(int(group)),
            "kind": kind,
            "strength": float(values[snapshot.groups == group].abs().double().sum()),
        }
        for group in snapshot.groups.unique()
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
