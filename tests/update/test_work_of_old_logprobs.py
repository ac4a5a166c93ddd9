"""What old log-probabilities cost: passes of the model, by source and number of steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from counterpoise.lab.speed import workload
from counterpoise.lab.speed.iteration import TimedEngine
from counterpoise.lab.speed.workload import Workload
from counterpoise.update.passes import EagerPasses


@pytest.mark.parametrize(
    ("source", "steps", "reading_passes"),
    [("trainer", 1, 0), ("sampler", 1, 0), ("trainer", 2, 1), ("sampler", 2, 0)],
)
def test_the_samplers_never_cost_a_pass(
    source: str,
    steps: int,
    reading_passes: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One pass with gradients for every step; the trainer reads the rows of later steps before."""
    counts = {"gradients": 0, "read": 0}
    for name in counts:
        run_pass = getattr(EagerPasses, name)

        def counting(self: Any, *args: Any, _name: str = name, _run: Any = run_pass) -> Any:
            counts[_name] += 1
            return _run(self, *args)

        monkeypatch.setattr(EagerPasses, name, counting)
    config = workload.run_config(
        Workload("embedded", 2, 2, 3), steps=steps, old_logprobs=source, capture=False
    )
    engine = TimedEngine(workload.load_endless_policy("embedded"), config, tmp_path / "run")
    record = engine()
    assert record["steps"] == steps
    assert counts == {"gradients": steps, "read": reading_passes}
