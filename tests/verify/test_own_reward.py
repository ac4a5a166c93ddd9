"""The reward and the verifier that docs/verify.md shows do what it says of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from counterpoise.config import RunConfig
from counterpoise.types import Prompt, Response
from counterpoise.verify import REWARDS, VERIFIERS

PAGE = Path(__file__).parents[2] / "docs" / "verify.md"
BLOCKS = re.findall(
    r"```python\n# ([\w/.]+)(.*?)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL
)


def shown(name: str) -> dict[str, Any]:
    """What the file of that name defines, as the page has it."""
    source = next(text for path, _, text in BLOCKS if path.endswith(f"/{name}.py"))
    scope: dict[str, Any] = {"__name__": name}
    exec(source, scope)
    return scope


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("\\boxed{4}.", 1.0), ("\\boxed{4} apples", 0.0), ("It is 4.", 0.0), ("\\boxed{4}\n", 1.0)],
)
def test_the_reward_of_the_page(text: str, wanted: float):
    response = Response(tokens=(1,), logprobs=(-1.0,), text=text, finished=True)
    assert shown("ends_with_box")["reward"](Prompt("1", "?", "4"), response, RunConfig()) == wanted


def test_the_verifier_of_the_page():
    verifier = shown("mentioned")["MentionedVerifier"](5.0, 2)
    assert verifier.score(["It is 4.", "It is 5."], ["4", "4"]).rewards == [1.0, 0.0]
    verifier.close()


def test_the_lines_of_the_tables_name_what_the_files_define():
    lines = [text.strip().rstrip(",") for path, _, text in BLOCKS if path.endswith("__init__.py")]
    for line in lines:
        name, target = re.fullmatch(r'"(\w+)": "([\w.:]+)"', line).groups()  # type: ignore[union-attr]
        module, attribute = target.split(":")
        assert attribute in shown(module.rpartition(".")[2])
        assert name not in {*VERIFIERS, *REWARDS}  # an example, not a second file of ours
    assert len(lines) == 2
