"""`poise plan` in the terminal: steps are counted as in the report, from 1."""

from __future__ import annotations

import io

from rich.console import Console

from counterpoise.batch.compose import compose
from counterpoise.batch.describe import describe_plan
from counterpoise.cli.plan_table import plan_table
from counterpoise.types import Row


def test_a_line_a_step_from_one_and_what_the_last_column_is():
    rows = [
        Row(g, A, n) for g, A, n in (("a", 1.0, 5), ("a", -1.0, 7), ("b", 1.0, 4), ("b", -1.0, 9))
    ]
    plan = compose("grouped", rows, num_steps=2, seed=0)
    planned = {"rule": "/a/b.py:rule", "steps": plan.steps, "describe": describe_plan(rows, plan)}
    file = io.StringIO()
    Console(file=file, width=200).print(plan_table(planned))
    assert file.getvalue().startswith("b.py:rule: 4 rows of 2 groups, 0 without signal")
    lines = [line.split() for line in file.getvalue().splitlines()]
    steps = [line for line in lines if line and line[0].isdigit()]
    assert [(line[0], line[1], line[-1]) for line in steps] == [
        ("1", "2", "-2.00"),
        ("2", "2", "-2.00"),
    ]
    assert "cross-advantage: the sum of A_i A_j" in file.getvalue()
