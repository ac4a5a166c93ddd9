"""How exact half precision is: sampler against trainer, and a gradient against float32.

    log-probabilities  |sampler - trainer| of every drawn token, before any update
    gradient           |g - g32| / |g32| over all parameters, and the cosine of each parameter's

g32 is the gradient of the same loss on the same rows by transformers' own forward, padded, with the
same weights in float32. Rounding is no fault of ours or theirs: the yardstick is the same
transformers forward in the model's dtype, and ours must not be further off than 1.5 times that.

Random weights give flat logits, and flat logits agree too easily: name a real model by --model.
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
from counterpoise.lab.speed.tables import Bar, MeasurementTable
from counterpoise.model.load import Policy, wrap_model
from counterpoise.model.scoring import score_logprobs
from counterpoise.sample.native import sample
from counterpoise.types import Ints, Response, Rollout, Row
from counterpoise.update.optimizer import Optimizer
from counterpoise.update.step import accumulate

LOGPROB_BAR = 0.01  # mean absolute difference in bfloat16
ROUNDING_BAR = 1.5  # times the error of transformers' own half precision
GRADIENT_GROUPS = 4
HISTOGRAM_EDGES = (
    0.0,
    1e-4,
    1e-3,
    3e-3,
    1e-2,
    3e-2,
    0.1,
    0.3,
    1.0,
    float("inf"),
)  # of the histogram
Gradient = dict[str, Tensor]


def measure(setup: SpeedSetup) -> MeasurementTable:
    job = setup.plan.agreement
    policy = workload.load_endless_policy(job.model)
    prompts = workload.encode_texts(
        policy.tokenizer, workload.make_texts(policy.tokenizer, job.prompts)
    )
    seeds_PG = workload.make_seeds(job.prompts, job.group_size)
    drawn = sample(policy, prompts, seeds_PG, SampleConfig(max_new_tokens=job.length))
    rows = _rows(prompts, drawn)
    config = UpdateConfig(lr=workload.LEARNING_RATE, **setup.update_options)
    gaps, data = _logprobs(policy, rows, config)
    setup.log(f"agreement, log-probabilities: {gaps[0]} on average")
    errors = _gradients(policy, rows[: GRADIENT_GROUPS * job.group_size], config)
    release(setup.device)
    ours, peer = errors["ours"]["relative"], errors["transformers"]["relative"]
    bars = []
    if setup.cuda:
        bars.append(Bar("mean |sampler - trainer|", data["mean"], LOGPROB_BAR))
        bars.append(Bar("gradient error, transformers' being 1", ours / peer, ROUNDING_BAR, "x"))
    return MeasurementTable(
        title=f"agreement: {job.model} in {setup.rates.dtype}, {job} tokens",
        columns=("", "mean", "median", "99 %", "largest"),
        rows=[
            ["|sampler - trainer|, log-probability", *gaps],
            *(
                [f"gradient by {name}, relative error", f"{e['relative']:.2e}", "", "", ""]
                for name, e in errors.items()
            ),
            *(
                [f"gradient by {name}, 1 - cosine of a parameter", *_spread(1 - e["cosines"])]
                for name, e in errors.items()
            ),
        ],
        bars=bars,
        notes=[f"mean entropy of the rows' tokens: {data['entropy']:.2f} nats"],
        data={
            "agreement": {
                "logprobs": data,
                "gradient": {k: e | {"cosines": e["cosines"].tolist()} for k, e in errors.items()},
            }
        },
    )


def _rows(prompts: Sequence[Ints], drawn: Sequence[Sequence[Response]]) -> list[Row]:
    rows = []
    for p, (prompt, responses) in enumerate(zip(prompts, drawn, strict=True)):
        rewards = workload.alternating_rewards(len(responses))
        for i, (response, reward) in enumerate(zip(responses, rewards, strict=True)):
            made = Rollout(f"p{p}", "", "", "", reward, prompt, response.tokens, response.logprobs)
            rows.append(Row(f"p{p}", 2 * reward - 1, len(response.tokens), index=i, rollout=made))
    return rows


def _logprobs(
    policy: Policy, rows: Sequence[Row], config: UpdateConfig
) -> tuple[list[str], dict[str, Any]]:
    by_trainer = np.concatenate(score_logprobs(policy, rows, 1.0, config.micro_tokens))
    by_sampler = np.concatenate([row.content.sampled_logprobs for row in rows])
    gaps = np.abs(by_trainer.astype(np.float64) - by_sampler)
    counts, _ = np.histogram(gaps, bins=HISTOGRAM_EDGES)
    quantiles = {str(q): float(np.quantile(gaps, q)) for q in (0.5, 0.9, 0.99, 0.999, 1.0)}
    data = {
        "tokens": len(gaps), "mean": float(gaps.mean()), "quantiles": quantiles,
        "bias": float((by_trainer - by_sampler).mean()), "entropy": float(-by_trainer.mean()),
        "histogram": {"edges": [str(e) for e in HISTOGRAM_EDGES], "counts": counts.tolist()},
    }  # fmt: skip
    return _spread(gaps), data


def _gradients(
    policy: Policy, rows: Sequence[Row], config: UpdateConfig
) -> dict[str, dict[str, Any]]:
    """Errors of ours and of transformers' own, both in the model's dtype, against float32."""
    exact = wrap_model(policy.name, copy.deepcopy(policy.model).float(), policy.tokenizer)
    update.padded_step(exact, None, rows, config)
    reference = _taken(exact)
    del exact
    ours = _ours(policy, rows, config)
    update.padded_step(policy, None, rows, config)
    return {
        "ours": gradient_errors(ours, reference),
        "transformers": gradient_errors(_taken(policy), reference),
    }


def _ours(policy: Policy, rows: Sequence[Row], config: UpdateConfig) -> Gradient:
    """As a step takes it: passes add up in the optimizer's float32 masters."""
    optimizer = Optimizer(policy.model, config)
    accumulate(
        policy, rows, config, temperature=1.0, max_new_tokens=1, after_pass=optimizer.collect
    )
    optimizer.collect()
    masters = zip(policy.model.named_parameters(), optimizer.masters, strict=True)
    grads = {name: master.grad.clone() for (name, _), master in masters if master.grad is not None}
    optimizer.zero_grad()
    return grads


def _taken(policy: Policy) -> Gradient:
    """The gradients, in float32; the weights are left without."""
    grads = {}
    for name, weight in policy.model.named_parameters():
        if weight.grad is not None:
            grads[name] = weight.grad.float()
            weight.grad = None
    return grads


def gradient_errors(gradient: Gradient, reference: Gradient) -> dict[str, Any]:
    """{relative error of the whole gradient, cosine of every parameter's [names]}."""
    if gradient.keys() != reference.keys():
        raise AssertionError("the two gradients are of different parameters")
    square = sum(float((gradient[n] - reference[n]).double().square().sum()) for n in reference)
    norm = sum(float(reference[n].double().square().sum()) for n in reference)
    cosines = [
        float(torch.cosine_similarity(gradient[n].double().flatten(), of.double().flatten(), dim=0))
        for n, of in reference.items()
    ]
    worst = min(zip(cosines, reference, strict=True))
    return {"relative": (square / norm) ** 0.5, "cosines": np.array(cosines), "worst": worst[1]}


def _spread(values: np.ndarray) -> list[str]:
    """Mean, median, 99 % quantile and maximum."""
    numbers = (values.mean(), *np.quantile(values, (0.5, 0.99, 1.0)))
    return [f"{number:.2e}" for number in numbers]
