"""A batch in verl's TransferQueue as rows with their rollouts, for token weights and the record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from transfer_queue import KVBatchMeta

from counterpoise.hosts.importing.formats import answer_text, hash_prompt
from counterpoise.hosts.verl import queue
from counterpoise.hosts.verl.turns import split_turns
from counterpoise.hosts.verl.weight_request import ROLLOUT_ADVANTAGES
from counterpoise.types import Floats, Rollout, Row

FIELDS = ("prompts", "responses", "response_mask", "rm_scores", "advantages", "old_log_probs")
# Which runs have: the data set's reference answer; rollout.calculate_log_probs; token weights.
REFERENCES, SAMPLED_LOGPROBS = "reward_model", "rollout_log_probs"
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
    columns = [data[name].unbind() for name in FIELDS]
    references = list(data[REFERENCES]) if REFERENCES in data else None
    sampled = data[SAMPLED_LOGPROBS].unbind() if SAMPLED_LOGPROBS in data else None
    unweighted = data[ROLLOUT_ADVANTAGES].unbind() if ROLLOUT_ADVANTAGES in data else None
    rows, old_logprobs = [], []
    for i in real_indices(batch):
        prompt_S, response_T, mask_T, scores_T, advantages_T, old_T = (c[i] for c in columns)
        trained_T = mask_T.bool()
        # A key is uid_session_output.
        group, _, session = batch.keys[i].rpartition("_")[0].rpartition("_")
        prompt = tokenizer.decode(prompt_S, skip_special_tokens=True)
        tokens = response_T[trained_T].numpy().astype(np.int32)
        rollout = Rollout(
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
        advantage, weights_T = split_advantage(
            advantages_T[trained_T].float().numpy(),
            unweighted[i][trained_T].float().numpy() if unweighted else None,
        )
        rows.append(
            Row(
                group=f"{number}:{group}",
                advantage=advantage,
                num_tokens=len(tokens),
                index=int(session),
                born=number,
                rollout=rollout,
                weights_T=weights_T,
            )
        )
        old_logprobs.append(old_T[trained_T].float().numpy())
    return _number_in_groups(rows), old_logprobs


def split_advantage(
    advantages_T: Floats, unweighted_T: Floats | None = None
) -> tuple[float, Floats | None]:
    """A_i and w_T of a row from A_{i,t}; w_T is None where all are 1.

    Without `unweighted_T`, A_i is the mean: an estimator of verl's may differ between tokens.

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


def _number_in_groups(rows: Sequence[Row]) -> list[Row]:
    """Rows numbered from 0 in their group, by verl's numbers, of which some may be missing."""
    members: dict[str, list[int]] = {}
    for row in rows:
        members.setdefault(row.group, []).append(row.index)
    return [replace(row, index=sorted(members[row.group]).index(row.index)) for row in rows]
