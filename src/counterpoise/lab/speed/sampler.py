"""Measure the sampler: ours, transformers' `generate`, and the floor of bytes and FLOP.

All have the same prompts, the same number of rows and exactly the same number of tokens. With
`--peers vllm`, vLLM samples them too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from counterpoise.config import SampleConfig
from counterpoise.lab.speed import workload
from counterpoise.lab.speed.clock import PeakMemory, time_in_turns
from counterpoise.lab.speed.floors import sampling_floor, sizes_of
from counterpoise.lab.speed.machine_sizes import SpeedSetup
from counterpoise.lab.speed.tables import (
    LimitCheck,
    MeasurementTable,
    format_gigabytes,
    format_seconds,
)
from counterpoise.lab.speed.vllm_peer import VLLMPeer
from counterpoise.model.load import Policy
from counterpoise.sample.native import sample
from counterpoise.types import Ints

SAMPLING_LIMIT = 0.30  # seconds, 64 x 8 x 128 on an H200
PEER_ROWS = 512  # most rows for `generate`, which pads and repeats every prompt


def sample_native(policy: Policy, prompts: Sequence[Ints], copies: int, length: int) -> int:
    """Sample with our sampler; returns the number of tokens."""
    seeds_PG = workload.make_seeds(len(prompts), copies)
    responses = sample(policy, prompts, seeds_PG, SampleConfig(max_new_tokens=length))
    return sum(len(response.tokens) for group in responses for response in group)


def sample_transformers(
    policy: Policy, prompts: Sequence[Ints], copies: int, length: int, *, full_length: bool = True
) -> int:
    """The same by transformers: left-padded prompts, dynamic cache, pure sampling.

    `full_length` decodes every row to the end; else a row's tokens count up to its end token.
    """
    pad_token, end_token = policy.tokenizer.pad_token_id, policy.tokenizer.eos_token_id
    longest = max(map(len, prompts))
    input_ids = torch.full((len(prompts), longest), pad_token)
    attention_mask = torch.zeros_like(input_ids)
    for row, prompt in enumerate(prompts):
        input_ids[row, longest - len(prompt) :] = torch.from_numpy(prompt.astype(np.int64))
        attention_mask[row, longest - len(prompt) :] = 1
    model: Any = policy.model
    output = model.generate(
        input_ids=input_ids.to(policy.device),
        attention_mask=attention_mask.to(policy.device),
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        num_return_sequences=copies,
        max_new_tokens=length,
        min_new_tokens=length if full_length else 1,
        pad_token_id=pad_token,
    )
    sampled_tokens = output[:, longest:].cpu()
    if full_length:
        return sampled_tokens.numel()
    # Count the tokens before the first end token, and that token itself.
    end_count = (sampled_tokens == end_token).int().cumsum(dim=1)
    return int(((end_count == 0) | ((sampled_tokens == end_token) & (end_count == 1))).sum())


def profile_workload(setup: SpeedSetup, folder: Path) -> Callable[[], object]:
    """One call of our sampler at the size of the compared iteration, for `--profile`."""
    iteration = setup.plan.iteration
    policy = workload.load_endless_policy(iteration.model)
    prompts = workload.encode_texts(
        policy.tokenizer, workload.make_texts(policy.tokenizer, iteration.prompts)
    )
    return partial(sample_native, policy, prompts, iteration.group_size, iteration.length)


def measure(setup: SpeedSetup) -> MeasurementTable:
    """Time sampling at every number of rollouts of the plan."""
    iteration = setup.plan.iteration
    policy = workload.load_endless_policy(iteration.model)
    vllm_peer = VLLMPeer(policy, iteration.length) if "vllm" in setup.peers else None
    points = [_measure_point(setup, policy, rollouts, vllm_peer) for rollouts in setup.plan.sampler]
    if vllm_peer:
        vllm_peer.close()
    main_points = [data for _, data in points if data["rollouts"] == iteration.rollouts]
    return MeasurementTable(
        title=f"sampler: {iteration.model}, {iteration.length} tokens a rollout, "
        f"groups of {iteration.group_size}",
        columns=(
            "rollouts", "ours", "spread", "floor", "over floor", "a token", "tokens/s", "peak",
            "generate", "ours is", *(("vLLM", "ours is") if vllm_peer else ()),
        ),
        rows=[row for row, _ in points],
        limit_checks=[
            LimitCheck(f"sampling of {iteration}", data["ours"]["median"], SAMPLING_LIMIT, "s")
            for data in main_points
            if setup.cuda
        ],
        notes=["'a token': one token of every row; peak: of the sampler alone, without weights"],
        data={"sampler": [data for _, data in points]},
    )  # fmt: skip


def _measure_point(
    setup: SpeedSetup, policy: Policy, rollouts: int, vllm_peer: VLLMPeer | None
) -> tuple[list[str], dict[str, Any]]:
    G, T = setup.plan.iteration.group_size, setup.plan.iteration.length
    texts = workload.make_texts(policy.tokenizer, rollouts // G)
    prompts = workload.encode_texts(policy.tokenizer, texts)
    samplers = {"ours": partial(sample_native, policy, prompts, G, T)}
    with PeakMemory(setup.device) as peak:  # the first call also warms up
        _check_token_count(samplers["ours"](), rollouts * T)
    # The peer warms up on 8 tokens only: a full call takes seconds.
    if rollouts <= PEER_ROWS:
        samplers["generate"] = partial(sample_transformers, policy, prompts, G, T)
        _check_token_count(sample_transformers(policy, prompts, G, 8), rollouts * 8)
    if vllm_peer:
        samplers["vllm"] = partial(vllm_peer.sample, prompts, G, T)
        _check_token_count(samplers["vllm"](), rollouts * T)
    timings = time_in_turns(samplers, setup.device, setup.plan.sampler_repeats, warm_up=0)
    ours, peer, vllm = timings["ours"], timings.get("generate"), timings.get("vllm")
    floor = sampling_floor(sizes_of(policy), [len(prompt) for prompt in prompts], G, T, setup.rates)
    setup.log(f"sampler, {rollouts:,} rollouts: {ours.median:.3f} s")
    row = [
        f"{rollouts:,}",
        format_seconds(ours.median),
        f"{100 * ours.spread:.0f} %",
        format_seconds(floor),
        f"{ours.median / floor:.1f}x",
        f"{1e3 * ours.median / T:.2f} ms",
        f"{rollouts * T / ours.median:,.0f}",
        format_gigabytes(peak.reserved),
        format_seconds(peer.median) if peer else "-",
        f"{peer.median / ours.median:.1f}x" if peer else "-",
        *((format_seconds(vllm.median), f"{vllm.median / ours.median:.1f}x") if vllm else ()),
    ]
    data = {"rollouts": rollouts, "length": T, "ours": ours.data(), "floor": floor}
    peer_data = {"generate": peer.data() if peer else None, "vllm": vllm.data() if vllm else None}
    return row, data | peer_data | peak.data()


def _check_token_count(sampled: int, expected: int) -> None:
    if sampled != expected:
        raise AssertionError(f"{sampled} tokens were sampled, not {expected}")
