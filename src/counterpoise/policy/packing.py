"""Rows -> one flat list of tokens, every prompt once.

The G responses of a prompt share its tokens, so the prompt is computed once and each response
attends to it: with prompts as long as responses that is nearly half of a forward pass. The last
token of a response predicts nothing and is left out.

    prompt  p0 p1 p2          tokens     p0 p1 p2 | a0 a1 | b0
    responses  a0 a1 a2       positions   0  1  2    3  4    3
               b0 b1          predictors of a0 a1 a2 b0 b1: indices 2 3 4 2 5
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from counterpoise.policy.transfer import to_device
from counterpoise.types import Ints


@dataclass(frozen=True, slots=True, eq=False)
class Packing:
    """A micro-batch without padding. M counts predicted tokens, N the tokens of the pass."""

    tokens_N: Tensor
    positions_N: Tensor
    prompts: tuple[tuple[int, int], ...]  # (start, length) of each distinct prompt
    responses: tuple[tuple[int, int], ...]  # (start, length) of each response, last token left out
    parents: tuple[int, ...]  # prompt of each response
    predictors_M: Tensor  # where the distribution of each response token is computed
    targets_M: Tensor  # the response tokens themselves
    lengths: tuple[int, ...]  # response tokens of each row, so that [M] splits into rows
    longest: int  # positions in use


def pack(prompts: Sequence[Ints], responses: Sequence[Ints], device: torch.device) -> Packing:
    """Pack rows (prompt tokens, response tokens); equal prompts are shared."""
    tokens: list[Ints] = []
    positions: list[np.ndarray] = []
    spans: dict[bytes, int] = {}
    prompt_spans: list[tuple[int, int]] = []
    start = 0
    for prompt in prompts:
        key = np.asarray(prompt, dtype=np.int64).tobytes()
        if key not in spans:
            spans[key] = len(prompt_spans)
            prompt_spans.append((start, len(prompt)))
            tokens.append(prompt)
            positions.append(np.arange(len(prompt)))
            start += len(prompt)
    parents = tuple(spans[np.asarray(prompt, dtype=np.int64).tobytes()] for prompt in prompts)

    response_spans: list[tuple[int, int]] = []
    predictors: list[np.ndarray] = []
    for parent, response in zip(parents, responses, strict=True):
        prompt_start, prompt_length = prompt_spans[parent]
        kept = len(response) - 1
        response_spans.append((start, kept))
        tokens.append(response[:-1])
        positions.append(np.arange(prompt_length, prompt_length + kept))
        predictors.append(
            np.concatenate(([prompt_start + prompt_length - 1], np.arange(start, start + kept)))
        )
        start += kept

    def flat(parts: Sequence[np.ndarray]) -> Tensor:
        return to_device(np.concatenate(parts), device, np.int64)

    return Packing(
        tokens_N=flat(tokens),
        positions_N=flat(positions),
        prompts=tuple(prompt_spans),
        responses=tuple(response_spans),
        parents=parents,
        predictors_M=flat(predictors),
        targets_M=flat(responses),
        lengths=tuple(len(response) for response in responses),
        longest=max(len(p) + len(r) for p, r in zip(prompts, responses, strict=True)),
    )


def pack_prompts(prompts: Sequence[Ints], device: torch.device) -> Packing:
    """Prompts alone, in their order: what a prefill computes. Equal prompts are not merged."""
    starts = np.cumsum([0, *(len(prompt) for prompt in prompts)])
    nothing = torch.empty(0, dtype=torch.long, device=device)
    return Packing(
        tokens_N=to_device(np.concatenate(prompts), device, np.int64),
        positions_N=to_device(np.concatenate([np.arange(len(p)) for p in prompts]), device),
        prompts=tuple((int(s), len(p)) for s, p in zip(starts[:-1], prompts, strict=True)),
        responses=(),
        parents=(),
        predictors_M=nothing,
        targets_M=nothing,
        lengths=(),
        longest=max(map(len, prompts)),
    )
