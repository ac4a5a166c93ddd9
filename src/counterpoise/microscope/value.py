"""Counterfactual value of a token: how much better it is than its alternatives (eq. 20).

    value(o | s) = Q(s, o) - Q_other,    Q_other = E_{a ~ pi(. | s), a != o} Q(s, a)

o is the token, s the state before it, and Q(s, a) the mean reward of continuations of s + a. A
share p = pi(o | s) of the continuations of s itself begins with o, so their mean contains part of
what it is compared with:

    V(s) = p Q(s, o) + (1 - p) Q_other    =>    Q(s, o) - V(s) = (1 - p) value(o | s)

Two estimators of the same quantity, from M continuations of each of two states:

    mixed    (avg[s + o] - avg[s]) / (1 - p)               eq. 20; its error grows as 1 / (1 - p)
    forced    avg[s + o] - avg[s, first token not o]       error at most 1 / sqrt(2 M), whatever p

The second draws its first token from pi(. | s) with o removed and the rest renormalised. Most
tokens of a trained model have p > 0.99: there the first needs 10,000 times the continuations.

Where p = 1 in floating point, mixed is nan and forced still works (the other logits rank the
alternatives). Where o ends the response, Q(s, o) is the rollout's own reward; nothing is sampled.
The paper uses M = 256; the formula of its main text omits the division, which gives
Q - V = (1 - p) value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from counterpoise.config import SampleConfig
from counterpoise.errors import PoiseError
from counterpoise.microscope.batch_tokens import check_rows
from counterpoise.model.load import Policy
from counterpoise.sample.continuations import ContinuationStart, sample_continuations
from counterpoise.seeds import seed_for
from counterpoise.types import Prompt, Row
from counterpoise.verify.scores import Verifier, score_responses

BranchKind = Literal["taken", "free", "other"]  # s + o; s; s with a first token that is not o


@dataclass(frozen=True, slots=True)
class Branch:
    """A state to continue from, given by a token of the batch.

    Example:
        Branch(row=3, position=17, kind="taken")
    """

    row: int
    position: int
    kind: BranchKind


def mixed_value(taken: float, free: float, logprob: float) -> float:
    """Eq. 20 from the mean rewards after s + o and after s; nan where p = 1.

    Example:
        >>> mixed_value(taken=1.0, free=0.5, logprob=math.log(0.75))
        2.0
    """
    other_probability = probability_of_others(logprob)
    return (taken - free) / other_probability if other_probability > 0 else math.nan


def probability_of_others(logprob: float) -> float:
    """1 - p, exact also where p is so close to 1 that 1 - exp(log p) would round to 0."""
    return -math.expm1(logprob)


def branch_rewards(
    policy: Policy,
    rows: Sequence[Row],
    branches: Sequence[Branch],
    verifier: Verifier,
    config: SampleConfig,
    *,
    continuations: int,
    seed: int = 0,
) -> NDArray[np.float64]:
    """Rewards of the continuations of every branch, [B, M].

    A state that several branches share is sampled once: s + o of one token is s of the next. Seeds
    depend on the state alone, so a branch's rewards do not depend on the other branches.
    """
    check_branches(rows, branches, config, continuations)
    rewards_BM = np.empty((len(branches), continuations))
    states: dict[tuple[Prompt, bytes, int | None], int] = {}
    starts: list[ContinuationStart] = []
    state_of_branch: dict[int, int] = {}  # branch -> state, for those that are sampled
    for branch_index, branch in enumerate(branches):
        content = rows[branch.row].content
        prefix_length = branch.position + (branch.kind == "taken")
        # A response that is not known to be cut off is taken to have ended.
        has_end = content.finished is not False
        is_finished = has_end and prefix_length == len(content.response_tokens)
        # The response has ended or reached its limit: there is nothing to continue.
        if is_finished or prefix_length == config.max_new_tokens:
            rewards_BM[branch_index] = content.reward
            continue
        excluded_token = (
            int(content.response_tokens[prefix_length]) if branch.kind == "other" else None
        )
        # Equal states of different rollouts are sampled once, but only those of the same problem:
        # another one with the same text may have another answer.
        prefix = np.concatenate((content.prompt_tokens, content.response_tokens[:prefix_length]))
        prefix_bytes = prefix.astype(np.int64).tobytes()
        state_key = (content.problem, prefix_bytes, excluded_token)
        if state_key not in states:
            states[state_key] = len(states)
            digest = blake2b(prefix_bytes, digest_size=16).hexdigest()
            seed_name = f"value/{digest}/{excluded_token}"
            seeds = tuple(
                seed_for(seed, seed_name, index=continuation)
                for continuation in range(continuations)
            )
            limit = config.max_new_tokens - prefix_length
            starts.append(ContinuationStart(branch.row, len(prefix), seeds, limit, excluded_token))
        state_of_branch[branch_index] = states[state_key]
    sampled_SM = _sample_and_verify(policy, rows, starts, verifier, config)
    for branch_index, state_index in state_of_branch.items():
        rewards_BM[branch_index] = sampled_SM[state_index]
    return rewards_BM


def _sample_and_verify(
    policy: Policy,
    rows: Sequence[Row],
    starts: Sequence[ContinuationStart],
    verifier: Verifier,
    config: SampleConfig,
) -> list[list[float]]:
    """Sample the continuations of every start and verify prefix + continuation as one response."""
    contents = [row.content for row in rows]
    sequences = [
        np.concatenate((content.prompt_tokens, content.response_tokens)) for content in contents
    ]
    texts: list[str] = []
    problems: list[Prompt] = []
    for start, responses in zip(
        starts, sample_continuations(policy, sequences, starts, config), strict=True
    ):
        content = contents[start.sequence]
        prefix = sequences[start.sequence][len(content.prompt_tokens) : start.length]
        texts += [
            policy.decode(np.concatenate((prefix, response.tokens))) for response in responses
        ]
        problems += [content.problem] * len(responses)
    rewards = iter(score_responses(verifier, texts, problems).rewards)
    return [[next(rewards) for _ in start.seeds] for start in starts]


def check_branches(
    rows: Sequence[Row], branches: Sequence[Branch], config: SampleConfig, continuations: int
) -> None:
    """Raise an error for branches that cannot be continued, before anything is sampled."""
    check_rows(rows)
    if any(row.content.turns for row in rows):
        raise PoiseError(
            "token values need single-turn responses: episodes of several turns cannot be continued"
        )
    if continuations < 1:
        raise PoiseError("a value needs at least one continuation")
    if config.top_p < 1.0 or config.top_k:
        raise PoiseError(
            "token values need the full distribution: set sample.top_p=1 and sample.top_k=0"
        )
    if max(row.num_tokens for row in rows) > config.max_new_tokens:
        raise PoiseError(
            f"a rollout is longer than sample.max_new_tokens={config.max_new_tokens}: "
            "set it to the value the rollouts were sampled with"
        )
    for branch in branches:
        if not (0 <= branch.row < len(rows) and 0 <= branch.position < rows[branch.row].num_tokens):
            raise PoiseError(
                f"there is no token {branch.position} in row {branch.row} of a batch of {len(rows)}"
            )
