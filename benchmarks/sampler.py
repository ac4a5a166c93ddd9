"""The native sampler against transformers' `generate`: same model, same prompts, one run.

Two kinds of work for every batch size:
    equal   both decode exactly --length tokens for every row, end tokens ignored
    real    both stop at the end token; only tokens up to it count

The two take turns, --rounds times each, and the medians are compared: the machine may be noisy,
the ratio is what matters.

    python benchmarks/sampler.py
    python benchmarks/sampler.py --batches 16x8 --rounds 9 --json sampler.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from counterpoise.config import ModelConfig, SampleConfig
from counterpoise.policy.load import Policy, load_policy
from counterpoise.sample.native import sample
from counterpoise.seeds import seed_for
from counterpoise.task.word_problems import problem
from counterpoise.types import Ints

BATCHES = ["1x1", "2x1", "1x8", "4x8", "16x8", "32x8", "64x8"]


def native(policy: Policy, prompts: list[Ints], copies: int, length: int, equal: bool) -> int:
    """Sample; returns the tokens that count."""
    if equal:
        policy = replace(policy, end_tokens=(-1,))
    seeds = [[seed_for(0, "bench", p, g) for g in range(copies)] for p in range(len(prompts))]
    responses = sample(policy, prompts, seeds, SampleConfig(max_new_tokens=length))
    return sum(len(r.tokens) for group in responses for r in group)


def generate(policy: Policy, prompts: list[Ints], copies: int, length: int, equal: bool) -> int:
    """The same by transformers: left-padded prompts, dynamic cache, pure sampling."""
    pad, end = policy.tokenizer.pad_token_id, policy.end_tokens[0]
    longest = max(map(len, prompts))
    ids = torch.full((len(prompts), longest), pad)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.from_numpy(prompt.astype(np.int64))
        mask[row, longest - len(prompt) :] = 1
    model: Any = policy.model
    out = model.generate(
        input_ids=ids.to(policy.device), attention_mask=mask.to(policy.device), do_sample=True,
        temperature=1.0, top_k=0, top_p=1.0, num_return_sequences=copies, max_new_tokens=length,
        min_new_tokens=length if equal else 1, pad_token_id=pad,
    )  # fmt: skip
    drawn = out[:, longest:].cpu()
    if equal:
        return drawn.numel()
    ended = (drawn == end).int().cumsum(dim=1)
    return int(((ended == 0) | ((drawn == end) & (ended == 1))).sum())


def speed(work: Callable[..., int], *arguments: Any) -> float:
    """Tokens per second of one call."""
    start = time.perf_counter()
    tokens = work(*arguments)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return tokens / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--batches", nargs="+", default=BATCHES, help="PROMPTSxRESPONSES")
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    policy = load_policy(ModelConfig(name=args.model, dtype="float32"))
    print(
        f"{policy.num_parameters / 1e6:.1f} M parameters on {policy.device}, "
        f"{torch.get_num_threads()} threads"
    )
    print(f"{'batch':>8} {'work':>6} {'native tok/s':>13} {'generate tok/s':>15} {'ratio':>6}")
    rows = []
    for batch in args.batches:
        P, G = map(int, batch.split("x"))
        prompts = [policy.encode(problem("heldout", i, (3,)).problem) for i in range(P)]
        for equal in (True, False):
            arguments = (policy, prompts, G, args.length if equal else 112, equal)
            ours, theirs = [], []
            for turn in range(args.rounds + 1):
                pair = speed(native, *arguments), speed(generate, *arguments)
                if turn:  # the first of each warms up
                    ours.append(pair[0])
                    theirs.append(pair[1])
            a, b = statistics.median(ours), statistics.median(theirs)
            work = "equal" if equal else "real"
            rows.append({"batch": batch, "work": work, "native": a, "generate": b, "ratio": a / b})
            print(f"{batch:>8} {work:>6} {a:13,.0f} {b:15,.0f} {a / b:6.2f}", flush=True)
    print(f"smallest ratio: {min(r['ratio'] for r in rows):.2f}")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
