"""Memory and GPUs of the paper's presets, against arithmetic by hand."""

from __future__ import annotations

import pytest

from counterpoise.config.load import load_config
from counterpoise.hosts.cluster_size import estimate_gpu_memory, fewest_gpus, tokens_per_pass
from counterpoise.hosts.verl.command import gpu_settings
from counterpoise.model.decoder_shape import KNOWN_SHAPES


def test_the_smallest_preset_by_hand() -> None:
    config = load_config("qwen3-1.7b-base")
    shape = KNOWN_SHAPES[config.model.name]
    memory = estimate_gpu_memory(config, shape, gpus=4)
    assert tokens_per_pass(config) == 1024 + 8192
    assert memory.training_states == pytest.approx(16 * 1.7205678e9 / 4 / 1e9, rel=1e-3)
    assert memory.gathered_weights == pytest.approx(4 * 151936 * 2048 / 1e9)  # tied
    assert memory.activations == pytest.approx(2 * 9216 * 28 * (20480 + 18432) / 1e9)
    assert memory.logits == pytest.approx(10 * 9216 * 151936 / 1e9)
    assert memory.sampler_weights == pytest.approx(3.441, rel=1e-3)
    assert memory.row_kv_cache == pytest.approx(2 * 2 * 9216 * 28 * 8 * 128 / 1e9)
    assert memory.training_total == pytest.approx(
        memory.training_states + memory.gathered_weights + memory.activations + memory.logits
    )
    assert memory.sampling_total == pytest.approx(
        memory.training_states + memory.sampler_weights + memory.row_kv_cache
    )


@pytest.mark.parametrize(
    ("preset", "checkpointing", "gpu_gb", "gpus"),
    [
        ("qwen3-1.7b-base", False, 80, 1), ("qwen3-1.7b-base", True, 80, 1),
        ("qwen3-4b-base", False, 80, 4), ("qwen3-4b-base", True, 80, 2),
        ("qwen2.5-math-7b", False, 80, 32), ("qwen2.5-math-7b", True, 80, 4),
        ("qwen2.5-math-7b", False, 141, 4), ("qwen2.5-math-7b", True, 141, 2),
        ("qwen2.5-math-7b", False, 24, 0),
    ],
)  # fmt: skip
def test_gpus_of_the_presets(preset: str, checkpointing: bool, gpu_gb: float, gpus: int) -> None:
    config = load_config(preset, [f"update.checkpointing={str(checkpointing).lower()}"])
    shape = KNOWN_SHAPES[config.model.name]
    assert fewest_gpus(config, shape, gpu_gb) == gpus
    for fewer in (n for n in (1, 2, 4, 8, 16) if n < gpus):
        memory = estimate_gpu_memory(config, shape, fewer)
        assert max(memory.training_total, memory.sampling_total) > 0.9 * gpu_gb


def test_whole_nodes_of_eight() -> None:
    assert gpu_settings(load_config("qwen3-4b-base")) == {
        "trainer.n_gpus_per_node": 4, "trainer.nnodes": 1,
    }  # fmt: skip
    assert gpu_settings(load_config("qwen2.5-math-7b")) == {
        "trainer.n_gpus_per_node": 8, "trainer.nnodes": 4,
    }  # fmt: skip
