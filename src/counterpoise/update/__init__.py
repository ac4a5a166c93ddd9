"""Stage 5: plan -> gradient -> new policy."""

from counterpoise.registry import Registry

SURROGATES = Registry(
    "surrogate",
    {
        "grpo": "counterpoise.update.grpo:surrogate",
        "gspo": "counterpoise.update.gspo:surrogate",
        "cispo": "counterpoise.update.cispo:surrogate",
        "reinforce": "counterpoise.update.reinforce:surrogate",
    },
)

AGGREGATIONS = Registry(
    "aggregation",
    {
        "token_mean": "counterpoise.update.aggregate:token_mean",
        "group_token_mean": "counterpoise.update.aggregate:group_token_mean",
        "sequence_mean": "counterpoise.update.aggregate:sequence_mean",
        "constant": "counterpoise.update.aggregate:constant",
    },
)
