"""A batch in verl's TransferQueue as rows with their rollouts, for token weights and the record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from transfer_queue import KVBatchMeta

from counterpoise.hosts.importing.formats import answer_text, hash_prompt
from counterpoise.hosts.turns import split_turns
from counterpoise.hosts.verl import queue
from counterpoise.hosts.verl.row_keys import group_of_key, split_key
from counterpoise.hosts.verl.weight_request import ROLLOUT_ADVANTAGES
from counterpoise.types import Floats, Rollout, Row

# Only some runs have these: the data set's reference answer, and the sampler's log-probabilities
# (with rollout.calculate_log_probs=True).
REFERENCES, SAMPLED_LOGPROBS = "reward_model", "rollout_log_probs"
SAMPLED_FIELDS = ("prompts", "responses", "response_mask", "rm_scores")
ROLLOUT_FIELDS = (*SAMPLED_FIELDS, REFERENCES, SAMPLED_LOGPROBS)  # of a rollout once it is sampled
FIELDS = (*SAMPLED_FIELDS, "advantages", "old_log_probs")
# ROLLOUT_ADVANTAGES: only with token weights.
OPTIONAL_FIELDS = (REFERENCES, SAMPLED_LOGPROBS, ROLLOUT_ADVANTAGES)


def real_indices(batch: KVBatchMeta) -> list[int]:
    """The positions of the rows that are trained on; the others are padding."""
    return [index for index, tag in enumerate(batch.tags) if queue.is_real_row(tag)]


def read_rows(
    number: int, batch: KVBatchMeta, data: Any, tokenizer: Any, max_response_length: int
) -> tuple[list[Row], list[Floats]]:
    """The rows of update `number` with their rollouts, and their old log-probabilities [T].

    `data` holds FIELDS, and those of OPTIONAL_FIELDS that the run has.
    """
    indices = real_indices(batch)
    rollouts = read_rollouts(data, indices, tokenizer, max_response_length)
    columns = [data[name].unbind() for name in ("response_mask", "advantages", "old_log_probs")]
    unweighted = data[ROLLOUT_ADVANTAGES].unbind() if ROLLOUT_ADVANTAGES in data else None
    index_in_group = number_in_groups([batch.keys[i] for i in indices])
    rows, old_logprobs = [], []
    for i, rollout in zip(indices, rollouts, strict=True):
        mask_T, advantages_T, old_T = (column[i] for column in columns)
        trained_T = mask_T.bool()
        advantage, weights_T = split_advantage(
            advantages_T[trained_T].float().numpy(),
            unweighted[i][trained_T].float().numpy() if unweighted else None,
        )
        rows.append(
            Row(
                group=f"{number}:{group_of_key(batch.keys[i])}",
                advantage=advantage,
                num_tokens=len(rollout.response_tokens),
                index=index_in_group[batch.keys[i]],
                born=number,
                rollout=rollout,
                weights_T=weights_T,
            )
        )
        old_logprobs.append(old_T[trained_T].float().numpy())
    return rows, old_logprobs


def read_rollouts(
    data: Any, indices: Sequence[int], tokenizer: Any, max_response_length: int
) -> list[Rollout]:
    """The rollouts at `indices` of `data`, which holds those of ROLLOUT_FIELDS that the run has."""
    columns = [data[name].unbind() for name in SAMPLED_FIELDS]
    references = list(data[REFERENCES]) if REFERENCES in data else None
    sampled = data[SAMPLED_LOGPROBS].unbind() if SAMPLED_LOGPROBS in data else None
    rollouts = []
    for i in indices:
        prompt_S, response_T, mask_T, scores_T = (column[i] for column in columns)
        trained_T = mask_T.bool()
        prompt = tokenizer.decode(prompt_S, skip_special_tokens=True)
        tokens = response_T[trained_T].numpy().astype(np.int32)
        rollouts.append(
            Rollout(
                prompt_id=f"verl/{hash_prompt(prompt)}",
                prompt=prompt,
                answer=answer_text(references[i].get("ground_truth")) if references else "",
                response=tokenizer.decode(response_T, skip_special_tokens=True),
                reward=float(scores_T.sum()),
                prompt_tokens=prompt_S.numpy().astype(np.int32),
                response_tokens=tokens,
                sampled_logprobs=sampled[i][trained_T].float().numpy()
                if sampled
                else np.full(len(tokens), np.nan, np.float32),
                finished=_is_finished(response_T, tokenizer, max_response_length),
                turns=split_turns(response_T.numpy(), trained_T.numpy()),
            )
        )
    return rollouts


def number_in_groups(keys: Sequence[str]) -> dict[str, int]:
    """The index of every row in its group, in verl's order, without gaps where rows are missing.

    Example:
        >>> number_in_groups(["ab_1_0", "ab_0_1", "ab_0_0", "cd_3_0"])
        {'ab_0_0': 0, 'ab_0_1': 1, 'ab_1_0': 2, 'cd_3_0': 0}
    """
    members: dict[str, list[str]] = {}
    for key in sorted(keys, key=split_key):
        members.setdefault(group_of_key(key), []).append(key)
    return {key: index for group in members.values() for index, key in enumerate(group)}


def split_advantage(
    advantages_T: Floats, unweighted_T: Floats | None = None
) -> tuple[float, Floats | None]:
    """A_i and w_T of a row from A_{i,t}; w_T is None where all are 1.

    Without `unweighted_T`, A_i is the mean: verl's own estimators may give the tokens of a row
    different advantages.

    Example:
        >>> split_advantage(np.array([0.5, 0.25], np.float32), np.array([0.5, 0.5], np.float32))
        (0.5, array([1. , 0.5], dtype=float32))
    """
    if not len(advantages_T):
        return 0.0, None
    if unweighted_T is None and (advantages_T == advantages_T[0]).all():
        return float(advantages_T[0]), None
    advantage = float(advantages_T.mean() if unweighted_T is None else unweighted_T[0])
    return advantage, advantages_T / np.float32(advantage) if advantage else None


def _is_finished(response_T: Any, tokenizer: Any, max_response_length: int) -> bool:
    """Whether the response ended by itself; verl keeps no word of it."""
    end_token = getattr(tokenizer, "eos_token_id", None)
    return len(response_T) < max_response_length or int(response_T[-1]) == end_token
