"""The example of docs/credit.md, "Adding a weighting": its file, line and test, as they stand."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tiny
from report.synthetic import write_run

from counterpoise.credit.assign import with_token_weights
from counterpoise.credit.view import CreditView, PolicyReader
from counterpoise.lab.credit_view.result import compare_weightings
from counterpoise.variants import TOKEN_WEIGHTS

PAGE = Path(__file__).parents[2] / "docs" / "credit.md"


def blocks() -> list[str]:
    section = PAGE.read_text(encoding="utf-8").partition("## Adding a weighting")[2]
    return re.findall(r"```python\n(.*?)```", section.partition("\n## ")[0], re.DOTALL)


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> tuple[str, ModuleType]:
    """The file is imported under its name, and the line stands in the registry."""
    file, line, _ = blocks()
    ((name, place),) = ast.literal_eval("{" + line + "}").items()
    module = ModuleType(place.partition(":")[0])
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(file, str(PAGE), "exec"), module.__dict__)
    monkeypatch.setattr(TOKEN_WEIGHTS, "_entries", {**TOKEN_WEIGHTS, name: place})
    return name, module


def test_the_example_is_about_ten_lines() -> None:
    file, line, _ = blocks()
    assert sum(bool(text.strip()) for text in file.splitlines()) <= 10
    assert line.count("\n") == 1


def test_its_own_test_holds(added: tuple[str, ModuleType]) -> None:
    made: dict[str, Any] = {}
    exec(compile(blocks()[2], str(PAGE), "exec"), made)
    tests = [value for name, value in made.items() if name.startswith("test_")]
    assert tests
    for test in tests:
        test()


def test_training_takes_it(added: tuple[str, ModuleType]) -> None:
    rows, policy = tiny.rows(groups=3, size=4, seed=1), tiny.policy()
    weights_of = TOKEN_WEIGHTS.load(added[0])
    (found,) = with_token_weights([rows], weights_of, {"cap": 1.5}, PolicyReader(policy))
    surprise = [
        -x for logp_T in CreditView(rows, PolicyReader(policy)).logprobs for x in logp_T.tolist()
    ]
    mean = sum(surprise) / len(surprise)
    flat = np.concatenate([row.weights_T for row in found if row.weights_T is not None])
    np.testing.assert_allclose(flat, [min(x / mean, 1.5) for x in surprise], rtol=1e-5)
    (nothing,) = with_token_weights([[]], weights_of, {}, PolicyReader(policy))
    assert nothing == []


def test_poise_credit_shows_it(added: tuple[str, ModuleType], tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", tau=0.0)
    found = compare_weightings(f"{added[0]}:cap=2", run, model="embedded")
    assert found.weightings[0].choice.settings == ("cap=2",)
    assert 0 < found.weightings[0].statistics.highest <= 2
