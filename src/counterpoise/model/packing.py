"""Rows -> one flat list of tokens, every prompt once.

The G responses of a prompt share its tokens, so the prompt is computed once and each response
attends to it: with prompts as long as responses that is nearly half of a forward pass. The last
token of a response predicts nothing and is left out.

    prompt  p0 p1 p2          tokens     p0 p1 p2 | a0 a1 | b0
    responses  a0 a1 a2       positions   0  1  2    3  4    3
               b0 b1          predictors of a0 a1 a2 b0 b1: indices 2 3 4 2 5

What an environment told in the middle of a response is read there and predicted by nobody:

    response   a0 a1 a2, told e0 e1 before a2        tokens a0 a1 e0 e1, predictors 2 3 6
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from counterpoise.model.transfer import to_device
from counterpoise.types import Ints

Observations = Sequence[tuple[int, Ints]]  # tokens read before which token of a response, in order


@dataclass(frozen=True, slots=True, eq=False)
class Packing:
    """A micro-batch without padding. M counts predicted tokens, N the tokens of the pass."""

    tokens_N: Tensor
    positions_N: Tensor
    prompts: tuple[tuple[int, int], ...]  # (start, length) of each distinct prompt
    responses: tuple[tuple[int, int], ...]  # (start, length) of each response as it is read
    parents: tuple[int, ...]  # prompt of each response
    predictors_M: Tensor  # where the distribution of each response token is computed
    targets_M: Tensor  # the response tokens themselves
    lengths: tuple[int, ...]  # response tokens of each row, so that [M] splits into rows
    longest: int  # positions in use


def pack(
    prompts: Sequence[Ints],
    responses: Sequence[Ints],
    device: torch.device,
    observations: Sequence[Observations] | None = None,
) -> Packing:
    """Pack rows (prompt tokens, response tokens); equal prompts are shared."""
    _check("prompt", prompts)
    _check("response", responses)
    tokens: list[Ints] = []
    positions: list[np.ndarray] = []
    spans: dict[bytes, int] = {}
    prompt_spans: list[tuple[int, int]] = []
    start = 0
    for prompt in prompts:
        if (key := prompt_key(prompt)) not in spans:
            spans[key] = len(prompt_spans)
            prompt_spans.append((start, len(prompt)))
            tokens.append(prompt)
            positions.append(np.arange(len(prompt)))
            start += len(prompt)
    parents = tuple(spans[prompt_key(prompt)] for prompt in prompts)

    response_spans: list[tuple[int, int]] = []
    predictors: list[np.ndarray] = []
    longest = 0
    observations = [()] * len(prompts) if observations is None else observations
    for parent, response, said in zip(parents, responses, observations, strict=True):
        prompt_start, prompt_length = prompt_spans[parent]
        whole, own = insert_observations(response, said)
        kept = len(whole) - 1
        response_spans.append((start, kept))
        tokens.append(whole[:-1])
        positions.append(np.arange(prompt_length, prompt_length + kept))
        read = np.concatenate(([prompt_start + prompt_length - 1], np.arange(start, start + kept)))
        predictors.append(read[own])
        start += kept
        longest = max(longest, prompt_length + len(whole))

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
        longest=longest,
    )


def prompt_key(prompt: Ints) -> bytes:
    """The same for prompts that a pass shares."""
    return np.asarray(prompt, dtype=np.int64).tobytes()


def insert_observations(
    response: Ints, observations: Observations
) -> tuple[Ints, np.ndarray | slice]:
    """A response with what was told in it, and the places of its own tokens there."""
    if not observations:
        return response, slice(None)
    before = np.concatenate([np.full(len(tokens), place) for place, tokens in observations])
    whole = np.insert(response, before, np.concatenate([tokens for _, tokens in observations]))
    lengths = np.zeros(len(response), dtype=np.int64)
    np.add.at(
        lengths, [place for place, _ in observations], [len(tokens) for _, tokens in observations]
    )
    return whole, np.arange(len(response)) + np.cumsum(lengths)


def pack_prompts(prompts: Sequence[Ints], device: torch.device) -> Packing:
    """Prompts alone, in their order: what a prefill computes. Equal prompts are not merged."""
    _check("prompt", prompts)
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


def _check(what: str, sequences: Sequence[Ints]) -> None:
    """One without tokens would make its neighbour's last token predict in its place."""
    if not all(map(len, sequences)):
        raise ValueError(f"a {what} without tokens cannot be packed")
