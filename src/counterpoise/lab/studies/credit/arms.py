"""The arms of the credit study: every method of the registries, and a table of further settings.

    advantage    another advantage A for the rollout
    weights      A w: a weight for each of its tokens
    settings     token weights at other settings than their defaults
    step         a change of the optimizer step (weights, clipping, sums); A w is unchanged
    sampling     other rewards or other groups: visible in training only

Everything else is the demo's without reward balance, so that all arms see the same batches: GRPO's
advantage, uniform weights, whole groups (QB), four steps. An advantage that is a multiple of
another one is left out: that would only change the learning rate.
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
# Kinds whose token credit, A w, is known before the step.
EXPLICIT_KINDS = ("advantage", *WEIGHTED_KINDS)
BASELINE = "uniform"
COMMON_OPTIONS = ("balance.tau=0",)
NO_OP_NAMES = ("off", BASELINE)  # registry entries that change nothing
# Token weights that the study's batch cannot give: they read held-out answers (compared in
# runs/embedded-aligned.toml), or anchors, generic responses in every group (sample.anchors).
PROBE_READING = ("aligned",)
ANCHOR_READING = ("crpo",)
GROUP_SIZE = 8  # rollouts of a group, to compare advantages
# Arm -> token weights and their settings.
WEIGHTS_AT_SETTINGS = {
    "cancellation_1": ("cancellation", "strength=1"),
    "cancellation_batch": ("cancellation", "scope=batch"),
    "shear_16": ("shear", "width=16", "stride=4"),
    "grail_both": ("grail", "which=both"),
    "grail_released": ("grail", "released_indexing=true"),
}
# Options that a method needs; each is also an arm of its own below.
REQUIRED_OPTIONS = {
    "min_replace": ("update.surrogate=reinforce",),
    "orthogonal": ("update.surrogate=reinforce",),
    "kl_cov": ("update.surrogate=unclipped",),
}
# Arms that are in no registry of credit: arm -> kind and options.
UNREGISTERED_ARMS: dict[str, tuple[ArmKind, tuple[str, ...]]] = {
    "coupled": ("step", ("batch.composer=coupled",)),
    "paired": ("step", ("batch.composer=paired",)),
    "drpo": ("step", ("update.surrogate=drpo",)),
    "reinforce": ("step", ("update.surrogate=reinforce",)),
    "unclipped": ("step", ("update.surrogate=unclipped",)),
    "decoupled": ("sampling", ('verify.also=["equations"]', "credit.mixture=decoupled")),
    "summed": ("sampling", ('verify.also=["equations"]',)),  # the comparison for `decoupled`
    "refills": ("sampling", ("sample.refills=2",)),
    "skip_settled": ("sampling", ("sample.choose=skip_settled",)),
}


@dataclass(frozen=True, slots=True)
class CreditArm:
    """Example: CreditArm("gtpo", "weights", ("balance.tau=0", "credit.weights=gtpo"))"""

    name: str
    kind: ArmKind
    options: tuple[str, ...]  # section.option=value, as --set takes them


@cache
def credit_arms() -> dict[str, CreditArm]:
    """All arms by name, the baseline first."""
    arms = [_arm(BASELINE, "weights")]
    arms += [
        _arm(arm_name, "weights", f"credit.weights={arm_name}")
        for arm_name in TOKEN_WEIGHTS
        if arm_name not in (*NO_OP_NAMES, *PROBE_READING, *ANCHOR_READING)
    ]
    arms += [
        _arm(
            arm_name,
            "settings",
            f"credit.weights={weights}",
            f"credit.settings={_toml_list(settings)}",
        )
        for arm_name, (weights, *settings) in WEIGHTS_AT_SETTINGS.items()
    ]
    arms += [
        _arm(arm_name, "advantage", f"credit.name={arm_name}")
        for arm_name in distinct_advantages()[1:]
    ]
    arms += [
        _arm(arm_name, "step", f"{option}={arm_name}", *REQUIRED_OPTIONS.get(arm_name, ()))
        for option, registry in (
            ("update.trajectory", TRAJECTORY_WEIGHTS),
            ("credit.rule", STEP_RULES),
        )
        for arm_name in registry
        if arm_name not in NO_OP_NAMES
    ]
    arms += [
        _arm(arm_name, arm_kind, *options)
        for arm_name, (arm_kind, options) in UNREGISTERED_ARMS.items()
    ]
    return {arm.name: arm for arm in arms}


def distinct_advantages() -> list[str]:
    """Names of the advantages, the default first, without multiples of an earlier one."""
    kept_advantages: dict[str, NDArray[np.float64]] = {}
    for advantage_name in ADVANTAGES:
        advantage_function = ADVANTAGES.load(advantage_name)
        groups = [np.arange(GROUP_SIZE) < right_count for right_count in range(GROUP_SIZE + 1)]
        advantages = np.concatenate(
            [advantage_function(rewards_G.astype(np.float64)) for rewards_G in groups]
        )
        # Only the direction matters: a common factor is a learning rate.
        if not any(_proportional(advantages, earlier) for earlier in kept_advantages.values()):
            kept_advantages[advantage_name] = advantages
    return list(kept_advantages)


def _proportional(a: NDArray[np.float64], b: NDArray[np.float64]) -> bool:
    size = float(np.linalg.norm(a) * np.linalg.norm(b))
    return abs(float(a @ b)) > (1 - 1e-9) * size


def _toml_list(settings: Sequence[str]) -> str:
    return "[" + ", ".join(f'"{setting}"' for setting in settings) + "]"


def _arm(name: str, kind: ArmKind, *options: str) -> CreditArm:
    return CreditArm(name, kind, (*COMMON_OPTIONS, *options))
