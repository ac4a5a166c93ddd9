"""Stage 3: rewards -> advantages, one function over a group's rewards; token weights on top.

And rules, which look at one optimizer step of stage 5 in place of a batch.
"""

from counterpoise.registry import Registry

ADVANTAGES = Registry(
    "credit",
    {
        "grpo": "counterpoise.credit.grpo:advantages",
        "dr_grpo": "counterpoise.credit.dr_grpo:advantages",
        "rloo": "counterpoise.credit.rloo:advantages",
        "positive_only": "counterpoise.credit.positive_only:advantages",
        "w_reinforce": "counterpoise.credit.w_reinforce:advantages",
    },
)

MIXTURES = Registry(
    "mixture of rewards",
    {
        "sum": "counterpoise.credit.summed:mixed",
        "decoupled": "counterpoise.credit.decoupled:mixed",
    },
)

WEIGHTS = Registry(
    "token weights",
    {
        "uniform": "counterpoise.credit.uniform:weights",
        "cancellation": "counterpoise.credit.cancellation:weights",
        "nthr": "counterpoise.credit.nthr:weights",
        "thr": "counterpoise.credit.thr:weights",
        "high_entropy": "counterpoise.credit.high_entropy:weights",
        "gtpo": "counterpoise.credit.gtpo:weights",
        "shear": "counterpoise.credit.shear:weights",
        "grail": "counterpoise.credit.grail:weights",
        "oar_g": "counterpoise.credit.oar_g:weights",
        "oar_p": "counterpoise.credit.oar_p:weights",
        "rlsd": "counterpoise.credit.rlsd:weights",
        "serl": "counterpoise.credit.serl:weights",
    },
)

RULES = Registry(
    "rule",
    {
        "off": "counterpoise.credit.rules:off",
        "clip_cov": "counterpoise.credit.clip_cov:rule",
        "kl_cov": "counterpoise.credit.kl_cov:rule",
        "sdpg": "counterpoise.credit.sdpg:rule",
    },
)
