"""Pack rows into one flat list of tokens in which every prompt appears once.

The G responses of a prompt share its tokens, so the prompt is computed once and each response
attends to it: with prompts as long as responses that saves nearly half of a forward pass. The last
token of a response predicts nothing and is left out.

    prompt  p0 p1 p2          tokens     p0 p1 p2 | a0 a1 | b0
    responses  a0 a1 a2       positions   0  1  2    3  4    3
               b0 b1          predictors of a0 a1 a2 b0 b1: indices 2 3 4 2 5

Observations (an environment's tokens in the middle of a response) are read but not predicted:

    response   a0 a1 a2, observation e0 e1 before a2        tokens a0 a1 e0 e1, predictors 2 3 6
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from counterpoise.model.transfer import to_device
from counterpoise.types import Ints

# (index of the response token they precede, tokens), in order
Observations = Sequence[tuple[int, Ints]]


@dataclass(frozen=True, slots=True, eq=False)
class Packing:
    """A micro-batch without padding. N: tokens of the pass, M: predicted (response) tokens."""

    tokens_N: Tensor
    positions_N: Tensor
    prompts: tuple[tuple[int, int], ...]  # (start, length) of each distinct prompt
    # (start, length) of each response, observations included
    responses: tuple[tuple[int, int], ...]
    parents: tuple[int, ...]  # index of each response's prompt
    predictors_M: Tensor  # index of the token whose state predicts each response token
    targets_M: Tensor  # the response tokens themselves
    lengths: tuple[int, ...]  # response tokens of each row: they split [M] into rows
    longest: int  # positions that the longest row needs


def pack(
    prompts: Sequence[Ints],
    responses: Sequence[Ints],
    device: torch.device,
    observations: Sequence[Observations] | None = None,
) -> Packing:
    """Pack rows (prompt tokens, response tokens); equal prompts are stored once.

    `observations`: for each response, the environment's tokens inside it.
    """
    _check_nonempty("prompt", prompts)
    _check_nonempty("response", responses)
    token_arrays: list[Ints] = []
    position_arrays: list[np.ndarray] = []
    prompt_indices: dict[bytes, int] = {}
    prompt_spans: list[tuple[int, int]] = []
    next_index = 0  # among the N packed tokens
    for prompt in prompts:
        if (key := prompt_key(prompt)) not in prompt_indices:
            prompt_indices[key] = len(prompt_spans)
            prompt_spans.append((next_index, len(prompt)))
            token_arrays.append(prompt)
            position_arrays.append(np.arange(len(prompt)))
            next_index += len(prompt)
    parents = tuple(prompt_indices[prompt_key(prompt)] for prompt in prompts)

    response_spans: list[tuple[int, int]] = []
    predictor_arrays: list[np.ndarray] = []
    longest_row = 0
    observations = [()] * len(prompts) if observations is None else observations
    for parent, response, row_observations in zip(parents, responses, observations, strict=True):
        prompt_start, prompt_length = prompt_spans[parent]
        sequence, response_positions = insert_observations(response, row_observations)
        num_read = len(sequence) - 1
        response_spans.append((next_index, num_read))
        token_arrays.append(sequence[:-1])
        position_arrays.append(np.arange(prompt_length, prompt_length + num_read))
        # Token t of the sequence is predicted by the token before it; the first one by the last
        # token of the prompt.
        predictor_of_token = np.concatenate(
            ([prompt_start + prompt_length - 1], np.arange(next_index, next_index + num_read))
        )
        predictor_arrays.append(predictor_of_token[response_positions])
        next_index += num_read
        longest_row = max(longest_row, prompt_length + len(sequence))

    def flat(arrays: Sequence[np.ndarray]) -> Tensor:
        return to_device(np.concatenate(arrays), device, np.int64)

    return Packing(
        tokens_N=flat(token_arrays),
        positions_N=flat(position_arrays),
        prompts=tuple(prompt_spans),
        responses=tuple(response_spans),
        parents=parents,
        predictors_M=flat(predictor_arrays),
        targets_M=flat(responses),
        lengths=tuple(len(response) for response in responses),
        longest=longest_row,
    )


def prompt_key(prompt: Ints) -> bytes:
    """A key that is equal for equal prompts."""
    return np.asarray(prompt, dtype=np.int64).tobytes()


def insert_observations(
    response: Ints, observations: Observations
) -> tuple[Ints, np.ndarray | slice]:
    """(response with the observations inserted, positions of the response's own tokens in it)"""
    if not observations:
        return response, slice(None)
    insert_before = np.concatenate(
        [np.full(len(tokens), position) for position, tokens in observations]
    )
    sequence = np.insert(
        response, insert_before, np.concatenate([tokens for _, tokens in observations])
    )
    inserted_lengths = np.zeros(len(response), dtype=np.int64)
    np.add.at(
        inserted_lengths,
        [position for position, _ in observations],
        [len(tokens) for _, tokens in observations],
    )
    return sequence, np.arange(len(response)) + np.cumsum(inserted_lengths)


def pack_prompts(prompts: Sequence[Ints], device: torch.device) -> Packing:
    """Pack prompts alone, in their order, for a prefill. Equal prompts are not merged."""
    _check_nonempty("prompt", prompts)
    starts = np.cumsum([0, *(len(prompt) for prompt in prompts)]).tolist()
    no_tokens = torch.empty(0, dtype=torch.long, device=device)
    return Packing(
        tokens_N=to_device(np.concatenate(prompts), device, np.int64),
        positions_N=to_device(
            np.concatenate([np.arange(len(prompt)) for prompt in prompts]), device
        ),
        prompts=tuple(
            (start, len(prompt)) for start, prompt in zip(starts[:-1], prompts, strict=True)
        ),
        responses=(),
        parents=(),
        predictors_M=no_tokens,
        targets_M=no_tokens,
        lengths=(),
        longest=max(map(len, prompts)),
    )


def _check_nonempty(kind: str, sequences: Sequence[Ints]) -> None:
    """Raise for an empty sequence: a neighbour's last token would predict in its place."""
    if not all(map(len, sequences)):
        raise ValueError(f"a {kind} without tokens cannot be packed")
