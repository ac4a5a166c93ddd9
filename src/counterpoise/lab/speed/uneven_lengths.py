"""Time the native sampler on responses of uneven length, beside vLLM if asked to.

    length of a row = min(LONGEST, exp(normal))        most are short, a few are long

Both sides sample exactly these lengths for the same prompts, end tokens ignored, and take turns.
More rows than the KV cache holds are part of the measurement: they wait for a place.

    python -m counterpoise.lab.speed.uneven_lengths --model shape:qwen3-1.7b --vllm
    python -m counterpoise.lab.speed.uneven_lengths --prompts 8 --mean 20 --longest 100
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from counterpoise.config import SampleConfig
from counterpoise.lab.speed import workload
from counterpoise.lab.speed.clock import PeakMemory, time_in_turns
from counterpoise.lab.speed.machine_sizes import time_python_loop
from counterpoise.lab.speed.vllm_peer import VLLMPeer
from counterpoise.model.load import Policy
from counterpoise.sample.kv_cache import Fork
from counterpoise.sample.native import decode_forks
from counterpoise.terminal import echo
from counterpoise.types import Ints

SPREAD = 1.0  # standard deviation of the logarithm of a length


def draw_lengths(rows: int, mean: float, longest: int) -> list[int]:
    """Lengths of a log-normal distribution with this mean, before the longest are cut."""
    rng = np.random.default_rng(0)
    lengths = rng.lognormal(np.log(mean) - SPREAD**2 / 2, SPREAD, rows)
    return [int(length) for length in lengths.round().clip(1, longest)]


def sample_native(
    policy: Policy, prompts: Sequence[Ints], lengths: Sequence[int], copies: int
) -> int:
    """Sample rows of these lengths with our sampler; returns the number of tokens."""
    forks = [
        Fork(row // copies, len(prompts[row // copies]), seed=row, max_new_tokens=length)
        for row, length in enumerate(lengths)
    ]
    return sum(
        len(response.tokens) for response in decode_forks(policy, prompts, forks, SampleConfig())
    )


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Measure, print a line for each sampler, and return the median seconds by name."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--mean", type=float, default=700)
    parser.add_argument("--longest", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--vllm", action="store_true")
    args = parser.parse_args(arguments)
    policy = workload.load_endless_policy(args.model)
    texts = workload.make_texts(policy.tokenizer, args.prompts)
    prompts = workload.encode_texts(policy.tokenizer, texts)
    lengths = draw_lengths(args.prompts * args.group_size, args.mean, args.longest)
    samplers: dict[str, Callable[[], int]] = {
        "ours": partial(sample_native, policy, prompts, lengths, args.group_size)
    }
    peer = VLLMPeer(policy, args.longest) if args.vllm else None
    if peer:
        samplers["vLLM"] = partial(peer.sample_lengths, prompts, lengths, args.group_size)
    echo(
        f"{args.model} on {policy.device}: {len(lengths)} rows, {sum(lengths):,} tokens, mean "
        f"{np.mean(lengths):.0f}, longest {max(lengths):,}; 20 million additions in Python take "
        f"{time_python_loop():.2f} s"
    )
    with PeakMemory(policy.device) as peak:  # the first call also warms up
        for name, sampler in samplers.items():
            if (sampled := sampler()) != sum(lengths):
                raise AssertionError(f"{name} sampled {sampled} tokens, not {sum(lengths)}")
    timings = time_in_turns(samplers, policy.device, args.rounds, warm_up=0)
    for name, timing in timings.items():
        echo(
            f"{name:>5} {timing.median:8.2f} s, spread {100 * timing.spread:.0f} %, "
            f"{sum(lengths) / timing.median:,.0f} tokens/s"
        )
    echo(f"peak {peak.reserved / 1e9:.1f} GB")
    if peer:
        peer.close()
    return {name: timing.median for name, timing in timings.items()}


if __name__ == "__main__":
    main()
