"""A composer of the user's: the page's, the example's, and plans that are none."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from counterpoise.batch.compose import compose
from counterpoise.batch.describe import describe_plan
from counterpoise.errors import PoiseError
from counterpoise.types import Row

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guide" / "extending.md").read_text(encoding="utf-8")
EXAMPLE = ROOT / "examples" / "own_reward_and_composer.py"
RIGHT = (3, 1, 2, 0)  # of four rollouts of each prompt


def rows() -> list[Row]:
    """Four groups of four, right ones first; lengths 1 to 16."""
    return [
        Row(f"g{g}", 1.0 if k < right else -1.0, 4 * g + k + 1, index=k)
        for g, right in enumerate(RIGHT)
        for k in range(4)
    ]


def made_by(body: str, folder: Path) -> str:
    path = folder / "mine.py"
    path.write_text(f"import numpy as np\ndef rule(rows, num_steps, seed):\n    return {body}\n")
    return f"{path}:rule"


def test_the_rule_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (source,) = re.findall(r"```python\n# src/\S+in_order.py\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "in_order.py").write_text(source, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    plan = compose("in_order.py:compose", rows(), 2, seed=0)
    assert plan.composer == "in_order.py:compose"
    assert plan.steps == (tuple(range(8)), tuple(range(8, 16)))


def test_the_example_takes_easy_groups_first_and_whole():
    plan = compose(f"{EXAMPLE}:easy_first", rows(), 2, seed=0)
    assert plan.steps == ((0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15))
    assert describe_plan(rows(), plan)["split_groups"] == 0
    with pytest.raises(
        PoiseError, match=r"easy_first': step 0 is empty\. The composer is at fault$"
    ):
        compose(f"{EXAMPLE}:easy_first", rows()[:4], 2, seed=0)


@pytest.mark.parametrize(
    "body",
    [
        "np.array_split(np.random.default_rng(seed).permutation(len(rows)), num_steps)",
        "[range(0, 8), range(8, 16)]",
        "(tuple(range(s, 16, num_steps)) for s in range(num_steps))",
    ],
    ids=["arrays", "ranges", "generator"],
)
def test_what_it_may_return(body: str, tmp_path: Path):
    name = made_by(body, tmp_path)
    plan = compose(name, rows(), 2, seed=3)
    assert plan == compose(name, rows(), 2, seed=3)
    assert [len(step) for step in plan.steps] == [8, 8]
    assert {type(i) for step in plan.steps for i in step} == {int}
    if "random" in body:
        order = np.random.default_rng(3).permutation(16).tolist()
        assert [i for step in plan.steps for i in step] == order


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("[range(15), []]", "step 1 is empty"),
        ("[range(8), range(8, 15)]", "of the 16 rows: row 15 (counting from 0) occurs 0 times"),
        ("[range(8), range(7, 16)]", "of the 16 rows: row 7 (counting from 0) occurs 2 times"),
        ("[range(-1, 8), range(8, 16)]", "of the 16 rows: row -1 (counting from 0) occurs 1 times"),
        ("[range(16)]", "1 steps instead of 2"),
        ("None", "did not return lists of row numbers ('NoneType' object is not iterable)"),
        ("[0, 1]", "did not return lists of row numbers ('int' object is not iterable): return 2"),
        (
            "[['0'], ['1']]",
            "did not return lists of row numbers ('str' object cannot be interpreted",
        ),
        (
            "[[0.0], [1.0]]",
            "did not return lists of row numbers ('float' object cannot be interpre",
        ),
        ("rows[99]", "mine.py:3: IndexError: list index out of range"),
    ],
)
def test_what_it_may_not(body: str, said: str, tmp_path: Path):
    with pytest.raises(PoiseError) as fault:
        compose(made_by(body, tmp_path), rows(), 2, seed=0)
    assert said in str(fault.value)
    assert "\n" not in str(fault.value)
