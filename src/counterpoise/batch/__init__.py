"""Stage 4: which rows share an optimizer step.

A composer is a pure function from rows to index lists; nothing here touches a tensor or a model.
"""

from counterpoise.registry import Registry

COMPOSERS = Registry(
    "composer",
    {
        "grouped": "counterpoise.batch.grouped:compose",
        "shuffled": "counterpoise.batch.shuffled:compose",
        "token_balanced": "counterpoise.batch.token_balanced:compose",
        "zigzag": "counterpoise.batch.zigzag:compose",
        "by_sign": "counterpoise.batch.by_sign:compose",
        "half_groups": "counterpoise.batch.half_groups:compose",
        "whole": "counterpoise.batch.whole:compose",
        "coupled": "counterpoise.batch.coupled:compose",
    },
    own="counterpoise.batch.own:composer",
)

NEED_TOKENS = ("coupled",)  # composers that compare tokens, which rows have in a native run only

# What a rule guarantees beyond a partition: (rows, steps) -> what is broken, "" when nothing is.
PROMISES = Registry(
    "promise",
    {
        "grouped": "counterpoise.batch.grouped:broken",
        "coupled": "counterpoise.batch.grouped:broken",
        "by_sign": "counterpoise.batch.by_sign:broken",
        "half_groups": "counterpoise.batch.half_groups:broken",
    },
)

# What reward balancing selects: (groups, target, tau) -> the groups taken and their kept rows.
UNITS = Registry(
    "balance unit",
    {
        "rollout": "counterpoise.batch.choose_rollouts:choose",
        "group": "counterpoise.batch.choose_groups:choose",
    },
)
