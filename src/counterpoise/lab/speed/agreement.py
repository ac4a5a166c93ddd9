"""Measure half precision: sampler against trainer, and the gradient against float32.

    log-probabilities  |sampler - trainer| of every sampled token, before any update
    gradient           |g - g32| / |g32| over all parameters; for each of them cosine(g, g32)

g32 is the gradient of the same loss on the same rows by transformers' own forward, padded, with the
same weights in float32. Some rounding is unavoidable: the yardstick is the same transformers
forward in the model's dtype, and our error must be at most 1.5 times as large.

Random weights give flat logits, and flat logits agree too easily: use a real model (--model).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from counterpoise.config import SampleConfig, UpdateConfig
from counterpoise.lab.speed import update, workload
from counterpoise.lab.speed.clock import release
from counterpoise.lab.speed.machine_sizes import SpeedSetup
from counterpoise.lab.speed.tables import LimitCheck, MeasurementTable
from counterpoise.model.load import Policy, wrap_model
from counterpoise.model.scoring import score_logprobs
from counterpoise.sample.native import sample
from counterpoise.types import Ints, Response, Rollout, Row
from counterpoise.update.optimizer import Optimizer
from counterpoise.update.step import StepSettings, accumulate_gradient

LOGPROB_LIMIT = 0.01  # mean absolute difference in bfloat16
ROUNDING_LIMIT = 1.5  # times the error of transformers' own half precision
GRADIENT_GROUPS = 4
HISTOGRAM_EDGES = (0.0, 1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, float("inf"))
Gradient = dict[str, Tensor]


def measure(setup: SpeedSetup) -> MeasurementTable:
    """Sample rollouts, score them by the trainer, and compare gradients with float32."""
    workload_size = setup.plan.agreement
    policy = workload.load_endless_policy(workload_size.model)
    prompts = workload.encode_texts(
        policy.tokenizer, workload.make_texts(policy.tokenizer, workload_size.prompts)
    )
    seeds_PG = workload.make_seeds(workload_size.prompts, workload_size.group_size)
    responses = sample(policy, prompts, seeds_PG, SampleConfig(max_new_tokens=workload_size.length))
    rows = _rows(prompts, responses)
    config = UpdateConfig(lr=workload.LEARNING_RATE, **setup.update_options)
    gaps, data = _logprob_gaps(policy, rows, config)
    setup.log(f"agreement, log-probabilities: {gaps[0]} on average")
    errors = _gradient_comparison(
        policy, rows[: GRADIENT_GROUPS * workload_size.group_size], config
    )
    release(setup.device)
    our_error, peer_error = errors["ours"]["relative"], errors["transformers"]["relative"]
    limit_checks = []
    if setup.cuda:  # the limits were set on a GPU in bfloat16
        limit_checks.append(LimitCheck("mean |sampler - trainer|", data["mean"], LOGPROB_LIMIT))
        limit_checks.append(
            LimitCheck(
                "gradient error / transformers' error", our_error / peer_error, ROUNDING_LIMIT, "x"
            )
        )
    return MeasurementTable(
        title=f"agreement: {workload_size.model} in {setup.rates.dtype}, {workload_size} tokens",
        columns=("", "mean", "median", "99 %", "largest"),
        rows=[
            ["|sampler - trainer|, log-probability", *gaps],
            *(
                [f"gradient by {name}, relative error", f"{error['relative']:.2e}", "", "", ""]
                for name, error in errors.items()
            ),
            *(
                [
                    f"gradient by {name}, 1 - cosine of a parameter",
                    *_format_spread(1 - error["cosines"]),
                ]
                for name, error in errors.items()
            ),
        ],
        limit_checks=limit_checks,
        notes=[f"mean entropy of the rows' tokens: {data['entropy']:.2f} nats"],
        data={
            "agreement": {
                "logprobs": data,
                "gradient": {
                    name: error | {"cosines": error["cosines"].tolist()}
                    for name, error in errors.items()
                },
            }
        },
    )


def _rows(prompts: Sequence[Ints], responses_PG: Sequence[Sequence[Response]]) -> list[Row]:
    rows = []
    for prompt_index, (prompt, responses) in enumerate(zip(prompts, responses_PG, strict=True)):
        rewards = workload.alternating_rewards(len(responses))
        for response_index, (response, reward) in enumerate(zip(responses, rewards, strict=True)):
            rollout = Rollout(
                f"p{prompt_index}", "", "", "", reward, prompt, response.tokens, response.logprobs
            )
            rows.append(
                Row(
                    f"p{prompt_index}",
                    2 * reward - 1,
                    len(response.tokens),
                    index=response_index,
                    rollout=rollout,
                )
            )
    return rows


def _logprob_gaps(
    policy: Policy, rows: Sequence[Row], config: UpdateConfig
) -> tuple[list[str], dict[str, Any]]:
    by_trainer = np.concatenate(score_logprobs(policy, rows, 1.0, config.micro_tokens))
    by_sampler = np.concatenate([row.content.sampled_logprobs for row in rows])
    gaps = np.abs(by_trainer.astype(np.float64) - by_sampler)
    counts, _ = np.histogram(gaps, bins=HISTOGRAM_EDGES)
    quantiles = {
        str(quantile): float(np.quantile(gaps, quantile))
        for quantile in (0.5, 0.9, 0.99, 0.999, 1.0)
    }
    data = {
        "tokens": len(gaps), "mean": float(gaps.mean()), "quantiles": quantiles,
        "bias": float((by_trainer - by_sampler).mean()), "entropy": float(-by_trainer.mean()),
        "histogram": {"edges": [str(edge) for edge in HISTOGRAM_EDGES], "counts": counts.tolist()},
    }  # fmt: skip
    return _format_spread(gaps), data


def _gradient_comparison(
    policy: Policy, rows: Sequence[Row], config: UpdateConfig
) -> dict[str, dict[str, Any]]:
    """Errors of our gradient and of transformers', both in the model's dtype, against float32."""
    float32_policy = wrap_model(policy.name, copy.deepcopy(policy.model).float(), policy.tokenizer)
    update.padded_step(float32_policy, None, rows, config)
    reference = _take_gradient(float32_policy)
    del float32_policy  # the float32 copy is large: free it before the next backward pass
    our_gradient = _native_gradient(policy, rows, config)
    update.padded_step(policy, None, rows, config)
    return {
        "ours": gradient_errors(our_gradient, reference),
        "transformers": gradient_errors(_take_gradient(policy), reference),
    }


def _native_gradient(policy: Policy, rows: Sequence[Row], config: UpdateConfig) -> Gradient:
    """The gradient as a step computes it: summed over passes in the optimizer's float32 masters."""
    optimizer = Optimizer(policy.model, config)
    accumulate_gradient(
        policy,
        rows,
        StepSettings(config, temperature=1.0, max_new_tokens=1),
        after_pass=optimizer.collect_gradients,
    )
    optimizer.collect_gradients()
    masters = zip(policy.model.named_parameters(), optimizer.masters, strict=True)
    gradient = {
        name: master.grad.clone() for (name, _), master in masters if master.grad is not None
    }
    optimizer.zero_grad()
    return gradient


def _take_gradient(policy: Policy) -> Gradient:
    """Take the gradients in float32, and clear them from the weights."""
    gradient = {}
    for name, weight in policy.model.named_parameters():
        if weight.grad is not None:
            gradient[name] = weight.grad.float()
            weight.grad = None
    return gradient


def gradient_errors(gradient: Gradient, reference: Gradient) -> dict[str, Any]:
    """The relative error of the whole gradient, and the cosine for every parameter."""
    if gradient.keys() != reference.keys():
        raise AssertionError("the two gradients have different parameters")
    squared_error = sum(
        float((gradient[name] - reference[name]).double().square().sum()) for name in reference
    )
    squared_norm = sum(float(reference[name].double().square().sum()) for name in reference)
    cosines = [
        float(
            torch.cosine_similarity(
                gradient[name].double().flatten(), reference_gradient.double().flatten(), dim=0
            )
        )
        for name, reference_gradient in reference.items()
    ]
    worst = min(zip(cosines, reference, strict=True))
    return {
        "relative": (squared_error / squared_norm) ** 0.5,
        "cosines": np.array(cosines),
        "worst": worst[1],
    }


def _format_spread(values: np.ndarray) -> list[str]:
    """Mean, median, 99 % quantile and maximum."""
    numbers = (values.mean(), *np.quantile(values, (0.5, 0.99, 1.0)))
    return [f"{number:.2e}" for number in numbers]
