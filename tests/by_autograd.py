"""A step as its formula says: transformers' own forward, row by row, whole logits, autograd."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from counterpoise.config import UpdateConfig
from counterpoise.credit.view import PolicyReader
from counterpoise.model.fit_memory import FittedSize
from counterpoise.model.load import Policy
from counterpoise.types import Ints, Row, StepResult
from counterpoise.update.optimizer import Optimizer
from counterpoise.update.passes import EAGER, Passes
from counterpoise.update.rules.bind import BoundRule
from counterpoise.update.step import StepSettings, take_step

TEMPERATURE = 0.8
PLAIN = UpdateConfig(optimizer="sgd", lr=0.0, max_grad_norm=0.0)  # the weights stay


def logprobs_TV(
    policy: Policy, row: Row, prompt: Ints | None = None, model: torch.nn.Module | None = None
) -> Tensor:
    """Log-distributions [T, V] of a row's response, after another prompt or by another model."""
    before = row.content.prompt_tokens if prompt is None else prompt
    ids = torch.from_numpy(np.concatenate((before, row.content.response_tokens)).astype(np.int64))
    logits = (model or policy.model)(ids[None]).logits[0, len(before) - 1 : -1]
    return torch.log_softmax(logits / TEMPERATURE, dim=-1)


def of_tokens(logprobs: Tensor, row: Row) -> Tensor:
    """[T], of the response's own tokens."""
    tokens = torch.from_numpy(row.content.response_tokens.astype(np.int64))
    return logprobs.gather(1, tokens[:, None])[:, 0]


def gradient(loss: Tensor, policy: Policy) -> Tensor:
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, policy.model.parameters())])


def stepped(
    policy: Policy,
    rows: Sequence[Row],
    rule: BoundRule | None,
    config: UpdateConfig = PLAIN,
    *,
    on_policy: bool = False,
    number: int = 0,
    passes: Passes = EAGER,
) -> tuple[StepResult, Tensor]:
    """What a step found, and its gradient."""
    optimizer = Optimizer(policy.model, config)
    seen = Seen(optimizer)
    result = take_step(
        policy,
        optimizer,
        rows,
        StepSettings(config, temperature=TEMPERATURE, max_new_tokens=17, passes=passes),
        observer=seen,
        on_policy=on_policy,
        rule=rule.for_step(number) if rule else None,
    )
    return result, seen.gradient


class Seen:
    """A look that keeps the gradient of a step."""

    gradient: Tensor

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer

    def before_update(self, policy: Policy, rows: Sequence[Row], result: StepResult) -> None:
        self.gradient = torch.cat([p.grad.flatten() for p in self.optimizer.masters])

    def after_update(self, policy: Policy) -> None:
        pass


def reader(policy: Policy, iteration: int = 1, micro: int = 10_000, seed: int = 0) -> PolicyReader:
    return PolicyReader(policy, TEMPERATURE, FittedSize(micro), iteration, seed)


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def told(rows: Sequence[Row]) -> list[Row]:
    """The rows with a problem and an answer, which differ from group to group."""
    return [
        replace(row, rollout=replace(row.content, prompt=f"what is {row.group}", answer=f"{g} 7"))
        for g, row in enumerate(rows)
    ]
