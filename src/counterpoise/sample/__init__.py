"""Stage 1: draw G responses for every prompt."""

from counterpoise.registry import Registry

SAMPLERS = Registry(
    "sampler",
    {
        "native": "counterpoise.sample.native:Native",
        "vllm": "counterpoise.sample.vllm:VLLM",
    },
)
