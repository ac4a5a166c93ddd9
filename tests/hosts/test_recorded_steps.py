"""Steps and metrics of another trainer: what it does not tell is NaN or null."""

from __future__ import annotations

import numpy as np

from counterpoise.hosts.recorded_steps import observed_metrics, observed_step


def test_numbers_that_are_not_known_are_nan_and_as_long_as_the_rows() -> None:
    ones = [np.ones(3, np.float32), np.ones(1, np.float32)]
    step = observed_step(
        (4, 7), advantages=ones, logprobs=ones, old_logprobs=ones, tokens=5, pulls=ones
    )
    assert (step.rows, step.tokens, step.skipped) == ((4, 7), 5, "")
    assert [len(entropies_T) for entropies_T in step.entropies] == [3, 1]
    assert np.isnan([*step.entropies[0], *step.coefficients, step.loss, step.grad_norm]).all()
    assert step.pulls is ones
    empty = observed_step((), advantages=(), logprobs=(), old_logprobs=(), tokens=5)
    assert empty.skipped == "no signal"


def test_what_only_the_trainer_knows_is_null() -> None:
    line = {"success": 0.5, "loss": float("nan"), "verifier_timeouts": 0, "turn_success": [1.0]}
    assert observed_metrics(line) == {
        "success": 0.5,
        "loss": None,
        "verifier_timeouts": None,
        "verifier_crashes": None,
        "turn_success": None,
    }
    assert "turn_success" not in observed_metrics({"success": 0.5})
