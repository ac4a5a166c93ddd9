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

from counterpoise.lab.studies.fixed_batch import OPEN_LIMIT, Candidate, FixedBatch
from counterpoise.lab.studies.harness import Lab
from counterpoise.lab.studies.study import Study
from counterpoise.lab.studies.token_values import VALUE_SIZES, VALUES_PROGRESS, TokenValueStore
from counterpoise.lab.studies.value.judge import draw, judge
from counterpoise.microscope.displacement import displacement_classes
from counterpoise.seeds import rng_for
from counterpoise.statistics.finding import Record, Records
from counterpoise.types import Row


def measure(lab: Lab) -> Records:
    batch = FixedBatch(lab)
    bank = TokenValueStore(lab, batch)
    pool, whole = batch.open_tokens(), batch.candidates(closed=True)
    (delta,) = batch.measure_displacements([*pool, *whole], partial(lab.update, batch.rows))
    mixed_up = shuffle_row_advantages(batch.rows, lab.seed)
    (control,) = batch.measure_displacements(whole, partial(lab.update, mixed_up))

    cells = draw_equal_cells(batch.rows, pool, delta[: len(pool)], lab.sizes["cell"])
    records = [
        {"panel": "cells", **value, "delta": delta[n]}
        for n, value in zip(
            cells, bank.value_records([pool[n] for n in cells], mixed=True), strict=True
        )
    ]
    population = [i for i, row in enumerate(batch.rows) if row.index == 0]
    entropy_N = np.sort([c.entropy for c in batch.tokens_of_rows(population)])
    for c, value, moved, other in zip(
        whole, bank.value_records(whole), delta[len(pool) :], control, strict=True
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
    lab.progress("values are known", VALUES_PROGRESS)
    return [*records, *_count_open_tokens(batch)]


def draw_equal_cells(
    rows: Sequence[Row], pool: Sequence[Candidate], delta_N: Sequence[float], size: int
) -> list[int]:
    """Indices of the first `size` of the pool in each of (positive, negative) x (boosted,
    suppressed); fewer where the smallest cell has fewer."""
    class_N = displacement_classes(np.asarray(delta_N))
    cells = [
        [n for n, c in enumerate(pool) if rows[c.row].sign == sign and class_N[n] == way]
        for sign, way in product((1, -1), (1, -1))
    ]
    count = min(size, *map(len, cells))
    return sorted(n for cell in cells for n in cell[:count])


def shuffle_row_advantages(rows: Sequence[Row], seed: int) -> list[Row]:
    """The same rows, the advantages of each group in another order."""
    advantages: dict[str, list[float]] = {}
    for row in rows:
        advantages.setdefault(row.group, []).append(row.advantage)
    permuted = {
        group: iter(rng_for(seed, f"shuffled/{group}").permutation(values).tolist())
        for group, values in advantages.items()
    }
    return [replace(row, advantage=next(permuted[row.group])) for row in rows]


def _count_open_tokens(batch: FixedBatch) -> list[Record]:
    """How many tokens of each prompt the candidates of (a) are drawn from."""
    found: dict[str, Record] = {}
    for c in batch.tokens_of_rows(range(len(batch.rows))):
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
    f"{OPEN_LIMIT}, equal numbers, forced estimator) is above 0 with its interval in positive and in "
    "negative rollouts; not replicated when either interval lies below 0; otherwise "
    "inconclusive. The place of the peak over entropy is reported, not judged.",
    budgets={
        "quick": {**VALUE_SIZES["quick"], "cell": 100},
        "full": {**VALUE_SIZES["full"], "cell": 400},
    },
    measure=measure,
    judge=judge,
    draw=draw,
)
