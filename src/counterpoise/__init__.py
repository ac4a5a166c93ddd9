"""Critic-free RL of language models with named batching rules. Start reading at `loop.py`.

    import counterpoise as poise

    plan = poise.compose("grouped", rows, num_steps=4, seed=0)

The names in `__all__` are for a training loop of your own; docs/reference/api.md describes them.
Each is imported when it is first used: `import counterpoise` alone imports neither torch nor numpy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from counterpoise.batch.buffer import RewardBalancedBuffer
    from counterpoise.batch.compose import compose
    from counterpoise.batch.describe import describe_plan as describe
    from counterpoise.credit.advantages import (
        advantages,
        dr_grpo,
        grpo,
        positive_only,
        rloo,
        w_reinforce,
    )
    from counterpoise.credit.array_view import weights
    from counterpoise.credit.f_grpo import f_grpo
    from counterpoise.credit.maxrl import maxrl
    from counterpoise.errors import PoiseError
    from counterpoise.microscope.coupling import Coupling, decompose
    from counterpoise.types import BatchPlan, Row

__version__ = "0.3.0"

__all__ = [
    "BatchPlan",
    "Coupling",
    "PoiseError",
    "RewardBalancedBuffer",
    "Row",
    "advantages",
    "compose",
    "decompose",
    "describe",
    "dr_grpo",
    "f_grpo",
    "grpo",
    "maxrl",
    "positive_only",
    "rloo",
    "w_reinforce",
    "weights",
]

# Public name -> where it is written: what the block for type checkers above says, as strings.
PUBLIC_NAMES = {
    "BatchPlan": "counterpoise.types:BatchPlan",
    "Coupling": "counterpoise.microscope.coupling:Coupling",
    "PoiseError": "counterpoise.errors:PoiseError",
    "RewardBalancedBuffer": "counterpoise.batch.buffer:RewardBalancedBuffer",
    "Row": "counterpoise.types:Row",
    "advantages": "counterpoise.credit.advantages:advantages",
    "compose": "counterpoise.batch.compose:compose",
    "decompose": "counterpoise.microscope.coupling:decompose",
    "describe": "counterpoise.batch.describe:describe_plan",
    "dr_grpo": "counterpoise.credit.advantages:dr_grpo",
    "f_grpo": "counterpoise.credit.f_grpo:f_grpo",
    "grpo": "counterpoise.credit.advantages:grpo",
    "maxrl": "counterpoise.credit.maxrl:maxrl",
    "positive_only": "counterpoise.credit.advantages:positive_only",
    "rloo": "counterpoise.credit.advantages:rloo",
    "w_reinforce": "counterpoise.credit.advantages:w_reinforce",
    "weights": "counterpoise.credit.array_view:weights",
}


def __getattr__(name: str) -> Any:
    if name not in PUBLIC_NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = PUBLIC_NAMES[name].partition(":")
    value = globals()[name] = getattr(import_module(module), attribute)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
