"""The ways of giving credit as arms: what the registries hold, and a table of what they do not.

    advantage    another A for the rollout
    weights      A w: another share for each of its tokens
    settings     the same at other settings than its own
    step         the optimizer step weighs, clips, adds or gathers otherwise; A w is as it was
    sampling     other rewards or other groups: only training shows it

Everything else is the demo's without RB, so that all arms see the same batches: GRPO's advantage,
uniform weights, whole groups (QB), four steps. An advantage that is another one times one number is
left out: that is a learning rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from counterpoise.variants import ADVANTAGES, STEP_RULES, TOKEN_WEIGHTS, TRAJECTORY_WEIGHTS

ArmKind = Literal["advantage", "weights", "settings", "step", "sampling"]
WEIGHTED_KINDS = ("weights", "settings")
EXPLICIT_KINDS = (
    "advantage",
    *WEIGHTED_KINDS,
)  # kinds whose credit of a token, A w, is known before the step
BASELINE = "uniform"
COMMON_OPTIONS = ("balance.tau=0",)
NO_OP_NAMES = ("off", BASELINE)  # entries of the registries that do nothing
GROUP_SIZE = 8  # rollouts of a group, to tell advantages apart by
WEIGHTS_AT_SETTINGS = {  # weights at other settings than their own
    "cancellation_1": ("cancellation", "strength=1"),
    "cancellation_batch": ("cancellation", "scope=batch"),
    "shear_16": ("shear", "width=16", "stride=4"),
    "grail_both": ("grail", "which=both"),
}
REQUIRED_OPTIONS = {  # what a method cannot do without; each has an arm of its own below
    "min_replace": ("update.surrogate=reinforce",),
    "orthogonal": ("update.surrogate=reinforce",),
    "kl_cov": ("update.surrogate=unclipped",),
}
UNREGISTERED_ARMS: dict[
    str, tuple[ArmKind, tuple[str, ...]]
] = {  # what is in no registry of credit
    "coupled": ("step", ("batch.composer=coupled",)),
    "reinforce": ("step", ("update.surrogate=reinforce",)),
    "unclipped": ("step", ("update.surrogate=unclipped",)),
    "decoupled": ("sampling", ('verify.also=["equations"]', "credit.mixture=decoupled")),
    "summed": ("sampling", ('verify.also=["equations"]',)),  # what it is to be compared with
    "refills": ("sampling", ("sample.refills=2",)),
}


@dataclass(frozen=True, slots=True)
class CreditArm:
    """Example: CreditArm("gtpo", "weights", ("balance.tau=0", "credit.weights=gtpo"))"""

    name: str
    kind: ArmKind
    options: tuple[str, ...]  # section.option=value, as --set takes them


@cache
def credit_arms() -> dict[str, CreditArm]:
    """By name, the baseline first."""
    made = [_arm(BASELINE, "weights")]
    made += [
        _arm(name, "weights", f"credit.weights={name}")
        for name in TOKEN_WEIGHTS
        if name not in NO_OP_NAMES
    ]
    made += [
        _arm(name, "settings", f"credit.weights={weights}", f"credit.settings={_toml_list(given)}")
        for name, (weights, *given) in WEIGHTS_AT_SETTINGS.items()
    ]
    made += [_arm(name, "advantage", f"credit.name={name}") for name in distinct_advantages()[1:]]
    made += [
        _arm(name, "step", f"{option}={name}", *REQUIRED_OPTIONS.get(name, ()))
        for option, registry in (
            ("update.trajectory", TRAJECTORY_WEIGHTS),
            ("credit.rule", STEP_RULES),
        )
        for name in registry
        if name not in NO_OP_NAMES
    ]
    made += [_arm(name, kind, *options) for name, (kind, options) in UNREGISTERED_ARMS.items()]
    return {arm.name: arm for arm in made}


def distinct_advantages() -> list[str]:
    """Advantages, the default first, less those that are an earlier one times one number."""
    kept: dict[str, NDArray[np.float64]] = {}
    for name in ADVANTAGES:
        of = ADVANTAGES.load(name)
        groups = [np.arange(GROUP_SIZE) < right for right in range(GROUP_SIZE + 1)]
        A = np.concatenate([of(rewards_G.astype(np.float64)) for rewards_G in groups])
        if not any(_proportional(A, other) for other in kept.values()):
            kept[name] = A
    return list(kept)


def _proportional(a: NDArray[np.float64], b: NDArray[np.float64]) -> bool:
    size = float(np.linalg.norm(a) * np.linalg.norm(b))
    return abs(float(a @ b)) > (1 - 1e-9) * size


def _toml_list(settings: Sequence[str]) -> str:
    return "[" + ", ".join(f'"{each}"' for each in settings) + "]"


def _arm(name: str, kind: ArmKind, *options: str) -> CreditArm:
    return CreditArm(name, kind, (*COMMON_OPTIONS, *options))
