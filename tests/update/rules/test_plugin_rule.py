"""A user's function as the rule of a step: what it gets, and which tokens the step then trains."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny

from counterpoise.config import CreditConfig
from counterpoise.config.load import load_config
from counterpoise.credit.view import PolicyReader
from counterpoise.errors import PoiseError
from counterpoise.run.try_plugins import check_plugins, make_trial_inputs, try_plugins
from counterpoise.update.rules.bind import OptimizerStepView, bind_rule, reads_initial_weights
from counterpoise.update.rules.plugin_rule import RULE_INPUTS, PluginRule
from counterpoise.update.rules.rule import apply_rule

EXAMPLE = Path(__file__).parents[3] / "examples" / "own_token_weights.py"


def test_every_input_has_its_shape() -> None:
    rows = tiny.rows(groups=2, size=4, seed=1)
    step = OptimizerStepView(rows, PolicyReader(tiny.policy()))
    assert set(make_trial_inputs(rows)) == set(RULE_INPUTS)
    for name in ("old_logprobs", "token_advantages", "clipped"):
        assert [len(values_T) for values_T in RULE_INPUTS[name](step)] == [
            row.num_tokens for row in rows
        ]
    draws = [RULE_INPUTS["rng"](step).random() for _ in range(2)]
    assert draws[0] == draws[1]


def test_the_example_leaves_rare_tokens_of_wrong_rollouts_out() -> None:
    rows = tiny.rows(groups=2, size=4, seed=1)
    reader = PolicyReader(tiny.policy())
    config = load_config(
        "demo", [f"credit.rule={EXAMPLE}:spare_rare", "credit.rule_settings=['floor=-5']"]
    )
    bound = bind_rule(config, reader, None)
    assert bound is not None
    ruled, effect = apply_rule(rows, bound.for_step(0), on_policy=True)
    logprobs = OptimizerStepView(rows, reader).logprobs
    num_out = 0
    for row, logprobs_T in zip(ruled, logprobs, strict=True):
        left_out_T = (logprobs_T <= -5) & (row.advantage < 0)
        np.testing.assert_array_equal(row.advantages_T == 0, left_out_T)
        num_out += int(left_out_T.sum())
    assert effect.num_chosen == num_out > 0
    assert PluginRule(f"{EXAMPLE}:spare_rare")(OptimizerStepView(())).factors is None


def test_faults_are_told_before_the_run(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "def cut(tokens, alpha=1, *, beta=0.5):\n    return [t * beta for t in tokens]\n"
    )
    config = load_config("demo", [f"credit.rule={path}:cut", "credit.rule_settings=['beta=0']"])
    assert try_plugins(config) == [
        "#   own step rule      mine.py:cut: 0 to 0 on invented rollouts"
    ]
    assert not reads_initial_weights(CreditConfig(rule=f"{path}:cut"))
    with pytest.raises(PoiseError, match=r"unknown setting of mine\.py:cut 'gamma'"):
        check_plugins(
            load_config("demo", [f"credit.rule={path}:cut", "credit.rule_settings=['gamma=0']"])
        )
    with pytest.raises(
        PoiseError, match=r"mine\.py:cut excludes tokens, .* update\.trajectory=off"
    ):
        load_config(
            "demo",
            [
                f"credit.rule={path}:cut",
                "update.trajectory=orthogonal",
                "update.surrogate=reinforce",
            ],
        )
