"""The sizes that scratch-sizes-warmup.toml names are those that it makes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from counterpoise.config.load import load_config
from counterpoise.lab.warmup.scratch import build_model, build_tokenizer

FILE = Path(__file__).parents[3] / "runs" / "scratch-sizes-warmup.toml"
COMMANDS = re.findall(
    r"poise warmup scratch-sizes-warmup --out out/sizes/([\d.]+)M(.*)", FILE.read_text()
)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return build_tokenizer()


@pytest.mark.parametrize(("millions", "flags"), COMMANDS)
def test_parameters(tokenizer: Any, millions: str, flags: str) -> None:
    config = load_config("scratch-sizes-warmup", re.findall(r"--set (\S+)", flags))
    assert config.task.slips == 0
    assert config.warmup.until == 0.4
    with torch.device("meta"):
        model = build_model(config.warmup, tokenizer, seed=0)
    parameters = sum(weights.numel() for weights in model.parameters())
    assert parameters / 1e6 == pytest.approx(float(millions), rel=0.06)


def test_all_four_are_there() -> None:
    assert [millions for millions, _ in COMMANDS] == ["1.3", "5", "20", "50"]
