"""Fig. 5: are the tokens that an update boosts worth more than those it suppresses?

From one checkpoint, one GRPO step (AdamW, fresh) on 96 prompts of 8 rollouts; classes by
|delta log p| > 1e-6; values by continuations of the checkpoint (microscope/value.py).

(a) Equal numbers of boosted and suppressed tokens from positive and from negative rollouts, drawn
    at random among those with p(o) <= 0.95. Values by the forced estimator, eq. 20 beside it.
(b) The gap among the top k % of tokens by entropy. Here tokens with p(o) > 0.95, most of them, are
    in it too, each candidate with the number of tokens it stands for. Eq. 20 would be all noise
    there: its error is 1 / (1 - p) times larger.

Two controls the paper does not have. Matched: the gap among tokens of like p(o), because likely
tokens are both boosted more often and worth more. Shuffled: the same tokens under a step whose
advantages were permuted within each group; what is left of the gap then is not owed to rewards.

Replicated: the gap of (a) is above 0 in positive and in negative rollouts, intervals included. Not
replicated: either interval lies below 0. Inconclusive otherwise. (b) is reported, not judged: the
paper prints no numbers but the place of the peak.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np

from counterpoise.lab.studies.fixed_batch import OPEN, Candidate, FixedBatch
from counterpoise.lab.studies.harness import Lab
from counterpoise.lab.studies.study import Study
from counterpoise.lab.studies.token_values import SIZES, VALUES_SHARE, Bank
from counterpoise.lab.studies.value.judge import draw, judge
from counterpoise.microscope.displacement import classes
from counterpoise.seeds import rng_for
from counterpoise.statistics.finding import Record, Records
from counterpoise.types import Row


def measure(lab: Lab) -> Records:
    batch = FixedBatch(lab)
    bank = Bank(lab, batch)
    pool, whole = batch.all_open(), batch.candidates(closed=True)
    (delta,) = batch.displacements([*pool, *whole], partial(lab.update, batch.rows))
    mixed_up = shuffled(batch.rows, lab.seed)
    (control,) = batch.displacements(whole, partial(lab.update, mixed_up))

    cells = equal_cells(batch.rows, pool, delta[: len(pool)], lab.sizes["cell"])
    records = [
        {"panel": "cells", **value, "delta": delta[n]}
        for n, value in zip(cells, bank.values([pool[n] for n in cells], mixed=True), strict=True)
    ]
    population = [i for i, row in enumerate(batch.rows) if row.index == 0]
    entropy_N = np.sort([c.entropy for c in batch.tokens(population)])
    for c, value, moved, other in zip(
        whole, bank.values(whole), delta[len(pool) :], control, strict=True
    ):
        above = len(entropy_N) - int(np.searchsorted(entropy_N, c.entropy))  # itself included
        records.append(
            {
                "panel": "all",
                **value,
                "delta": moved,
                "shuffled": other,
                "top": above / len(entropy_N),
            }
        )
    lab.progress("values are known", VALUES_SHARE)
    return [*records, *_counts(batch)]


def equal_cells(
    rows: Sequence[Row], pool: Sequence[Candidate], delta_N: Sequence[float], size: int
) -> list[int]:
    """Indices of the first `size` of the pool in each of (positive, negative) x (boosted,
    suppressed); fewer where the smallest cell has fewer."""
    class_N = classes(np.asarray(delta_N))
    cells = [
        [n for n, c in enumerate(pool) if rows[c.row].sign == sign and class_N[n] == way]
        for sign, way in product((1, -1), (1, -1))
    ]
    count = min(size, *map(len, cells))
    return sorted(n for cell in cells for n in cell[:count])


def shuffled(rows: Sequence[Row], seed: int) -> list[Row]:
    """The same rows, the advantages of each group in another order."""
    advantages: dict[str, list[float]] = {}
    for row in rows:
        advantages.setdefault(row.group, []).append(row.advantage)
    permuted = {
        group: iter(rng_for(seed, f"shuffled/{group}").permutation(values).tolist())
        for group, values in advantages.items()
    }
    return [replace(row, advantage=next(permuted[row.group])) for row in rows]


def _counts(batch: FixedBatch) -> list[Record]:
    """How many tokens of each prompt the candidates of (a) are drawn from."""
    found: dict[str, Record] = {}
    for c in batch.tokens(range(len(batch.rows))):
        prompt = batch.rows[c.row].group
        record = found.setdefault(
            prompt, {"panel": "tokens", "prompt": prompt, "tokens": 0, "open": 0}
        )
        record["tokens"] += 1
        record["open"] += c.is_open
    return list(found.values())


STUDY = Study(
    name="value",
    title="Boosted tokens are worth more than suppressed ones",
    shows="Fig. 5",
    claim="Tokens that an update boosts have a higher counterfactual value than tokens it "
    "suppresses, in positive and in negative rollouts; the gap is largest among the 40 % of "
    "tokens with the highest entropy.",
    rule="Replicated when the gap between boosted and suppressed tokens (p <= "
    f"{OPEN}, equal numbers, forced estimator) is above 0 with its interval in positive and in "
    "negative rollouts; not replicated when either interval lies below 0; otherwise "
    "inconclusive. The place of the peak over entropy is reported, not judged.",
    budgets={
        "quick": {**SIZES["quick"], "cell": 100},
        "full": {**SIZES["full"], "cell": 400},
    },
    measure=measure,
    judge=judge,
    draw=draw,
)
