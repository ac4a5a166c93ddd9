"""The timing of one decoding step: all rows decode as many tokens as it says."""

from __future__ import annotations

import pytest

from counterpoise.lab.speed import decode_step, workload


def test_every_form_decodes_the_same_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_step, "STEPS", 2)
    seconds = decode_step.main(["--rows", "8", "--context", "8", "--repeats", "1"])
    assert list(seconds) == ["separate, 8 rows", "fused, 8 rows", "chained, 8 rows"]
    assert all(value > 0 for value in seconds.values())

    policy = workload.load_endless_policy("embedded")
    policy.decoder.reserve(64)
    graphs = decode_step.prepare_rows(policy, rows=8, context=9, steps=3)
    positions = graphs.slots.positions[:8]
    assert positions.tolist() == 8 * [9 + 1]  # at the context, and the first step
    decode_step.decode_steps(graphs, policy, 8, 2)
    assert positions.tolist() == 8 * [12]
    assert graphs.slots.running[:8].all()
