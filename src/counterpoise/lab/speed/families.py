"""Check every model family against transformers, autograd and an uninterrupted run.

    forward     log-probabilities of response tokens against the model's own forward pass, row by
                row: the largest difference, relative to the largest log-probability
    gradient    of a weighted sum of them with respect to all parameters: the largest difference,
                relative to the largest entry
    sampler     log-probabilities that the sampler stored against the forward pass: largest gap
    coupling    what a step of the output layer does to every token, split by the tokens that cause
                it, against the same sum by autograd through that layer: relative
    resumed     three iterations trained, against two, a checkpoint and one more: weights equal bit
                for bit

All in float32, with tiny random weights (family_models.py).
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from counterpoise.config import RunConfig, SampleConfig
from counterpoise.config.load import config_from_tables
from counterpoise.lab.speed.family_models import FAMILIES, tiny_model
from counterpoise.lab.speed.machine_sizes import SpeedSetup
from counterpoise.lab.speed.tables import LimitCheck, MeasurementTable
from counterpoise.loop import train
from counterpoise.microscope.batch_tokens import take_snapshot
from counterpoise.microscope.coupling import decompose
from counterpoise.model.general import GeneralDecoder
from counterpoise.model.head import cap_logits
from counterpoise.model.load import (
    EMBEDDED_FOLDER,
    Policy,
    save_policy,
    silence_libraries,
    wrap_model,
)
from counterpoise.model.scoring import forward
from counterpoise.sample.native import sample
from counterpoise.types import Ints, Rollout, Row

FORWARD_LIMIT, SAMPLER_LIMIT = 1e-5, 1e-4
MAX_NEW_TOKENS = 24  # longer than the sliding windows
RUN_TABLES: dict[str, dict[str, Any]] = {
    "loop": {"iterations": 3, "checkpoint_every": 1},
    "task": {"levels": [1], "size": 24, "heldout": 4},
    "sample": {"prompts": 3, "group_size": 4, "max_new_tokens": MAX_NEW_TOKENS},
    "batch": {"steps": 2},
    "balance": {"tau": 0.0},
    # Without a time limit the reward function runs in this process. Its own process would import
    # torch, with this module, in each of the runs.
    "verify": {
        "name": "counterpoise.lab.speed.families:parity_reward",
        "reward_timeout_seconds": 0,
    },
    "evaluate": {"prompts": 0},
}


@dataclass(frozen=True, slots=True)
class FamilyCheck:
    """The measurements of one family; errors are relative, see the module's docstring."""

    family: str
    path: str  # "fast" or "general"
    forward: float
    gradient: float
    sampler: float
    coupling: float
    resumed: bool | None = None  # None: no run was made


def measure(setup: SpeedSetup) -> MeasurementTable:
    """Check all families, one after the other."""
    checks = []
    for family in FAMILIES:
        with tempfile.TemporaryDirectory() as folder:
            policy = make_policy(family)
            check = check_family(policy)
            check = replace(check, resumed=resumes_exactly(policy, Path(folder)))
        setup.log(f"families: {family}, the {check.path} path")
        checks.append(check)
    return MeasurementTable(
        title=f"families: {len(checks)} tiny random models in float32",
        columns=("family", "path", "forward", "gradient", "sampler", "coupling", "resumed"),
        rows=[
            [
                check.family,
                check.path,
                *(f"{error:.0e}" for error in (check.forward, check.gradient, check.sampler)),
                f"{check.coupling:.0e}",
                "bit for bit" if check.resumed else "differs",
            ]
            for check in checks
        ],
        limit_checks=[
            LimitCheck(
                "forward, largest error", max(check.forward for check in checks), FORWARD_LIMIT
            ),
            LimitCheck(
                "gradient, largest error", max(check.gradient for check in checks), FORWARD_LIMIT
            ),
            LimitCheck(
                "sampler, largest gap", max(check.sampler for check in checks), SAMPLER_LIMIT
            ),
            LimitCheck(
                "coupling, largest error", max(check.coupling for check in checks), FORWARD_LIMIT
            ),
            LimitCheck(
                "runs that differ when resumed", sum(not check.resumed for check in checks), 0
            ),
        ],
        data={"families": [asdict(check) for check in checks]},
    )


def make_policy(family: str, path: str = "auto") -> Policy:
    """A tiny random model of the family with the embedded model's tokenizer, on the CPU."""
    from transformers import AutoTokenizer

    silence_libraries()
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED_FOLDER, trust_remote_code=False)
    model = tiny_model(
        family,
        vocabulary=len(tokenizer),
        end_token=tokenizer.eos_token_id,
        pad_token=tokenizer.pad_token_id,
    )
    return wrap_model(family, model, tokenizer, path=path)


def check_family(policy: Policy) -> FamilyCheck:
    """Forward pass, gradient, sampler and coupling of one model."""
    prompts = [policy.encode(text) for text in ("2 + 3", "Ann has 4 apples and buys 12 more.")]
    settings = SampleConfig(prompts=2, group_size=3, max_new_tokens=MAX_NEW_TOKENS)
    responses = sample(policy, prompts, [[1, 2, 3], [4, 5, 6]], settings)
    rows = [
        _row(prompt_number, index, prompt, response.tokens, response.logprobs)
        for prompt_number, (prompt, group) in enumerate(zip(prompts, responses, strict=True))
        for index, response in enumerate(group)
    ]
    model: Any = policy.model
    parameters = [weight for weight in model.parameters() if weight.requires_grad]
    expected_logprobs = torch.cat([own_logprobs(model, row) for row in rows])
    logprobs = forward(policy, rows, 1.0).logprobs_M
    weights = torch.linspace(-1, 1, len(expected_logprobs))
    expected_gradient = torch.autograd.grad(
        expected_logprobs @ weights, parameters, allow_unused=True
    )
    gradient = torch.autograd.grad(logprobs @ weights, parameters, allow_unused=True)
    sampled_logprobs = torch.from_numpy(
        np.concatenate([row.content.sampled_logprobs for row in rows])
    )
    return FamilyCheck(
        family=policy.name,
        path="general" if isinstance(policy.decoder, GeneralDecoder) else "fast",
        forward=relative_error([logprobs], [expected_logprobs]),
        gradient=relative_error(gradient, expected_gradient),
        sampler=float((sampled_logprobs - expected_logprobs.detach()).abs().max()),
        coupling=_coupling_error(policy, rows),
    )


def resumes_exactly(policy: Policy, folder: Path) -> bool:
    """Whether three iterations end in the same weights when the run stops after two of them."""
    save_policy(policy, folder / "model")
    tables = {section: dict(options) for section, options in RUN_TABLES.items()}
    tables["model"] = {"name": str(folder / "model"), "device": "cpu"}
    whole_config, stopped_config = (_config(tables, iterations) for iterations in (3, 2))
    train(whole_config, folder / "whole")
    train(stopped_config, folder / "stopped")
    train(whole_config, folder / "stopped", resume=True)
    from safetensors.torch import load_file

    weights, resumed_weights = (
        load_file(folder / run_name / "model" / "model.safetensors")
        for run_name in ("whole", "stopped")
    )
    first_weights = load_file(folder / "model" / "model.safetensors")
    has_moved = any(
        not torch.equal(weight, weights[name]) for name, weight in first_weights.items()
    )
    return has_moved and all(
        torch.equal(weight, resumed_weights[name]) for name, weight in weights.items()
    )


def parity_reward(responses: Sequence[str], answers: Sequence[str]) -> list[float]:
    """1 for texts of even length: random models solve nothing, but updates need signal."""
    return [float(len(response) % 2 == 0) for response in responses]


def _config(tables: dict[str, dict[str, Any]], iterations: int) -> RunConfig:
    return config_from_tables(tables | {"loop": tables["loop"] | {"iterations": iterations}})


def _row(number: int, index: int, prompt: Ints, tokens: Ints, logprobs: Any) -> Row:
    rollout = Rollout(f"p{number}", f"p{number}", "", "", 0.0, prompt, tokens, logprobs)
    return Row(f"p{number}", float(index - 1), len(tokens), index=index, rollout=rollout)


def own_logprobs(model: Any, row: Row) -> Tensor:
    """Log-probabilities [T] of a response by the model's own forward pass over this row alone."""
    prompt, response = row.content.prompt_tokens, row.content.response_tokens
    tokens = torch.from_numpy(np.concatenate((prompt, response)).astype(np.int64))
    logits = model(input_ids=tokens[None], use_cache=False).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits, dim=-1).gather(1, tokens[len(prompt) :, None])[:, 0]


def _coupling_error(policy: Policy, rows: Sequence[Row]) -> float:
    """The split of a step of the output layer against autograd through that layer."""
    snapshot, decoder = take_snapshot(policy, rows), policy.decoder
    hidden, tokens = snapshot.hidden.double(), snapshot.tokens
    W = decoder.unembedding.detach().double()
    coupling = decompose(
        hidden, W, tokens, snapshot.advantages.double(), snapshot.groups, softcap=decoder.softcap
    )

    def logprob_sum(weight: Tensor, factors: Tensor) -> Tensor:
        logits = cap_logits(hidden @ weight.T, decoder.softcap)
        return (torch.log_softmax(logits, -1).gather(1, tokens[:, None])[:, 0] * factors).sum()

    leaf = W.clone().requires_grad_()
    (step,) = torch.autograd.grad(logprob_sum(leaf, snapshot.advantages.double()), leaf)
    expected = []
    for index in range(len(tokens)):
        one_hot = torch.zeros(len(tokens), dtype=torch.float64)
        one_hot[index] = 1
        (token_gradient,) = torch.autograd.grad(logprob_sum(leaf, one_hot), leaf)
        expected.append((token_gradient * step).sum() / len(tokens))
    parts = coupling.self_push + sum(coupling.parts.values())
    return relative_error([parts], [torch.stack(expected)])


def relative_error(values: Sequence[Tensor | None], expected: Sequence[Tensor | None]) -> float:
    """The largest difference, relative to the largest expected value over all tensors.

    None is the gradient of a weight that was not used. If only one side used it, and its gradient
    there is not 0, the error is 1.
    """
    pairs = []
    for value, target in zip(values, expected, strict=True):
        if value is not None and target is not None:
            pairs.append((value.detach(), target.detach()))
        elif any(tensor is not None and tensor.any() for tensor in (value, target)):
            return 1.0
    largest = max(float(target.abs().max()) for _, target in pairs)
    return max(float((value - target).abs().max()) for value, target in pairs) / largest
