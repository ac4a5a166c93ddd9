"""Stage 3: rewards -> advantages, one function over a group's rewards; token weights on top."""

from counterpoise.registry import Registry

ADVANTAGES = Registry(
    "credit",
    {
        "grpo": "counterpoise.credit.grpo:advantages",
        "dr_grpo": "counterpoise.credit.dr_grpo:advantages",
        "rloo": "counterpoise.credit.rloo:advantages",
        "positive_only": "counterpoise.credit.positive_only:advantages",
    },
)

WEIGHTS = Registry(
    "token weights",
    {
        "uniform": "counterpoise.credit.uniform:weights",
    },
)
