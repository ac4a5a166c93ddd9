"""Multiply the advantages of an update by token weights, before verl's workers get them.

    A_{i,t} = A_i w_{i,t}

verl's scoring pass puts the log-probabilities and entropies of a batch into its TransferQueue. A
method that reads no more is evaluated here, one that reads hidden states by rank 0 of the workers.
Both see the rows of one update; with RB these are the rows of the balanced batch, scored by the
weights that sampled them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from transfer_queue import KVBatchMeta

from counterpoise.errors import PoiseError
from counterpoise.hosts.verl import queue
from counterpoise.hosts.verl.batch_rows import (
    FIELDS,
    REFERENCES,
    read_rows,
    real_indices,
)
from counterpoise.hosts.verl.options import VerlAdapterOptions, select
from counterpoise.hosts.verl.weight_methods import reads_states
from counterpoise.hosts.verl.weight_request import (
    ROLLOUT_ADVANTAGES,
    WEIGH_TOKENS,
    WeightRequest,
    WeightResult,
    evaluate_request,
)
from counterpoise.plugins import display_name, is_plugin
from counterpoise.types import Floats, Ints


def weigh_batch(
    batch: KVBatchMeta,
    options: VerlAdapterOptions,
    config: Any,
    workers: Any,
    tokenizer: Any,
    number: int,
) -> None:
    """Multiply the advantages of update `number` in the TransferQueue by their token weights.

    The unweighted ones are kept as ROLLOUT_ADVANTAGES: the run folder and trajectory weights need
    them.
    """
    data = queue.get_fields(batch, *FIELDS, REFERENCES, "entropy")
    request = _make_request(batch, data, options, config, tokenizer, number)
    if not request.rows:
        return
    weights: Sequence[Floats]
    if reads_states(options.credit_weights):
        results: Sequence[WeightResult] = getattr(workers, WEIGH_TOKENS)(request)
        if faults := [result.fault for result in results if result.fault]:
            method = display_name(options.credit_weights)
            raise PoiseError(f"+poise.credit_weights={method}: {faults[0]}")
        weights = next(result.weights for result in results if result.weights)
    else:
        weights = evaluate_request(request)
    weights_of_index = dict(zip(request.batch_indices, weights, strict=True))
    weighted_rows = []
    columns = zip(data["advantages"].unbind(), data["response_mask"].unbind(), strict=True)
    for index, (advantages_T, mask_T) in enumerate(columns):
        weighted_T = advantages_T.clone()
        if index in weights_of_index:
            weighted_T[mask_T.bool()] *= torch.from_numpy(weights_of_index[index]).to(weighted_T)
        weighted_rows.append(weighted_T)
    data[ROLLOUT_ADVANTAGES] = data["advantages"]
    data["advantages"] = torch.nested.as_nested_tensor(weighted_rows, layout=torch.jagged)
    queue.put_fields(batch, data.select("advantages", ROLLOUT_ADVANTAGES))


def _make_request(
    batch: KVBatchMeta,
    data: Any,
    options: VerlAdapterOptions,
    config: Any,
    tokenizer: Any,
    number: int,
) -> WeightRequest:
    max_length = select(config, "data.max_response_length")
    rows, logprobs = read_rows(number, batch, data, tokenizer, max_length)
    entropies = queue.trained_values(data["entropy"], data["response_mask"])  # of padding too
    index_of_row = real_indices(batch)
    signal_rows = [i for i, row in enumerate(rows) if row.sign and row.num_tokens]
    signal_rows.sort(key=lambda i: rows[i].name)  # those of a group next to each other
    tokens = [rows[i].content.response_tokens for i in signal_rows]
    own_function = is_plugin(options.credit_weights)
    return WeightRequest(
        method=options.credit_weights,
        settings=options.credit_settings,
        # Only a user's function may read the texts of a rollout; they need not travel otherwise.
        rows=[rows[i] if own_function else replace(rows[i], rollout=None) for i in signal_rows],
        batch_indices=[index_of_row[i] for i in signal_rows],
        tokens=tokens,
        logprobs=[logprobs[i] for i in signal_rows],
        entropies=[entropies[index_of_row[i]] for i in signal_rows],
        token_texts=_texts_of_tokens(tokens, tokenizer) if own_function else {},
        temperature=float(select(config, "actor_rollout_ref.rollout.temperature", 1.0)),
        iteration=number,
    )


def _texts_of_tokens(tokens: Sequence[Ints], tokenizer: Any) -> dict[int, str]:
    """The text of every token that occurs; special tokens have empty texts."""
    distinct_tokens = np.unique(np.concatenate(tokens)).tolist() if tokens else []
    texts = tokenizer.batch_decode([[token] for token in distinct_tokens], skip_special_tokens=True)
    return dict(zip(distinct_tokens, texts, strict=True))
