"""Lower bounds on time: bytes over the measured copy rate, FLOP over the matrix rate.

    decode one token for R rows
        bytes  w W_r  +  k (sum_p S_p + R t)    every weight, key and value is read once
        FLOP   2 W_m R  +  4 H d L sum_r (S_r + t)
        floor  max(bytes / copy rate, FLOP / matrix rate), summed over the tokens t; prefill on top

    one optimizer step over packed rows
        FLOP   6 (W_b N + V D M)  +  12 H d L pairs            forward 2, backward 4
        bytes  b W                                             by the optimizer
        floor  FLOP / matrix rate + bytes / copy rate

    W weights, w bytes of one, b bytes that the optimizer reads and writes for one; W_r those that a
    pass reads completely: all but an input embedding that is not tied to the output layer (a token
    reads one row of it); W_b those in the matrix products of the body, W_m = W_b + V D;
    k bytes of a token's keys and values; S_p tokens of a prompt, which its rows share;
    N tokens of the pass (every prompt once), M response tokens; H heads of size d, L layers;
    pairs (query, key) that causal attention may look at.

The embedding lookup is not a product and does not count. Recomputation (gradient checkpointing,
probabilities of the head) does not count either: the model itself does not require it. Logits do
not count as traffic, because a fused sampler never writes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from counterpoise.lab.speed.clock import device_seconds
from counterpoise.model.load import Policy, require_fast_path

# AdamW on half precision weights: gradient and weight 2 each, master, two moments read and written
OPTIMIZER_BYTES = {2: 2 + 2 + 3 * 8, 4: 4 + 3 * 8}


@dataclass(frozen=True, slots=True)
class DeviceRates:
    """The rates that this device reaches on a plain copy and a plain matrix product."""

    copy: float  # bytes read plus bytes written, per second
    matrix: float  # FLOP per second of a large product in the model's dtype
    dtype: str

    def data(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """The sizes of a model that floors depend on.

    Example (SmolLM2-135M, bfloat16):
        ModelSizes(weights=134_515_008, body=106_168_320, head=28_311_552, layers=30, heads=9,
                   kv_heads=3, head_dim=64, weight_bytes=2)
    """

    weights: int  # all parameters
    body: int  # parameters in matrix products, without the unembedding
    head: int  # V D
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    weight_bytes: int  # bytes of a weight
    lookup: int = 0  # parameters of an input embedding that is not tied to the unembedding

    @property
    def read_weights(self) -> int:
        """Weights that a pass reads completely."""
        return self.weights - self.lookup

    @property
    def cache_bytes_per_token(self) -> int:
        """Bytes of one token's keys and values."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.weight_bytes


@dataclass(frozen=True, slots=True)
class WorkCost:
    """Memory traffic and arithmetic of some work."""

    bytes: float
    flop: float

    def seconds(self, rates: DeviceRates) -> float:
        """The larger of the two times: memory and arithmetic units work in parallel."""
        return max(self.bytes / rates.copy, self.flop / rates.matrix)


def sizes_of(policy: Policy) -> ModelSizes:
    """Read the sizes from a loaded model."""
    decoder = require_fast_path(policy, "a step's shortest possible time")
    # The unembedding is a Linear of its own, even if its weight is tied to the embedding.
    linear_weights = sum(
        module.weight.numel() for module in policy.model.modules() if isinstance(module, nn.Linear)
    )
    head = decoder.unembedding.numel()
    model: Any = policy.model
    embedding = model.get_input_embeddings().weight
    is_tied = embedding is decoder.unembedding
    return ModelSizes(
        weights=policy.num_parameters,
        body=linear_weights - head,
        head=head,
        layers=len(decoder.layers),
        heads=decoder.heads,
        kv_heads=decoder.kv_heads,
        head_dim=decoder.head_dim,
        weight_bytes=decoder.unembedding.element_size(),
        lookup=0 if is_tied else embedding.numel(),
    )


def prefill_cost(sizes: ModelSizes, prompts_P: Sequence[int]) -> WorkCost:
    """The cost of every prompt once; only its last token goes through the unembedding."""
    pairs = sum(S * (S + 1) // 2 for S in prompts_P)
    flop = 2 * (sizes.body * sum(prompts_P) + sizes.head * len(prompts_P))
    cache_bytes = sizes.cache_bytes_per_token * sum(prompts_P)
    return WorkCost(
        sizes.weight_bytes * sizes.read_weights + cache_bytes,
        flop + _attention_flop(sizes, 4) * pairs,
    )


def decode_cost(
    sizes: ModelSizes, prompts_P: Sequence[int], copies: int, tokens_so_far: int
) -> WorkCost:
    """One more token for `copies` rows of every prompt, each with `tokens_so_far` sampled."""
    R = copies * len(prompts_P)
    # The new token's own keys and values are written, which costs as much as reading them.
    response_tokens = R * tokens_so_far
    pairs = copies * sum(prompts_P) + response_tokens
    return WorkCost(
        sizes.weight_bytes * sizes.read_weights
        + sizes.cache_bytes_per_token * (sum(prompts_P) + response_tokens),
        2 * (sizes.body + sizes.head) * R + _attention_flop(sizes, 4) * pairs,
    )


def sampling_floor(
    sizes: ModelSizes, prompts_P: Sequence[int], copies: int, length: int, rates: DeviceRates
) -> float:
    """Seconds for sampling; prefill gives the first token, so `length` - 1 passes follow."""
    passes = [
        decode_cost(sizes, prompts_P, copies, tokens_so_far) for tokens_so_far in range(1, length)
    ]
    return sum(cost.seconds(rates) for cost in [prefill_cost(sizes, prompts_P), *passes])


def update_cost(
    sizes: ModelSizes, groups: Sequence[tuple[int, Sequence[int]]], steps: int = 1
) -> tuple[WorkCost, int]:
    """(cost of the optimizer steps over all rows, tokens of the passes).

    A group is (tokens of its prompt, tokens of each response); a response's last token predicts
    nothing and is left out of the pass.
    """
    N = sum(S + sum(T - 1 for T in responses) for S, responses in groups)
    M = sum(sum(responses) for _, responses in groups)
    pairs = sum(
        S * (S + 1) // 2 + sum((T - 1) * S + (T - 1) * T // 2 for T in responses)
        for S, responses in groups
    )
    flop = 6 * (sizes.body * N + sizes.head * M) + _attention_flop(sizes, 12) * pairs
    return WorkCost(steps * OPTIMIZER_BYTES[sizes.weight_bytes] * sizes.weights, flop), N


def update_floor(cost: WorkCost, rates: DeviceRates) -> float:
    """Seconds of an update; the optimizer waits for the gradient, so the two times add up."""
    return cost.flop / rates.matrix + cost.bytes / rates.copy


def _attention_flop(sizes: ModelSizes, factor: int) -> int:
    """FLOP of one (query, key) pair; forward: 2 for the score, 2 for the sum, per channel."""
    return factor * sizes.heads * sizes.head_dim * sizes.layers


def measure_rates(device: torch.device, dtype: torch.dtype) -> DeviceRates:
    """Time a large copy and a large matrix product on random numbers."""
    cuda = device.type == "cuda"
    generator = torch.Generator(device).manual_seed(0)
    buffer_bytes = 1 << (30 if cuda else 26)  # bytes of one buffer: many times the cache
    sources = [
        torch.randint(0, 255, (buffer_bytes,), dtype=torch.uint8, device=device) for _ in range(2)
    ]
    target = torch.empty_like(sources[0])
    # Two sources in turn, so that none of the reads comes from the cache.
    copies = [partial(target.copy_, source) for source in sources]
    copy_rate = 2 * buffer_bytes / device_seconds(copies, device, 10 if cuda else 3)
    size = 8192 if cuda else 1024
    factors = [
        [torch.randn(size, size, generator=generator, device=device).to(dtype) for _ in range(2)]
        for _ in range(3)
    ]
    out = torch.empty(size, size, dtype=dtype, device=device)
    products = [partial(torch.mm, left, right, out=out) for left, right in factors]
    matrix_rate = 2 * size**3 / device_seconds(products, device, 10 if cuda else 3)
    return DeviceRates(copy_rate, matrix_rate, str(dtype).removeprefix("torch."))
