"""Stage 5: plan -> gradient -> new policy."""

from counterpoise.registry import Registry

SURROGATES = Registry(
    "surrogate",
    {
        "grpo": "counterpoise.update.grpo:surrogate",
        "gspo": "counterpoise.update.gspo:surrogate",
        "cispo": "counterpoise.update.cispo:surrogate",
        "reinforce": "counterpoise.update.reinforce:surrogate",
        "unclipped": "counterpoise.update.unclipped:surrogate",
    },
)

IMPORTANCE = Registry(
    "importance weight",
    {
        "off": "counterpoise.update.importance:off",
        "token": "counterpoise.update.importance:token",
        "sequence": "counterpoise.update.importance:sequence",
    },
)

TRAJECTORIES = Registry(
    "trajectory weight",
    {
        "off": "counterpoise.update.trajectory:off",
        "min_replace": "counterpoise.update.trajectory:min_replace",
        "orthogonal": "counterpoise.update.trajectory:orthogonal",
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
