"""k_{i,t} = rule(logprobs, advantages, ...)[i][t]: a user's function as the rule of a step.

The function is called once for every optimizer step, before its gradient, with the rows that carry
an advantage. Its parameters may be those of a token weighting (`credit/plugin_weights.py`), here
computed with the model as it is before this step, and

    old_logprobs      [T] per rollout, by the policy that sampled it
    token_advantages  [T] per rollout, A_i w_{i,t}
    clipped           [T] per rollout, where the surrogate's clip removes the gradient
    step              the number of the step in its iteration, from 0
    rng               a numpy generator that is the same in a resumed run

It returns a list with one array [T] of factors for each rollout, by which token advantages are
multiplied: 0 or False leaves a token out, 1 or True keeps it. A function cannot add a term to the
loss; built-in rules can. Keyword-only parameters are settings (`credit.rule_settings`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from counterpoise.credit.plugin_weights import WEIGHT_INPUTS, InputReader, TokenFunction
from counterpoise.update.rules.bind import OptimizerStepView
from counterpoise.update.rules.rule import RuleEffect

RULE_INPUTS: Mapping[str, InputReader[OptimizerStepView]] = {
    **WEIGHT_INPUTS,
    "old_logprobs": lambda step: list(step.old_logprobs),
    "token_advantages": lambda step: [row.advantages_T for row in step.rows],
    "clipped": lambda step: step.split_by_row(step.clipped),
    "step": lambda step: step.step_index,
    "rng": lambda step: step.rng("rule"),
}


class PluginRule(TokenFunction):
    """A user's function as the rule of a step."""

    def __init__(self, name: str) -> None:
        super().__init__(name, RULE_INPUTS)

    def __call__(self, step: OptimizerStepView, **settings: Any) -> RuleEffect:
        if not step.rows:
            return RuleEffect()
        values = {input_name: RULE_INPUTS[input_name](step) for input_name in self.input_names}
        factors = self.evaluate(values, step.rows, settings)
        num_chosen = sum(int((factors_T != 1).sum()) for factors_T in factors)
        return RuleEffect(factors=factors, num_chosen=num_chosen)
