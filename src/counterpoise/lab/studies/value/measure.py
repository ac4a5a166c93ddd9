"""Fig. 5: are the tokens that an update boosts more valuable than those it suppresses?

One GRPO step (fresh AdamW) from one checkpoint, on 96 prompts of 8 rollouts; classes by
|delta log p| > 1e-6; values by continuations of the checkpoint (microscope/value.py).

(a) Equal numbers of boosted and suppressed tokens from positive and from negative rollouts, drawn
    at random among those with p(o) <= 0.95. Values by the forced estimator, and by eq. 20.
(b) The gap among the top k % of tokens by entropy. Tokens with p(o) > 0.95, most of them, are
    included here, each candidate with the number of tokens it represents. Eq. 20 would be all noise
    there: its error is 1 / (1 - p) times larger.

Two controls that the paper does not have. Matched: the gap among tokens of similar p(o), because
likely tokens are boosted more often and have higher values. Shuffled: the same tokens under a step
whose advantages were permuted within each group; a gap that remains does not come from rewards.

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
    value_store = TokenValueStore(lab, batch)
    pool, all_candidates = batch.open_tokens(), batch.candidates(closed=True)
    # One update serves both panels: (a) uses the open pool, (b) the weighted candidates.
    (displacements,) = batch.measure_displacements(
        [*pool, *all_candidates], partial(lab.update, batch.rows)
    )
    shuffled_rows = shuffle_row_advantages(batch.rows, lab.seed)
    (control_displacements,) = batch.measure_displacements(
        all_candidates, partial(lab.update, shuffled_rows)
    )

    cells = draw_equal_cells(batch.rows, pool, displacements[: len(pool)], lab.sizes["cell"])
    records = [
        {"panel": "cells", **value_record, "delta": displacements[index]}
        for index, value_record in zip(
            cells,
            value_store.value_records([pool[index] for index in cells], mixed=True),
            strict=True,
        )
    ]
    population = [index for index, row in enumerate(batch.rows) if row.index == 0]
    entropy_N = np.sort([candidate.entropy for candidate in batch.tokens_of_rows(population)])
    for candidate, value_record, displacement, control_displacement in zip(
        all_candidates,
        value_store.value_records(all_candidates),
        displacements[len(pool) :],
        control_displacements,
        strict=True,
    ):
        # The token's own rank from above counts itself, so the largest share is 1.
        rank_from_above = len(entropy_N) - int(np.searchsorted(entropy_N, candidate.entropy))
        records.append(
            {
                "panel": "all",
                **value_record,
                "delta": displacement,
                "shuffled": control_displacement,
                "top": rank_from_above / len(entropy_N),
            }
        )
    lab.progress("values are known", VALUES_PROGRESS)
    return [*records, *_count_open_tokens(batch)]


def draw_equal_cells(
    rows: Sequence[Row], pool: Sequence[Candidate], delta_N: Sequence[float], size: int
) -> list[int]:
    """Indices of the first `size` tokens of the pool in each of the four cells, sorted.

    The cells are (positive, negative rollout) x (boosted, suppressed); all get as many tokens as
    the smallest one has, if that is fewer.
    """
    class_N = displacement_classes(np.asarray(delta_N))
    cells = [
        [
            index
            for index, candidate in enumerate(pool)
            if rows[candidate.row].sign == sign and class_N[index] == direction
        ]
        for sign, direction in product((1, -1), (1, -1))
    ]
    # The pool is sorted by rollout index and random within it: cells are filled from first
    # rollouts first, and the tokens of a cell are a random sample of those.
    count = min(size, *map(len, cells))
    return sorted(index for cell in cells for index in cell[:count])


def shuffle_row_advantages(rows: Sequence[Row], seed: int) -> list[Row]:
    """The same rows with the advantages permuted within each group."""
    advantages: dict[str, list[float]] = {}
    for row in rows:
        advantages.setdefault(row.group, []).append(row.advantage)
    permuted = {
        group: iter(rng_for(seed, f"shuffled/{group}").permutation(values).tolist())
        for group, values in advantages.items()
    }
    return [replace(row, advantage=next(permuted[row.group])) for row in rows]


def _count_open_tokens(batch: FixedBatch) -> list[Record]:
    """Numbers of all tokens and of open tokens for each prompt: the pool of (a)."""
    counts_by_prompt: dict[str, Record] = {}
    for token in batch.tokens_of_rows(range(len(batch.rows))):
        prompt = batch.rows[token.row].group
        record = counts_by_prompt.setdefault(
            prompt, {"panel": "tokens", "prompt": prompt, "tokens": 0, "open": 0}
        )
        record["tokens"] += 1
        record["open"] += token.is_open
    return list(counts_by_prompt.values())


STUDY = Study(
    name="value",
    title="Boosted tokens are worth more than suppressed ones",
    shows="Fig. 5",
    claim="Tokens that an update boosts have a higher counterfactual value than tokens it "
    "suppresses, in positive and in negative rollouts; the gap is largest among the 40 % of "
    "tokens with the highest entropy.",
    rule="Replicated when the gap between boosted and suppressed tokens (p <= "
    f"{OPEN_LIMIT}, equal numbers, forced estimator) is above 0 with its interval in positive and "
    "in negative rollouts; not replicated when either interval lies below 0; otherwise "
    "inconclusive. The place of the peak over entropy is reported, not judged.",
    budgets={
        "quick": {**VALUE_SIZES["quick"], "cell": 100},
        "full": {**VALUE_SIZES["full"], "cell": 400},
    },
    measure=measure,
    judge=judge,
    draw=draw,
)
