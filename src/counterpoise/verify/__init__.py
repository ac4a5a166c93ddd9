"""Stage 2: response -> reward."""

from counterpoise.registry import Registry

VERIFIERS = Registry(
    "verifier",
    {
        "math": "counterpoise.verify.math:MathVerifier",
        "exact": "counterpoise.verify.exact:ExactVerifier",
    },
    own="counterpoise.verify.own:verifier",
)

REWARDS = Registry(  # beside the verifier's
    "reward",
    {
        "overlong": "counterpoise.verify.overlong:reward",
        "equations": "counterpoise.verify.equations:reward",
    },
    own="counterpoise.verify.own:verifier",
)
