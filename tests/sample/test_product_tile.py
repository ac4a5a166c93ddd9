"""Which form and tile the products of a decoding step take."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
import torch
from small_run import small_config

from counterpoise.errors import PoiseError
from counterpoise.loop import train
from counterpoise.sample import decode_layers
from counterpoise.sample.decode_graphs import DecodeGraphs, DrawSettings
from counterpoise.sample.kv_slots import SlotCapacity
from counterpoise.sample.product_tile import ProductTile, choose_product_tile, tile_for_rows


def test_a_tile_has_no_more_rows_than_the_batch_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POISE_PRODUCT_TILE", raising=False)
    for rows in (1, 8, 16, 17, 32, 48, 512):
        tile = choose_product_tile(rows)
        assert tile == tile_for_rows(rows)
        assert min(tile.rows, tile.columns, tile.block) >= 16  # what tl.dot takes
        assert tile.rows < 2 * max(16, rows)
    monkeypatch.setenv("POISE_PRODUCT_TILE", "128,64,32,8,3")
    assert choose_product_tile(8) == ProductTile(128, 64, 32, 8, 3)


@pytest.mark.parametrize("rows", [8, 32, 512])
@pytest.mark.parametrize("head_dim", [32, 64, 128, 256])
def test_wide_heads_leave_memory_for_fewer_stages(rows: int, head_dim: int) -> None:
    tile = choose_product_tile(rows, head_dim)
    # A stage holds a block of the rows and of the head's weights, two bytes each.
    stage_bytes = 2 * tile.block * (tile.rows + head_dim)
    assert tile.num_stages * stage_bytes <= 99 * 1024
    if head_dim <= 64:
        assert tile == tile_for_rows(rows)


@pytest.mark.parametrize("request_text", ["64", "64,64,64,4", "64,64,8,4,4", "48,64,64,4,4", "a"])
def test_a_wrong_tile_is_refused(request_text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POISE_PRODUCT_TILE", request_text)
    with pytest.raises(PoiseError, match=f"POISE_PRODUCT_TILE={request_text}: give rows"):
        choose_product_tile(8)


def test_products_are_fused_only_on_request_and_in_bfloat16_on_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = tiny.policy()
    decoder = policy.decoder
    monkeypatch.delenv("POISE_DECODE_PRODUCTS", raising=False)
    monkeypatch.setattr(decode_layers, "is_half_on_gpu", lambda weight: True)
    assert decode_layers.choose_form(decoder) == "separate"
    monkeypatch.setenv("POISE_DECODE_PRODUCTS", "fused")
    policy.model.to(torch.float16)
    assert decode_layers.choose_form(decoder) == "separate"  # it could overflow
    policy.model.to(torch.bfloat16)
    assert decode_layers.choose_form(decoder) == "fused"
    monkeypatch.setenv("POISE_DECODE_PRODUCTS", "chained")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert decode_layers.choose_form(decoder) == "chained"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    with pytest.raises(PoiseError, match="=chained needs a GPU of compute capability 9"):
        decode_layers.choose_form(decoder)
    monkeypatch.setattr(decode_layers, "is_half_on_gpu", lambda weight: False)
    assert decode_layers.choose_form(decoder) == "separate"
    monkeypatch.setenv("POISE_DECODE_PRODUCTS", "both")
    with pytest.raises(PoiseError, match="=both: give one of separate, fused, chained"):
        decode_layers.choose_form(decoder)


@pytest.mark.parametrize(
    ("variable", "remedy"),
    [
        ("POISE_DECODE_PRODUCTS", "give one of separate"),
        ("POISE_PRODUCT_TILE", "give rows"),
        ("POISE_DECODE_TILE", "give by_shape"),
        ("POISE_DECODE_PARTS", "give a power of two"),
    ],
)
def test_a_wrong_request_is_refused_before_a_run_begins_on_any_machine(
    variable: str, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU, which has no such form, it was not even read."""
    config = small_config(tmp_path)
    monkeypatch.setenv(variable, "bogus")
    with pytest.raises(PoiseError, match=f"^{variable}=bogus: {remedy}"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_chain_before_hopper_is_refused_before_a_run_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The GPU decides, not the request alone."""
    config = small_config(tmp_path, "model.dtype=bfloat16")
    monkeypatch.setenv("POISE_DECODE_PRODUCTS", "chained")
    monkeypatch.setattr(decode_layers, "is_half_on_gpu", lambda weight: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    with pytest.raises(PoiseError, match="=chained needs a GPU of compute capability 9"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_graphs_keep_the_form_that_they_began_with(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = tiny.policy().decoder
    monkeypatch.delenv("POISE_DECODE_PRODUCTS", raising=False)
    graphs = DecodeGraphs(decoder, SlotCapacity(8, 16, 64))
    settings = DrawSettings(1.0, 1.0, 0, end_tokens=(1,))
    monkeypatch.setenv("POISE_DECODE_PRODUCTS", "bogus")
    graphs.step(decoder, 8, settings)
    assert graphs.form == "separate"


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_which_layers_the_kernels_compute(architecture: str) -> None:
    decoder = tiny.policy(architecture).decoder
    assert decode_layers.supports_fused_products(decoder)
    gate, _ = decoder.llama_layers[0].gate_and_up
    gate.bias = torch.nn.Parameter(torch.zeros(gate.out_features))
    assert not decode_layers.supports_fused_products(decoder)
