"""How many GPUs a run needs under verl: FSDP over n GPUs, the sampler on the same ones.

    states       16 bytes a parameter over n GPUs: float32 weights, gradient, two AdamW moments
    gathered     bfloat16 weights of the largest unit that FSDP gathers, twice: in use, and coming
    activations  2 bytes * micro_tokens * layers * (10 hidden + 3 intermediate); with checkpointing
                 2 bytes * micro_tokens * (layers * hidden + 10 hidden + 3 intermediate)
    logits       10 bytes * micro_tokens * vocabulary: bfloat16, float32, and the float32 gradient
    sampler      2 bytes a parameter: a whole copy on each GPU
    keys/values  2 bytes * 2 * layers * key/value heads * head size, a token

Training needs states + gathered + activations + logits; sampling needs states + sampler + keys and
values, of which there must be room for a row of full length on each GPU. A GPU counts for nine
tenths of what it has: attention workspaces, NCCL and the allocator take the rest.
"""

from __future__ import annotations

from dataclasses import dataclass

from counterpoise.config import RunConfig
from counterpoise.run.estimate import GB, Shape

SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
USABLE = 0.9


@dataclass(frozen=True, slots=True)
class Need:
    """GB a GPU.

    Example:
        Need(states=13.8, gathered=0.62, activations=2.1, logits=14.0, sampler=3.4, row=1.06)
    """

    states: float
    gathered: float
    activations: float
    logits: float
    sampler: float
    row: float  # keys and values of one rollout of full length

    @property
    def training(self) -> float:
        return self.states + self.gathered + self.activations + self.logits

    @property
    def sampling(self) -> float:
        return self.states + self.sampler + self.row

    def rows(self, memory: float) -> int:
        """Rollouts of full length that a GPU of so many GB samples at once."""
        return int((USABLE * memory - self.states - self.sampler) / self.row)


def need(config: RunConfig, shape: Shape, gpus: int) -> Need:
    tokens = pass_tokens(config)
    layer = 10 * shape.hidden + 3 * shape.intermediate
    kept = shape.layers * layer
    if config.update.checkpointing:
        kept = shape.layers * shape.hidden + layer
    length = config.sample.max_prompt_tokens + config.sample.max_new_tokens
    largest = shape.vocabulary * shape.hidden * (1 if shape.tied else 2)
    return Need(
        states=16 * shape.parameters / gpus / GB,
        gathered=0.0 if gpus == 1 else 2 * 2 * largest / GB,
        activations=2 * tokens * kept / GB,
        logits=10 * tokens * shape.vocabulary / GB,
        sampler=2 * shape.parameters / GB,
        row=2 * 2 * length * shape.layers * shape.kv_heads * shape.head_dim / GB,
    )


def pass_tokens(config: RunConfig) -> int:
    """Tokens of one pass: a row of full length must fit, whatever micro_tokens says."""
    return max(
        config.update.micro_tokens, config.sample.max_prompt_tokens + config.sample.max_new_tokens
    )


def gpus_for(config: RunConfig, shape: Shape, memory: float = 80.0) -> int:
    """The fewest GPUs of so many GB; 0 where no number of them helps."""
    for gpus in SIZES:
        found = need(config, shape, gpus)
        if max(found.training, found.sampling) <= USABLE * memory:
            return gpus
    return 0
