"""Memory and GPUs of the paper's presets, against the arithmetic of docs/scale.md by hand."""

from __future__ import annotations

import pytest

from counterpoise.config.load import load_config
from counterpoise.hosts.cluster_size import gpus_for, need, pass_tokens
from counterpoise.hosts.verl.command import machines
from counterpoise.run.estimate import KNOWN


def test_the_smallest_preset_by_hand() -> None:
    config = load_config("qwen3-1.7b-base")
    shape = KNOWN[config.model.name]
    found = need(config, shape, gpus=4)
    assert pass_tokens(config) == 1024 + 8192
    assert found.states == pytest.approx(16 * 1.7205678e9 / 4 / 1e9, rel=1e-3)
    assert found.gathered == pytest.approx(4 * 151936 * 2048 / 1e9)  # the tied embedding, twice
    assert found.activations == pytest.approx(2 * 9216 * 28 * (20480 + 18432) / 1e9)
    assert found.logits == pytest.approx(10 * 9216 * 151936 / 1e9)
    assert found.sampler == pytest.approx(3.441, rel=1e-3)
    assert found.row == pytest.approx(2 * 2 * 9216 * 28 * 8 * 128 / 1e9)
    assert found.training == pytest.approx(
        found.states + found.gathered + found.activations + found.logits
    )
    assert found.rows(80) == int((72 - found.states - found.sampler) / found.row)


@pytest.mark.parametrize(
    ("preset", "checkpointing", "memory", "gpus"),
    [
        ("qwen3-1.7b-base", False, 80, 1), ("qwen3-1.7b-base", True, 80, 1),
        ("qwen3-4b-base", False, 80, 4), ("qwen3-4b-base", True, 80, 2),
        ("qwen2.5-math-7b", False, 80, 32), ("qwen2.5-math-7b", True, 80, 4),
        ("qwen2.5-math-7b", False, 141, 4), ("qwen2.5-math-7b", True, 141, 2),
        ("qwen2.5-math-7b", False, 24, 0),
    ],
)  # fmt: skip
def test_gpus_of_the_presets(preset: str, checkpointing: bool, memory: float, gpus: int) -> None:
    config = load_config(preset, [f"update.checkpointing={str(checkpointing).lower()}"])
    shape = KNOWN[config.model.name]
    assert gpus_for(config, shape, memory) == gpus
    for fewer in (n for n in (1, 2, 4, 8, 16) if n < gpus):
        found = need(config, shape, fewer)
        assert max(found.training, found.sampling) > 0.9 * memory


def test_whole_nodes_of_eight() -> None:
    assert machines(load_config("qwen3-4b-base")) == {
        "trainer.n_gpus_per_node": 4, "trainer.nnodes": 1,
    }  # fmt: skip
    assert machines(load_config("qwen2.5-math-7b")) == {
        "trainer.n_gpus_per_node": 8, "trainer.nnodes": 4,
    }  # fmt: skip
