"""Estimate how many GPUs a run needs under verl: FSDP over n GPUs, the sampler on the same ones.

    training states    16 bytes per parameter over n GPUs: float32 weights, gradient, AdamW moments
    gathered weights   bfloat16 weights of the largest unit that FSDP gathers, twice: the unit in
                       use and the next one, which is prefetched
    activations        2 bytes * micro_tokens * layers * (10 hidden + 3 intermediate);
                       with checkpointing
                       2 bytes * micro_tokens * (layers * hidden + 10 hidden + 3 intermediate)
    logits             10 bytes * micro_tokens * vocabulary: bfloat16, float32, float32 gradient
    sampler weights    2 bytes per parameter: a full copy on each GPU
    KV cache           2 bytes * 2 * layers * key/value heads * head size, for each token

Training needs states + gathered weights + activations + logits. Sampling needs states + sampler
weights + KV cache, with room for at least one row of full length on each GPU. Only nine tenths of a
GPU's memory count: attention workspaces, NCCL and the allocator take the rest.
"""

from __future__ import annotations

from dataclasses import dataclass

from counterpoise.config import RunConfig
from counterpoise.model.decoder_shape import DecoderShape
from counterpoise.run.estimate import GB

GPU_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128)
USABLE_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """What a run needs on each GPU, in GB.

    Example:
        GpuMemory(training_states=13.8, gathered_weights=0.62, activations=2.1, logits=14.0,
                  sampler_weights=3.4, row_kv_cache=1.06)
    """

    training_states: float
    gathered_weights: float
    activations: float
    logits: float
    sampler_weights: float
    row_kv_cache: float  # KV cache of one rollout of full length

    @property
    def training_total(self) -> float:
        return self.training_states + self.gathered_weights + self.activations + self.logits

    @property
    def sampling_total(self) -> float:
        return self.training_states + self.sampler_weights + self.row_kv_cache


def estimate_gpu_memory(config: RunConfig, shape: DecoderShape, gpus: int) -> GpuMemory:
    tokens = tokens_per_pass(config)
    layer_values = 10 * shape.hidden + 3 * shape.intermediate  # stored for backward, per token
    stored_values = shape.layers * layer_values
    if config.update.checkpointing:
        # Only each layer's input is stored; one layer at a time is recomputed.
        stored_values = shape.layers * shape.hidden + layer_values
    row_length = config.sample.max_prompt_tokens + config.sample.max_new_tokens
    # Embedding and output layer are gathered together, and larger than a transformer layer.
    largest_unit = shape.vocabulary * shape.hidden * (1 if shape.tied else 2)
    return GpuMemory(
        training_states=16 * shape.parameters / gpus / GB,
        gathered_weights=0.0 if gpus == 1 else 2 * 2 * largest_unit / GB,
        activations=2 * tokens * stored_values / GB,
        logits=10 * tokens * shape.vocabulary / GB,
        sampler_weights=2 * shape.parameters / GB,
        row_kv_cache=2 * 2 * row_length * shape.layers * shape.kv_heads * shape.head_dim / GB,
    )


def tokens_per_pass(config: RunConfig) -> int:
    """Tokens of one pass: a row of full length must fit, however small micro_tokens is."""
    return max(
        config.update.micro_tokens, config.sample.max_prompt_tokens + config.sample.max_new_tokens
    )


def fewest_gpus(config: RunConfig, shape: DecoderShape, memory_gb: float = 80.0) -> int:
    """The fewest GPUs of `memory_gb` each that can hold the run; 0 if no number is enough."""
    for gpus in GPU_COUNTS:
        memory = estimate_gpu_memory(config, shape, gpus)
        if max(memory.training_total, memory.sampling_total) <= USABLE_SHARE * memory_gb:
            return gpus
    return 0
